"""Printed tables of prediction errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.measured.compare import Comparison, errors_by
from experiments.measured.eager_engines import EagerTime
from experiments.measured.errors import Error, error_of
from experiments.measured.open_loop import FIGURES, OpenRun
from experiments.measured.standing_table import group_errors
from experiments.near_runs import RunError

__all__ = ["eager_table", "engine_table", "op_table", "open_table", "unseen_table"]

BOUND = "all with a bound"
_ERRORS = ("rows", "med", "p90", "bias")


def op_table(rows: list[Comparison]) -> Table:
    """Return errors by chip, operation and size, and of bound rows."""
    table = _table("predicted against measured, errors in percent", ("chip", "operation", "size"))
    by_size = errors_by(rows, "chip", "op", "size")
    bound = errors_by([r for r in rows if r.is_bound], "chip", "op")
    for chip, op in dict.fromkeys(key[:2] for key in sorted(by_size)):
        keys = [key for key in sorted(by_size) if key[:2] == (chip, op)]
        for _, _, size in keys:
            table.add_row(chip, op, size, *_cells(by_size[chip, op, size]))
        if (chip, op) in bound and len(keys) > 1:
            cells = _cells(bound[chip, op])
            table.add_row(chip, op, BOUND, *cells, style="bold")
        table.add_section()
    return table


def engine_table(errors: Sequence[RunError]) -> Table:
    """Return errors of whole engines, fitted and held-out apart."""
    table = Table(
        title="engines in closed loops, replayed: median and p90 of errors in percent",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for head in ("by", "group", "runs", "TPOT", "TTFT", "tokens/s"):
        table.add_column(head, justify="left" if head in ("by", "group") else "right")
    for half in (False, True):
        table.add_row("held out" if half else "fitted", "", "", "", "", "", style="bold")
        some = [e for e in errors if e.held_out == half]
        for (grouping, name), values in group_errors(some).items():
            sizes = [100 * np.abs(values[figure]) for figure in ("tpot", "ttft", "tokens_s")]
            cells = [
                f"{np.median(size):.1f} {np.quantile(size, 0.9):.0f}" if len(size) else "-"
                for size in sizes
            ]
            table.add_row(grouping, name, str(len(sizes[0])), *cells)
    return table


def eager_table(rows: Sequence[EagerTime]) -> Table:
    """Return errors of engines that launch kernels one by one, by engine, chip and time."""
    groups: dict[tuple[str, str, str], list[EagerTime]] = {}
    for row in rows:
        groups.setdefault((row.engine, row.chip, row.what), []).append(row)
    table = Table(
        title="engines without CUDA graphs, times of one request and of steps",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for head in ("engine", "chip", "time", *_ERRORS):
        table.add_column(head, justify="right" if head in _ERRORS else "left", no_wrap=True)
    for key, group in groups.items():
        ours, measured = (
            np.array([getattr(r, n) for r in group]) for n in ("ours_s", "measured_s")
        )
        table.add_row(*key, *_numbers(error_of(ours, measured)))
    return table


def unseen_table(errors: Mapping[tuple[str, str], Error | None]) -> Table:
    """Return the errors of chips treated as unmeasured."""
    table = Table(
        title="each chip as if unmeasured: datasheet values and the other chips' constants",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for head in ("chip", "operation", *_ERRORS):
        is_name = head not in _ERRORS
        table.add_column(head, justify="left" if is_name else "right", no_wrap=True)
    for (chip, op), error in errors.items():
        table.add_row(chip, op, *_numbers(error))
    return table


def open_table(runs: Sequence[tuple[OpenRun, Mapping[str, float]]]) -> Table:
    """Return a table of Poisson runs: measured and replayed figures, errors."""
    table = Table(
        title="engines under Poisson arrivals, replayed: measured, ours, error in percent",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for head in ("chip", "engine", "req/s", "figure", "measured", "ours", "error"):
        is_name = head in ("chip", "engine", "figure")
        table.add_column(head, justify="left" if is_name else "right", no_wrap=True)
    for run, ours in runs:
        for name in FIGURES:
            measured, value = run.figures[name], ours[name]
            error = f"{100 * (value / measured - 1):+.1f}"
            names = (run.platform, run.engine, f"{run.rate_rps:g}", name)
            table.add_row(*names, f"{measured:.5g}", f"{value:.5g}", error)
        table.add_section()
    return table


def _table(title: str, names: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for half in ("fit", "held"):
        for head in _ERRORS:
            first = half if head == _ERRORS[0] else ""
            table.add_column(f"{first}\n{head}", justify="right", no_wrap=True)
    return table


def _cells(errors: tuple[Error | None, Error | None]) -> list[str]:
    return [cell for error in errors for cell in _numbers(error)]


def _numbers(error: Error | None) -> list[str]:
    if error is None:
        return ["-"] * len(_ERRORS)
    return [
        str(error.count), f"{100 * error.median:.1f}", f"{100 * error.p90:.1f}",
        f"{100 * error.bias:+.1f}",
    ]  # fmt: skip
