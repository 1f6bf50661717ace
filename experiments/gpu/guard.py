"""Check of a results folder, so that only files of this program are replaced."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.gpu.files import read_parquet
from experiments.gpu.sections import SECTIONS

__all__ = ["why_not"]

LINES = frozenset({"begin", "interrupt", "finish", "run"})  # keys in a section's parts.jsonl


def why_not(folder: Path, archive: Path | None = None) -> str:
    """Return why a device's results cannot be kept in the folder; "" if they can.

    Args:
      folder: folder of one device; it may hold results of earlier runs.
      archive: file that results are packed into; None for no archive.
    """
    for where in (folder, *([archive.parent] if archive else [])):
        if problem := _unwritable(where):
            return problem
    taken = [str(path) for path in _written(folder) if path.exists() and not _is_ours(path)]
    if archive is not None and archive.exists() and not _is_pack(archive, folder.name):
        taken.append(str(archive))
    if taken:
        return f"{', '.join(taken)}: expected to be absent or results of this program"
    return ""


def _unwritable(folder: Path) -> str:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{folder}: expected a folder; {there} is none"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"\0")
    except OSError as error:
        return f"{folder}: expected a folder that can be written ({error.strerror})"
    return ""


def _written(folder: Path) -> Iterator[Path]:
    yield from (folder / "summary.json", folder / "summary.md")
    for name in SECTIONS:
        yield from (folder / name / f"{name}.parquet", folder / name / "parts.jsonl")


def _is_ours(path: Path) -> bool:
    try:
        if path.suffix == ".parquet":
            return "runs" in read_parquet(path)[1]
        if path.name == "parts.jsonl":
            first = (path.read_text("utf-8").splitlines() or ['{"begin": ""}'])[0]
            return bool(LINES.intersection(json.loads(first)))
        # summary.md is written together with summary.json
        summary = json.loads((path.parent / "summary.json").read_text("utf-8"))
        return isinstance(summary, dict) and {"findings", "coverage", "runs"} <= summary.keys()
    except (OSError, ValueError, AttributeError):
        return False


def _is_pack(archive: Path, name: str) -> bool:
    try:
        with tarfile.open(archive) as packed:
            first = packed.next()
            return first is not None and first.name.split("/")[0] == name
    except (OSError, tarfile.TarError):
        return False
