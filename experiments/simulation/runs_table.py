"""Table of several runs, after a sweep or of any folder, from one reading of the folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from c2c.runs import FoundRun, read_run, settings_columns, summary_fields, tidy
from experiments.sweeping import PointRecord

__all__ = ["print_runs", "print_sweep"]

# Heading, column, factor, digits.
_SHOWN = (
    ("TTFT p50 s", "ttft_p50_s", 1.0, 3),
    ("p99 s", "ttft_p99_s", 1.0, 3),
    ("TPOT p50 ms", "tpot_p50_s", 1e3, 1),
    ("p99 ms", "tpot_p99_s", 1e3, 1),
    ("SLO %", "attainment_both", 100.0, 1),
    ("goodput/s", "goodput_rps", 1.0, 3),
)
_STATES = {"complete": "", "failed": "error", "kept": "skipped", "elsewhere": "made elsewhere"}


def print_sweep(out: Console, points: Sequence[PointRecord]) -> None:
    """Print a line for each point of a sweep, named by the overrides in which points differ."""
    shared = set.intersection(*(set(point.overrides) for point in points))
    names = [" ".join(o for o in p.overrides if o not in shared) or "all alike" for p in points]
    found = [_of_point(point, name) for point, name in zip(points, names, strict=True)]
    states = [
        run.status if run.status != "complete" else _STATES.get(point.state, "")
        for point, run in zip(points, found, strict=True)
    ]
    print_runs(out, tidy(found), title="sweep", names=names, states=states)
    seeds: dict[tuple[str, ...], list[FoundRun]] = {}
    for point, run in zip(points, found, strict=True):
        seeds.setdefault(tuple(o for o in point.overrides if not _is_seed(o)), []).append(run)
    alike = [runs for runs in seeds.values() if len(runs) > 1 and _are_equal(runs)]
    if alike:
        out.print(
            f"equal runs for all seeds: {len(alike)} of {len(seeds)} settings, as nothing is drawn",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def print_runs(
    out: Console,
    table: pa.Table,
    *,
    title: str,
    names: Sequence[str] | None = None,
    states: Sequence[str] | None = None,
) -> None:
    """Print a table of `c2c.runs.tidy`, a line a run, then the errors of runs without a result.

    Args:
      out: console to print on.
      table: the runs.
      title: title of the table.
      names: names of the runs; None names them by the settings in which they differ.
      states: texts of the last column; None for the status of each run.
    """
    rows = table.to_pylist()
    columns = settings_columns(table)
    names = names or [_name(row, columns) for row in rows]
    states = states or [row["status"] for row in rows]
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    shown.add_column("point", overflow="fold")
    for heading, *_ in _SHOWN:
        shown.add_column(heading, justify="right", overflow="fold")
    shown.add_column("load", overflow="fold")
    shown.add_column("", overflow="fold")
    for row, name, state in zip(rows, names, states, strict=True):
        values = (_number(row.get(column), f, d) for _, column, f, d in _SHOWN)
        empty = row["status"] != "complete"
        told = _STATES.get(state, state)
        load = f"{row['verdict'] or '-'}{f' ({row["binds"]})' if row['binds'] else ''}"
        shown.add_row(escape(name), *([""] * len(_SHOWN) if empty else values),
                      "" if empty else load, told)  # fmt: skip
    out.print(shown)
    for row, name in zip(rows, names, strict=True):
        if row["error"]:
            out.print(f"{name}: {row['error']}", markup=False, soft_wrap=True)


def _is_seed(override: str) -> bool:
    return override.lstrip("+").startswith("seed=")


def _are_equal(runs: Sequence[FoundRun]) -> bool:
    fields = [
        {k: v for k, v in summary_fields(run.summary).items() if not k.endswith("seed")}
        for run in runs
    ]
    return bool(fields[0]) and all(each == fields[0] for each in fields)


def _of_point(point: PointRecord, name: str) -> FoundRun:
    found = read_run(point.folder, name) if point.folder else None
    if found is None or point.state == "failed":
        return FoundRun(run=name, status="failed", error=point.error, settings={}, summary={})
    return found


def _name(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    told = [f"{column.removesuffix('.name')}={row[column]}" for column in columns]
    return " ".join(told) or str(row["run"])


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"
