"""Faults put into the kernels, one at a time, are noticed by the tests that run on a CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PACKAGE = "pallas_kernels"
FILES = (
    *("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/compilations.py"),
    "tests/tiers.py",
)
# Minutes, so a part of `make soak`: run it when a kernel's tests are made cheaper.
FAULTS = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text("utf-8"))


@pytest.fixture
def copied(repository: Path, tmp_path: Path) -> Path:
    """A copy of the package and its tests, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in (PACKAGE, f"tests/{PACKAGE}"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=ignored)
    for file in FILES:
        if (repository / file).exists():
            shutil.copy(repository / file, tmp_path / file)
    limits = tmp_path / "tests/pallas_kernels/interpreting.py"
    text = limits.read_text("utf-8")
    assert "SECONDS = 90.0" in text
    limits.write_text(text.replace("SECONDS = 90.0", "SECONDS = 40.0"), "utf-8")
    return tmp_path


def run(folder: Path, tests: str, chosen: str) -> subprocess.CompletedProcess[str]:
    """Run some tests of the copy until one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, f"tests/{PACKAGE}/{tests}", "-k", chosen],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_every_fault_can_be_put(repository: Path) -> None:
    for fault in FAULTS:
        text = (repository / PACKAGE / fault["file"]).read_text("utf-8")
        assert fault["before"] in text, f"{fault['file']} has changed: {fault['fault']}"
        assert fault["before"] != fault["after"]


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["fault"])
def test_a_fault_is_found(fault: dict[str, str], copied: Path) -> None:
    source = copied / PACKAGE / fault["file"]
    text = source.read_text("utf-8")
    source.write_text(text.replace(fault["before"], fault["after"]), "utf-8")
    done = run(copied, fault["tests"], fault["chosen"])
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "FAILED" in done.stdout or "no result after" in done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tests", "chosen"), sorted({(fault["tests"], fault["chosen"]) for fault in FAULTS})
)
def test_the_same_tests_pass_without(tests: str, chosen: str, copied: Path) -> None:
    done = run(copied, tests, chosen)
    assert done.returncode == 0, done.stdout[-2000:]
