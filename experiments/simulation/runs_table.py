"""Table of several runs."""

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
from experiments.tables import Name, print_line, print_table, short_names

__all__ = ["print_runs", "print_sweep"]

# Heading, column, factor, digits.
_SHOWN = (
    ("TTFT p50 s", "ttft_p50_s", 1.0, 3),
    ("TTFT p99 s", "ttft_p99_s", 1.0, 3),
    ("TPOT p50 ms", "tpot_p50_s", 1e3, 1),
    ("TPOT p99 ms", "tpot_p99_s", 1e3, 1),
    ("SLO %", "attainment_both", 100.0, 1),
    ("goodput/s", "goodput_rps", 1.0, 3),
)
_STATES = {"complete": "", "failed": "error", "kept": "skipped", "elsewhere": "made elsewhere"}


def print_sweep(out: Console, points: Sequence[PointRecord]) -> None:
    """Print a line a point, with a column a varying override."""
    shared = set.intersection(*(set(point.overrides) for point in points))
    varying = [dict(o.partition("=")[::2] for o in p.overrides if o not in shared) for p in points]
    point_runs = [
        _of_point(point, " ".join(f"{k}={v}" for k, v in values.items()))
        for point, values in zip(points, varying, strict=True)
    ]
    states = [
        run.status if run.status != "complete" else _STATES.get(point.state, "")
        for point, run in zip(points, point_runs, strict=True)
    ]
    print_runs(out, tidy(point_runs), title="sweep", settings=varying, states=states)
    by_auto = {run.summary["run"].get("layout") for run in point_runs if _is_auto(run)}
    if len(by_auto) > 1:
        line = "mig is chosen by a rule for each system (mig=auto); mig=planned gives each its best"
        print_line(out, line)
    seeds: dict[tuple[str, ...], list[FoundRun]] = {}
    for point, run in zip(points, point_runs, strict=True):
        seeds.setdefault(tuple(o for o in point.overrides if not _is_seed(o)), []).append(run)
    alike = [runs for runs in seeds.values() if len(runs) > 1 and _are_equal(runs)]
    if alike:
        count_text = f"{len(alike)} of {len(seeds)}"
        print_line(out, f"equal runs for all seeds: {count_text} settings, as nothing is drawn")


def print_runs(
    out: Console,
    table: pa.Table,
    *,
    title: str,
    settings: Sequence[Mapping[str, Any]] | None = None,
    states: Sequence[str] | None = None,
) -> None:
    """Print a table of `c2c.runs.tidy`, then errors."""
    rows = table.to_pylist()
    if settings is None:
        columns = sorted(settings_columns(table), key=lambda name: not name.endswith(".name"))
        rows.sort(key=lambda row: [_place(row[c]) for c in columns])
        settings = [{c.removesuffix(".name"): row[c] for c in columns} for row in rows]
    settings = _with_layout(settings, [row["layout"] for row in rows])
    if not any(settings):
        settings = [{"run": row["run"] or "all alike"} for row in rows]
    words = [_STATES.get(state, state) for state in states or [row["status"] for row in rows]]
    names = list(dict.fromkeys(name for values in settings for name in values))
    short = short_names(names)

    def draw(without: frozenset[str]) -> Table:
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
        numbers = [one for one in _SHOWN if one[0] not in without]
        for name in names:
            shown.add_column(escape(short[name]), no_wrap=True, vertical="bottom")
        for heading, *_ in numbers:
            shown.add_column(
                heading.replace(" ", "\n", 1), justify="right", no_wrap=True, vertical="bottom"
            )
        for heading in ["load", ""] if any(words) else ["load"]:
            shown.add_column(heading, no_wrap=True, vertical="bottom")
        for row, values, state in zip(rows, settings, words, strict=True):
            is_complete = row["status"] == "complete"
            load = f"{row['verdict'] or '-'}{f' ({row["binds"]})' if row['binds'] else ''}"
            shown.add_row(
                *(Name(str(values.get(name, ""))) for name in names),
                *(_number(row.get(c), f, d) if is_complete else "" for _, c, f, d in numbers),
                load if is_complete else "",
                *([state] if any(words) else []),
            )
        return shown

    print_table(out, draw, spare=("goodput/s", "TPOT p50 ms", "TTFT p50 s"))
    for row, values in zip(rows, settings, strict=True):
        if row["error"]:
            name = " ".join(f"{k}={v}" for k, v in values.items())
            print_line(out, f"{name}: {row['error']}")


def _place(value: Any) -> tuple[float, str]:
    is_number = isinstance(value, int | float)
    return (value, "") if is_number else (float("inf"), "" if value is None else str(value))


def _with_layout(
    settings: Sequence[Mapping[str, Any]], layouts: Sequence[str | None]
) -> list[Mapping[str, Any]]:
    if len({layout for layout in layouts if layout}) < 2:
        return list(settings)
    words = [str(values.get("mig", "")) for values in settings]
    rows = [
        {**values, "mig": layout or word}
        for values, layout, word in zip(settings, layouts, words, strict=True)
    ]
    labels: list[Mapping[str, Any]] = list(rows)
    for k, word in enumerate(words):
        if word and rows.count(one := rows[k]) > 1:
            labels[k] = {**one, "mig": f"{one['mig']} ({word})"}
    return labels


def _is_auto(run: FoundRun) -> bool:
    return run.status == "complete" and run.settings.get("mig.name") == "auto"


def _is_seed(override: str) -> bool:
    return override.lstrip("+").startswith("seed=")


def _are_equal(runs: Sequence[FoundRun]) -> bool:
    fields = [
        {k: v for k, v in summary_fields(run.summary).items() if not k.endswith("seed")}
        for run in runs
    ]
    return bool(fields[0]) and all(entry == fields[0] for entry in fields)


def _of_point(point: PointRecord, name: str) -> FoundRun:
    result = read_run(point.folder, name) if point.folder else None
    if result is None or point.state == "failed":
        return FoundRun(run=name, status="failed", error=point.error, settings={}, summary={})
    return result


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"
