"""Every command and script of docs/getting_started.md is run in a new folder, in its order."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

INSTALLS = "make env"  # has been run, or no test would
SERVES = "serve"
RUNS = {"python": [sys.executable], "c2c": [sys.executable, "-m", "c2c"]}


class Block(NamedTuple):
    section: str
    language: str
    text: str


def blocks(repository: Path) -> list[Block]:
    """Return the page's fenced blocks with the headings that they are under."""
    text = (repository / "docs" / "getting_started.md").read_text("utf-8")
    result = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        section, _, body = part.partition("\n")
        fenced = re.findall(r"^```(\w+)\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
        result += [Block(section, language, block) for language, block in fenced]
    return result


def run(folder: Path, repository: Path, section: str) -> str:
    """Run a section's blocks in `folder`; return what they print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = os.environ | {"PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1"}
    said, server = "", None
    try:
        for block in (one for one in blocks(repository) if one.section == section):
            if block.language == "csv":
                (folder / "my.csv").write_text(block.text)
                commands = []
            elif block.language == "python":
                name = re.match(r"# (\S+\.py)\n", block.text)
                path = folder / (name[1] if name else "cell.py")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
                commands = [] if name else ["python cell.py"]
            else:
                commands = block.text.replace("\\\n", "").replace("8123", port).splitlines()
            for command in commands:
                words = [word for word in shlex.split(command) if word != "PYTHONPATH=."]
                words[:1] = RUNS.get(words[0].removeprefix(".venv/bin/"), words[:1])
                if SERVES in words:
                    server = subprocess.Popen(words, cwd=folder, env=env)
                    continue
                done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
                said += done.stdout
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("Simulate", ("c2cserve on 1 x gh200, mig 7x12gb", "500 requests", "run folder (written)")),
        ("Ask in a notebook", ("'model'", "'prompt_tokens'")),
        ("Replay your own trace", ("rows: 4 of 4 used",)),
        ("Change a policy", ("patient", "one_instance", "served")),
        pytest.param("Read the output", ("workload", "catalog"), marks=pytest.mark.slow),
        pytest.param("Compare two systems", ("system=serverlessllm",), marks=pytest.mark.slow),
        pytest.param("Draw a figure of a paper", ("runs/reproduce",), marks=pytest.mark.slow),
        pytest.param("Start a live server", ('"id":"tiny"', "completion"), marks=pytest.mark.slow),
    ],
)
def test_a_section_s_commands_are_run(
    section: str, says: tuple[str, ...], tmp_path: Path, repository: Path
) -> None:
    said = run(tmp_path, repository, section)
    for part in says:
        assert part in said


@pytest.mark.slow
def test_the_sweep_skips_what_the_comparison_ran(tmp_path: Path, repository: Path) -> None:
    run(tmp_path, repository, "Compare two systems")
    folders = tmp_path / "runs" / "simulate"
    before = {path: path.stat().st_mtime_ns for path in folders.glob("*/summary.json")}
    said = run(tmp_path, repository, "Sweep")
    after = {path: path.stat().st_mtime_ns for path in folders.glob("*/summary.json")}
    assert len(before) == 2
    assert len(after) == 6
    assert before.items() <= after.items()
    assert "(6 runs)" in said


def test_every_section_with_commands_is_run(repository: Path) -> None:
    found = blocks(repository)
    assert [one.text.strip() for one in found if one.section == "Install"] == [INSTALLS]
    tests = Path(__file__).read_text("utf-8")
    sections = {one.section for one in found} - {"Install"}
    assert {section for section in sections if f'"{section}"' not in tests} == set()
    assert len(sections) == 9
