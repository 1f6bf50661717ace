"""The wheel: it holds the settings, and runs where there is no checkout."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["workload=poisson", "workload.requests=40", "workload.rate_rps=2", "figures=false"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves folders where it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("c2c", "pallas_kernels", "experiments", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", "-w", str(folder), str(source)],
        check=True,
    )  # fmt: skip
    (result,) = folder.glob("c2c-*.whl")
    return result


def test_it_holds_all_settings_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for settings in (ROOT / "conf").rglob("*.yaml"):
        assert f"c2c/conf/{settings.relative_to(ROOT / 'conf')}" in names
    for package in ("c2c", "pallas_kernels", "experiments"):
        for path in (ROOT / package).rglob("*"):
            apart = {"results", "lab"} & set(path.parts)
            if path.suffix in (".py", ".json", ".yaml", ".typed") and not apart:
                assert str(path.relative_to(ROOT)) in names
    assert not [n for n in names if n.startswith(("tests/", "docs/", "conf/", "experiments/lab"))]


@pytest.mark.slow
def test_it_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The environment has this one's packages; `make soak` has pip install it into an empty one."""
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    parser = configparser.ConfigParser()
    parser.read(next(site.glob("*.dist-info")) / "entry_points.txt")
    module, _, function = parser["console_scripts"]["c2c"].partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words], cwd=here, capture_output=True, text=True,
            env={k: v for k, v in os.environ.items() if k != "C2C_CONF"}
            | {"PYTHONPATH": str(site)},
        )  # fmt: skip

    done = run("simulate", *SMALL, "folder=run")
    assert done.returncode == 0, done.stderr
    refused = run("bench", "simulator")
    assert refused.returncode == 2
    assert "c2c bench simulator needs a checkout" in refused.stderr
    assert json.loads((here / "run" / "summary.json").read_text())["finished"] == 40
    where = subprocess.run(
        [sys.executable, "-c", "from c2c.config import config_dir; print(config_dir())"],
        cwd=here, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(site)},
    )  # fmt: skip
    assert where.stdout.strip() == str(site / "c2c" / "conf")


@pytest.mark.soak
def test_pip_installs_it_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    scripts = tmp_path / "env" / "bin"
    constraints = str(ROOT / ".ci/constraints/main.txt")
    subprocess.run(
        [str(scripts / "pip"), "install", "-q", "-c", constraints, str(wheel)], check=True
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "C2C_CONF")}

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(scripts / command[0]), *command[1:]], cwd=here, capture_output=True, text=True,
            env=clean,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "run folder (written)" in run("c2c", "simulate", "+experiment=c2cserve/main_job")
    assert "run folder (written)" in run("c2c", "simulate", "-m", *SMALL, "seed=0,1")
    assert "report:" in run("c2c", "reproduce", "figures=table1", "traces=none")
    assert (here / "runs" / "reproduce" / "quick" / "index.html").exists()
