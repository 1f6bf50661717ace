"""Policies of the user: Python files in `system/`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

from c2c.errors import PolicyError, SettingError

__all__ = ["code_in", "load_code", "settings_folder"]

_PATTERNS: Final = ("*.yaml", "*/*.yaml", "*/*/*.yaml")  # files of a settings folder
_MOST_VALUES: Final = 100_000  # values of a file: OmegaConf makes an object of each

_loaded: dict[Path, str] = {}  # files that were imported, with the digest of their content


def settings_folder(folder: str | Path, field: str) -> Path:
    """Return the resolved path of a user's folder.

    Raises:
      SettingError: no folder, or aliases in a file expand too much.
    """
    result = Path(folder).expanduser().resolve()
    if not result.is_dir():
        raise SettingError(field, str(folder), "a folder of settings")
    for file in (file for pattern in _PATTERNS for file in result.glob(pattern)):
        with contextlib.suppress(yaml.YAMLError, OSError):  # its reader reports the fault
            text = file.read_bytes()
            if b"&" in text and b"*" in text:
                loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
                if _values(yaml.compose(text, loader), {}) > _MOST_VALUES:
                    raise SettingError(
                        field, str(file), f"files of at most {_MOST_VALUES} values",
                        "An alias (*name) counts with all values that it repeats.",
                    )  # fmt: skip
    return result


def _values(node: Any, counts: dict[int, float]) -> float:
    if id(node) not in counts:
        counts[id(node)] = math.inf
        value = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for one in value for part in (one if isinstance(one, tuple) else (one,)))
        counts[id(node)] = 1.0 + sum(_values(part, counts) for part in parts)
    return counts[id(node)]


def code_in(folder: Path) -> tuple[Path, ...]:
    """Return the Python files in `system/`, sorted."""
    return tuple(sorted((folder / "system").glob("*.py")))


def load_code(files: Sequence[str | Path]) -> None:
    """Import files of policies; one may import another.

    If one has changed, all are imported again.

    Raises:
      SettingError: no file, or its name is no free Python name.
      PolicyError: an import fails.
    """
    paths = {path.stem: path for path in (Path(f).expanduser().resolve() for f in files)}
    for path in paths.values():
        _check(path)
    digests = {path: sha256(path.read_bytes()).hexdigest() for path in paths.values()}
    if all(_loaded.get(path) == digest for path, digest in digests.items()):
        return
    for name in paths:
        sys.modules.pop(name, None)
    with _found(paths):
        for name, path in paths.items():
            try:
                importlib.import_module(name)
            except Exception as error:
                for other in paths:
                    sys.modules.pop(other, None)
                if isinstance(error, PolicyError):
                    raise
                raise _refused(path, error, paths) from error
    _loaded.update(digests)


def _check(path: Path) -> None:
    if not path.is_file():
        raise SettingError("code", str(path), "a Python file")
    if not path.stem.isidentifier():
        raise SettingError("code", str(path), "a file whose name is a Python identifier")
    before: Any = sys.modules.get(path.stem) or importlib.util.find_spec(path.stem)
    if before is not None and path not in _loaded:
        raise SettingError("code", str(path), "a file whose name is no other module's")


class _Loader(SourceFileLoader):
    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError(f"no bytecode is kept of {path}")


class _Finder:
    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 (the import system's protocol)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if (file := self._paths.get(name)) is None:
            return None
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))


@contextlib.contextmanager
def _found(paths: Mapping[str, Path]) -> Iterator[None]:
    finder = _Finder(paths)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _refused(path: Path, error: Exception, paths: Mapping[str, Path]) -> PolicyError:
    files = {str(path) for path in paths.values()}
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if f.filename in files), None)
    name, where = (
        (Path(frame.filename).name, f"line {frame.lineno}: ") if frame else (path.name, "")
    )
    return PolicyError(name, f"{where}{type(error).__name__}: {str(error).rstrip('.')}")
