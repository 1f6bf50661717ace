"""Content keys, so that no stale result is reused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from c2c.errors import SettingError

__all__ = ["content_key", "file_key", "plain", "source_key"]

SOURCE_SUFFIXES = frozenset({".py", ".yaml", ".yml", ".json"})


def content_key(
    config: Mapping[str, Any],
    *,
    packages: Sequence[str] | Mapping[str, str] = (),
    files: Iterable[Path] | Mapping[Path, str] = (),
    ignore: Sequence[str] = (),
) -> str:
    """Return the SHA-256 of configuration, code and data.

    Args:
      config: in any order of keys.
      packages: packages and modules, or their `source_key` by name.
      files: data files and folders, or their `file_key` by path; contents count.
      ignore: top-level keys of `config` without effect.
    """
    inputs = {k: v for k, v in config.items() if k not in ignore}
    parts = {
        "config": plain(inputs),
        "code": dict(packages)
        if isinstance(packages, Mapping)
        else {name: source_key(name) for name in packages},
        # A list, so that two files of one name in different folders both count.
        "files": sorted(
            (path.name, files[path] if isinstance(files, Mapping) else file_key(path))
            for path in files
        ),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def file_key(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's data and source files.

    Raises:
      SettingError: no such path.
    """
    if path.is_dir():
        return _tree_key(path)
    if not path.is_file():
        raise SettingError("path", str(path), "a file that exists")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_key(package: str) -> str:
    """Return the SHA-256 of a package's or module's source and data files.

    Raises:
      SettingError: it cannot be imported.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise SettingError("package", package, "a package or module that can be imported")
    if spec.submodule_search_locations:
        return _tree_key(Path(next(iter(spec.submodule_search_locations))))
    return file_key(Path(str(spec.origin)))


def plain(value: Any) -> Any:
    """Return a value as plain data of JSON and YAML.

    Raises:
      SettingError: it has no such form.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, Sequence):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    raise SettingError("config", value, "numbers, strings, lists and mappings of them")


def _tree_key(folder: Path) -> str:
    total, begin = hashlib.sha256(), len(str(folder)) + 1
    files = (  # in a tenth of pathlib's time
        f"{inner}{os.sep}{name}"[begin:].replace(os.sep, "/")
        for inner, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1] in SOURCE_SUFFIXES  # noqa: PTH122
    )
    for name in sorted(files, key=lambda name: name.split("/")):
        path = f"{folder}/{name}"
        if os.path.isfile(path):  # noqa: PTH113
            total.update(name.encode() + b"\0")
            with open(path, "rb") as file:  # noqa: PTH123
                total.update(hashlib.file_digest(file, "sha256").hexdigest().encode())
    return total.hexdigest()
