"""Policies of the user's own: Python files beside their settings.

A folder given with `--config-dir` (or `load(folder=...)`) may hold `system/mine.yaml` and, beside
it, `system/mine.py` with the policies that it names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from c2c.errors import PolicyError, SettingError

__all__ = ["code_in", "load_code"]


def code_in(folder: Path) -> tuple[Path, ...]:
    """Return the Python files that a folder of settings brings."""
    return tuple(sorted((folder / "system").glob("*.py")))


def load_code(files: Sequence[str | Path]) -> None:
    """Import files, so that the policies in them can be named in settings; once a process.

    Raises:
      SettingError: no such file, or its name is that of another module.
      PolicyError: the file cannot be imported.
    """
    for file in files:
        path = Path(file).expanduser().resolve()
        if not path.is_file():
            raise SettingError("code", str(file), "a Python file")
        before = sys.modules.get(path.stem)
        if before is not None:
            if Path(getattr(before, "__file__", None) or "").resolve() == path:
                continue
            raise SettingError("code", str(file), "a file whose name is not that of another module")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[path.stem]
            raise PolicyError(path.name, f"{type(error).__name__}: {error}") from error
