"""Planning time of cuts of a receiver's operators.

    python -m experiments.bench.weaver
    python -m experiments.bench.weaver kernels=[1600] slack_us=-50

Steps have the numbers of kernels given, of random lengths between 2 and 1,600 microseconds. Writes
JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.errors import SettingError
from c2c.systems.weaver import (
    Cut,
    Limits,
    Threshold,
    best_cut,
    expected_stall,
    guarded_cut,
    printed_cut,
)
from experiments.benchmark import MeasurementSettings, benchmark, measure_each

__all__ = ["WeaverSettings", "main", "measure"]

TARGET_MS: Final = 5.0
"""Planned most milliseconds of a plan at 400 kernels."""


@dataclass
class WeaverSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      kernels: numbers of kernels of a receiver's step.
      slack_us: K - N.
      share: stall at which Algorithm 1 stops to split, as a share of the stall without cuts.
      seed: seed of the kernels' lengths.
      repeats: runs of each planner; their median counts.
    """

    kernels: list[int] = field(default_factory=lambda: [400])
    slack_us: float = 20.0
    share: float = 0.1
    seed: int = 0
    repeats: int = 9


def measure(settings: WeaverSettings, kernels: int) -> list[dict[str, Any]]:
    """Return a row for each planner."""
    drawn = np.random.default_rng(settings.seed).uniform(np.log(2e-6), np.log(1.6e-3), kernels)
    ops, slack = np.exp(drawn).tolist(), 1e-6 * settings.slack_us
    threshold = Threshold(seconds=settings.share * expected_stall(ops, slack))
    ways: dict[str, Callable[[], Cut]] = {
        "printed": lambda: printed_cut(ops, slack, threshold),
        "guarded": lambda: guarded_cut(ops, slack, threshold, Limits()),
        "ours": lambda: best_cut(ops, slack, layers=32, weight=0.1, limits=Limits()),
    }
    if slack <= 0:
        del ways["printed"]  # need not end
    rows = []
    for name, make in ways.items():
        seconds = []
        for _ in range(settings.repeats):
            begin = time.perf_counter()
            made = make()
            seconds.append(time.perf_counter() - begin)
        rows.append(
            {
                "kernels": kernels, "plan": name, "ms": 1e3 * statistics.median(seconds),
                "goal_ms": TARGET_MS, "splits": made.splits,
                "stall": expected_stall(made.lengths, slack) / expected_stall(ops, slack),
            }
        )  # fmt: skip
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="planning time on this machine", title_justify="left", box=SIMPLE_HEAD)
    for head in ("kernels", "plan", "ms", "goal ms", "splits", "stall left"):
        table.add_column(head, justify="left" if head == "plan" else "right")
    for r in rows:
        table.add_row(
            f"{r['kernels']}", r["plan"], f"{r['ms']:.3f}", f"{r['goal_ms']:g}", f"{r['splits']}",
            f"{r['stall']:.1%}",
        )  # fmt: skip
    return table


def _check(settings: WeaverSettings) -> None:
    if not settings.kernels or min(settings.kernels) < 1:
        raise SettingError("kernels", settings.kernels, "whole numbers above 0")
    if not abs(settings.slack_us) < float("inf"):
        raise SettingError("slack_us", settings.slack_us, "a finite number")
    if not 0 < settings.share <= 1:
        raise SettingError("share", settings.share, "a share above 0, at most 1")
    if settings.seed < 0:
        raise SettingError("seed", settings.seed, "a whole number from 0")
    if settings.repeats < 1:
        raise SettingError("repeats", settings.repeats, "a whole number above 0")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    work = measure_each(
        "steps", lambda s: s.kernels, measure, lambda _, rows: _table(rows), "weaver"
    )
    return benchmark(
        WeaverSettings, arguments, work, check=_check, packages=("c2c.systems.weaver",),
        name="weaver",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
