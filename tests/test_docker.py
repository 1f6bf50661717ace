"""The Dockerfile, which is not built here: everything that it names exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from experiments.cli import COMMANDS
from experiments.simulated.command import EndpointConf

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def words(instruction: str) -> list[str]:
    found = re.search(rf"^{instruction} (.*)$", TEXT, re.MULTILINE)
    assert found, instruction
    return json.loads(found[1]) if found[1].startswith("[") else found[1].split()


def test_what_it_installs_is_there() -> None:
    run = " ".join(words("RUN"))
    (constraints,) = re.findall(r"-c /src/(\S+)", run)
    assert (ROOT / constraints).is_file()
    (extra,) = re.findall(r'"/src\[(\w+)\]"', run)
    assert extra in PROJECT["optional-dependencies"]
    (version,) = re.findall(r"python:([\d.]+)", TEXT)
    assert PROJECT["requires-python"] == f">={version}"
    ignored = set((ROOT / ".dockerignore").read_text("utf-8").split())
    assert not ignored & {"c2c", "conf", "experiments", "pallas_kernels", ".ci", "setup.py", "*"}


def test_what_it_runs_is_there() -> None:
    assert words("ENTRYPOINT") == list(PROJECT["scripts"])
    for command, settings in re.findall(r"^#   docker run .* c2c (\w+) (.*)$", TEXT, re.MULTILINE):
        assert command in COMMANDS
        names = {one.partition("=")[0] for one in settings.split()}
        if command == "serve":
            assert names <= EndpointConf.__annotations__.keys()
    assert words("EXPOSE") == [str(EndpointConf.port)]
