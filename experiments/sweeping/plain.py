"""Sweeps of commands whose settings are one dataclass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from experiments.sweeping.arguments import SWEEP_FLAGS, grid

__all__ = ["Point", "joined", "plain_points"]

_FILES: Final = ("out", "write")  # settings that name a result, of which each point has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a sweep: settings, and differing ones as text."""

    settings: Any
    varied: dict[str, str]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.varied.items())


def plain_points(arguments: Sequence[str], read: Callable[[Sequence[str]], Any]) -> list[Point]:
    """Return the points of a command line with -m."""
    parser = OverridesParser.create()
    rows = [
        {one.key_or_group: json.dumps(one.value()) for one in parser.parse_overrides([*point])}
        for point in grid([a for a in arguments if a not in SWEEP_FLAGS])
    ]
    varied = [name for name in rows[0] if len({point[name] for point in rows}) > 1]
    points = []
    for number, values in enumerate(rows):
        settings = read([f"{name}={value}" for name, value in values.items()])
        for name in _FILES:
            if name not in varied and (text := getattr(settings, name, None)):
                path = Path(text)
                setattr(settings, name, str(path.with_stem(f"{path.stem}_{number}")))
        value_of = {name: values[name].replace('"', "") for name in varied}
        points.append(Point(settings=settings, varied=value_of))
    return points


def joined(points: Sequence[Point], tables: Sequence[Table | None]) -> Table:
    """Return all points' rows, with the settings that differ."""
    heads = {c.header: c for table in tables if table for c in table.columns}
    result = Table(title="all points", title_justify="left", box=SIMPLE_HEAD)
    for name in points[0].varied:
        result.add_column(name, no_wrap=True)
    for column in heads.values():
        result.add_column(column.header, justify=column.justify, no_wrap=True)
    for point, table in zip(points, tables, strict=True):
        for row in _rows(table) if table else [{}]:
            result.add_row(
                *map(escape, point.varied.values()), *(row.get(head, "") for head in heads)
            )
    return result


def _rows(table: Table) -> Iterator[dict[Any, Any]]:
    names = [column.header for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        yield dict(zip(names, cells, strict=True))
