"""Records of a sweep's points."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from c2c.runs import write_json

# Files, since a launcher may run points on other machines and lose their return values.
__all__ = ["PointRecord", "begin", "fail", "finish", "records"]

type State = Literal["begun", "made", "kept", "elsewhere", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """State of a point.

    Attributes:
      state: `begun` (or killed), `made`, `kept` (complete before), `elsewhere` or `failed`.
      key: of the run's inputs, if it is elsewhere.
      error: in one line; "" for none.
    """

    number: int
    overrides: tuple[str, ...]
    at: Path
    state: State = "begun"
    folder: Path | None = None
    key: str = ""
    error: str = ""


def begin(sweep: Path, number: int, overrides: Sequence[str]) -> PointRecord:
    """Record a point's start."""
    return _written(PointRecord(number=number, overrides=tuple(overrides), at=sweep))


def finish(point: PointRecord, state: State, folder: Path, key: str = "") -> PointRecord:
    """Record the folder of a point's result."""
    return _written(replace(point, state=state, folder=folder.resolve(), key=key))


def fail(point: PointRecord, error: str, folder: Path | None = None) -> PointRecord:
    """Record the error of a point without a result."""
    return _written(replace(point, state="failed", error=error, folder=folder))


def records(sweep: Path) -> dict[int, PointRecord]:
    """Return a sweep's begun points, by number."""
    result = {}
    for path in sorted(_folder(sweep).glob("*.json")):
        point = _read(json.loads(path.read_text(encoding="utf-8")), sweep)
        result[point.number] = point
    return result


def _written(point: PointRecord) -> PointRecord:
    write_json(
        _folder(point.at) / f"{point.number}.json",
        asdict(point) | {"at": str(point.at), "folder": point.folder and str(point.folder)},
    )
    return point


def _read(plain: dict[str, Any], sweep: Path) -> PointRecord:
    folder = plain["folder"]
    return PointRecord(
        **plain
        | {
            "at": sweep,
            "overrides": tuple(plain["overrides"]),
            "folder": None if folder is None else Path(folder),
        }
    )


def _folder(sweep: Path) -> Path:
    return sweep / "points"
