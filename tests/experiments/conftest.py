"""Shared parts of tests of commands: Ray, which is installed beside."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest


@pytest.fixture
def ray_installed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts import Ray; skips where there is none."""
    if PathFinder.find_spec("ray") is not None:  # which another test's import does not hide
        return
    beside = repository / ".venv-ray"
    if not beside.is_dir():
        pytest.skip("Ray is not installed: make ray")
    monkeypatch.setattr(sys, "path", [*sys.path, str(beside)])
    before = os.environ.get("PYTHONPATH")
    paths = [before, str(beside)] if before else [str(beside)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
