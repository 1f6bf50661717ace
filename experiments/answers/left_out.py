"""Kinds of fleets that do not serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.metrics import BINDS
from experiments.answers.fleets import Arm
from experiments.answers.points import Point
from experiments.answers.race import Standing, Trial

__all__ = ["left_out", "why", "why_lines", "why_table"]

HEADS: Final = ("kind that does not serve", "USD/h", "of requests", "on target %", "reason")


def left_out(
    arms: Sequence[Arm], standings: Mapping[int, Standing], points: Mapping[Trial, Point],
    serving: set[int],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row for each kind that does not serve, best first."""
    rows = []
    for k, standing in standings.items():
        if k in serving:
            continue
        runs = {t: p for t, p in points.items() if t.arm == k}
        if not runs:  # dearer with one chip than twice the answer
            rows.append(_row(k, arms[k], 1, out=standing.out))
            continue
        trial = max(runs, key=lambda t: (not runs[t].error, t.part, _met(runs[t]), -t.chips))
        # With the most chips, as more of the reason is not the lack of chips.
        last = max((t for t in runs if t.part == trial.part), key=lambda t: t.chips)
        verdict = runs[last].summary.get("verdict") or {}
        early = f"dearer than others on the first {standing.part:,} requests"
        rows.append(_row(
            k, arms[k], trial.chips, requests=trial.part, met=_met(runs[trial]),
            binds=verdict.get("binds"), text=verdict.get("text", []), out=standing.out or early,
            error=runs[trial].error or None,
        ))  # fmt: skip
    return sorted(rows, key=lambda row: (bool(row["error"]), -row["requests"], -row["met"]))


def _row(
    arm: int, kind: Arm, chips: int, *, out: str, requests: int = 0, met: float = 0.0,
    binds: str | None = None, text: Sequence[str] = (), error: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "arm": arm, "fleet": kind.with_chips(chips), "spoken": kind.spoken(chips),
        "chip": kind.chip, "layout": kind.layout,
        "system": " ".join(filter(None, (kind.system, kind.rest))), "chips": chips,
        "usd_per_hour": chips * kind.usd_per_hour, "requests": requests, "met": met,
        "binds": binds, "text": list(text), "out": out, "error": error,
    }  # fmt: skip


def why(row: Mapping[str, Any]) -> str:
    """Return the reason why a kind does not serve."""
    if row["error"]:
        return str(row["error"])
    return f"{row['out']}{f'; bottleneck: {BINDS[row["binds"]]}' if row['binds'] else ''}"


def why_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for the console."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for k, head in enumerate(HEADS):
        is_number = 0 < k < len(HEADS) - 1
        table.add_column(head, overflow="fold", justify="right" if is_number else "left",
                         no_wrap=is_number)  # fmt: skip
    for cells in _cells(rows):
        table.add_row(*cells)
    return table


def why_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows as lines of a Markdown table."""
    head = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    return [*head, *(f"| {' | '.join(cells)} |" for cells in _cells(rows))]


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        met = "" if row["error"] or not row["requests"] else f"{100 * row['met']:.2f}"
        yield (row["spoken"], f"{row['usd_per_hour']:.2f}", f"{row['requests']:,}", met, why(row))


def _met(point: Point) -> float:
    return float((point.summary.get("verdict") or {}).get("met") or 0.0)
