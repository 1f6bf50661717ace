"""Ownership of files in a run folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from c2c.errors import DataError

__all__ = [
    "CRASH",
    "DONE",
    "FORMAT",
    "HEADER",
    "JOURNAL",
    "LOCK",
    "OWN",
    "check_format",
    "foreign_files",
    "is_inside",
    "own_files",
    "partials",
]

FORMAT = 1
"""Format of a run folder, in its DONE; a DONE without a number is of format 1."""
DONE = "DONE"
CRASH = "crash.json"
LOCK = ".lock"
# Names of all results that a run began, so that a killed run can be cleared. The first line
# distinguishes it from a user's file of the same name.
JOURNAL = ".results"
HEADER = "# results of a c2c run, a name a line"
# Files of a run folder beside results.
OWN = frozenset({DONE, CRASH, JOURNAL, LOCK, "provenance.json", "config.yaml"})

_PARTIAL = re.compile(r"\.(.+)\.[^.]+\.partial", re.DOTALL)


def own_files(root: Path) -> frozenset[str]:
    """Return names of files that a run may replace: in its journal, DONE or `OWN`."""
    results = _of_journal(root) | _of_done(root)
    return results | OWN if results else frozenset()


def check_format(root: Path) -> None:
    """Raise for a finished run of another format."""
    version = _done(root).get("format", FORMAT)
    if version != FORMAT:
        raise DataError(
            str(root / DONE),
            f"a run folder of format {str(version)[:40]}, this version reads format {FORMAT}",
        )


def foreign_files(root: Path, own: frozenset[str]) -> list[str]:
    """Return foreign names; a foreign folder counts once."""
    inner = {str(parent) for name in own for parent in Path(name).parents}
    result: list[str] = []
    _look(root, "", own, inner, result)
    return result


def partials(root: Path, own: frozenset[str]) -> list[Path]:
    """Return a run's unfinished files (`.NAME.*.partial`)."""
    folders = {Path(), *(Path(name).parent for name in own)}
    return [
        path
        for folder in sorted(folders)
        if (root / folder).is_dir()
        for path in sorted((root / folder).glob(".*.partial"))
        if _is_partial(path, str(folder), own)
    ]


def is_inside(name: str) -> bool:
    """Return whether a name stays in its folder."""
    return bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts


def _look(root: Path, folder: str, own: frozenset[str], inner: set[str], names: list[str]) -> None:
    for path in sorted((root / folder).iterdir()):
        name = path.relative_to(root).as_posix()
        if name in own or (name == LOCK and _is_empty(path)):
            continue
        if path.is_dir() and not path.is_symlink():
            if name in inner:
                _look(root, name, own, inner, names)
                continue
            if own_files(path):  # the folder of another run
                continue
        if not _is_partial(path, folder, own):
            names.append(name)


def _is_partial(path: Path, folder: str, own: frozenset[str]) -> bool:
    match = _PARTIAL.fullmatch(path.name)
    # The journal's partial file counts too: the journal is the first file of a run.
    return match is not None and (
        match[1] == JOURNAL or (Path(folder) / match[1]).as_posix() in own
    )


def _is_empty(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == 0


def _of_journal(root: Path) -> frozenset[str]:
    lines = _text(root / JOURNAL).splitlines()
    return _names([JOURNAL, *lines[1:]]) if lines[:1] == [HEADER] else frozenset()


def _of_done(root: Path) -> frozenset[str]:
    done = _done(root)
    if not isinstance(done.get("results"), dict):
        return frozenset()
    match = re.fullmatch("[0-9a-f]{64}", str(done.get("key")))
    return _names([DONE, *done["results"]]) if match else frozenset()


def _done(root: Path) -> dict[str, Any]:
    try:
        document = json.loads(_text(root / DONE) or "null")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if is_inside(name))


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")
