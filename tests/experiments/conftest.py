"""Shared parts of tests of commands: Ray, which is installed beside."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture
def ray_installed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts import Ray; skips where there is none."""
    if find_spec("ray") is not None:
        return
    beside = repository / ".venv-ray"
    if not beside.is_dir():
        pytest.skip("Ray is not installed: make ray")
    monkeypatch.setattr(sys, "path", [*sys.path, str(beside)])
    before = os.environ.get("PYTHONPATH")
    paths = [before, str(beside)] if before else [str(beside)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
