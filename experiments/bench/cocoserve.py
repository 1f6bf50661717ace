"""Planning time of layer replication, and each plan's share of the best speedup.

    python -m experiments.bench.cocoserve
    python -m experiments.bench.cocoserve layers=[160] room=[0.7,0.6,0.5] transition=0.01

The planners are Algorithm 1 by Eq. 4, Algorithm 1 by counted transitions, ours by runs of layers,
and an exact one. Writes JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.errors import SettingError
from c2c.systems.cocoserve import Estimate, Placement, by_runs, exact, scale_up, transitions
from c2c.systems.cocoserve.exact import MOST_DEVICES
from experiments.benchmark import MeasurementSettings, benchmark, measure_each

__all__ = ["CocoserveSettings", "main", "measure"]

TARGETS_S: Final = {"printed": 1e-3, "singly": 1e-3, "runs": 1e-3, "exact": 1.0}
"""Most seconds a plan, by planner, for 80 layers and four devices."""


@dataclass
class CocoserveSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      layers: numbers of layers; one model each.
      room: copies that each further device has room for, as a share of the layers.
      gamma: gamma of Eq. 4.
      transition: time of a transition as a share of an unscaled step.
      repeats: runs of each planner; their median counts.
    """

    layers: list[int] = field(default_factory=lambda: [20, 40, 80])
    room: list[float] = field(default_factory=lambda: [0.68, 0.6, 0.5])
    gamma: float = 0.1
    transition: float = 0.001
    repeats: int = 9


def measure(settings: CocoserveSettings, layers: int) -> list[dict[str, Any]]:
    """Return a row for each planner."""
    start = Placement.unscaled(layers)
    room = {d: round(share * layers) for d, share in enumerate(settings.room, 1)}
    by_eq_4, counted = Estimate.printed(settings.gamma), Estimate.counted(settings.transition)
    ways: dict[str, Callable[[], Placement]] = {
        "printed": lambda: scale_up(start, room, by_eq_4),
        "singly": lambda: scale_up(start, room, counted),
        "runs": lambda: by_runs(start, room, counted),
        "exact": lambda: exact(start, room, counted),
    }
    best = counted.of(ways["exact"]())
    rows = []
    for name, make in ways.items():
        seconds = []
        for _ in range(settings.repeats):
            begin = time.perf_counter()
            made = make()
            seconds.append(time.perf_counter() - begin)
        rows.append(
            {
                "layers": layers, "devices": len(room) + 1, "plan": name,
                "seconds": statistics.median(seconds), "target_s": TARGETS_S[name],
                "speedup": counted.of(made), "of_best": counted.of(made) / best,
                "transitions": transitions(made),
            }
        )  # fmt: skip
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="planning time on this machine", title_justify="left", box=SIMPLE_HEAD)
    heads = ("layers", "devices", "plan", "ms", "goal ms", "counted", "of the best", "transitions")
    for head in heads:
        table.add_column(head, justify="left" if head == "plan" else "right")
    for r in rows:
        table.add_row(
            f"{r['layers']}", f"{r['devices']}", r["plan"], f"{1e3 * r['seconds']:.3f}",
            f"{1e3 * r['target_s']:g}", f"{r['speedup']:.3f}", f"{r['of_best']:.1%}",
            f"{r['transitions']}",
        )  # fmt: skip
    return table


def _check(settings: CocoserveSettings) -> None:
    if not settings.layers or min(settings.layers) < 1:
        raise SettingError("layers", settings.layers, "whole numbers above 0")
    if not 1 <= len(settings.room) <= MOST_DEVICES or not all(0 <= r <= 1 for r in settings.room):
        raise SettingError("room", settings.room, f"one to {MOST_DEVICES} shares in [0, 1]")
    if settings.repeats < 1:
        raise SettingError("repeats", settings.repeats, "a whole number above 0")
    Estimate.printed(settings.gamma)
    if not 0 <= settings.transition < float("inf"):
        raise SettingError("transition", settings.transition, "a finite number, at least 0")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    work = measure_each(
        "models", lambda s: s.layers, measure, lambda _, rows: _table(rows), "cocoserve"
    )
    return benchmark(
        CocoserveSettings, arguments, work, check=_check, packages=("c2c.systems.cocoserve",),
        name="cocoserve",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
