"""The most a fleet serves within its targets: a bisection for each seed, with common randomness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from c2c.config import RunSetup
from c2c.runs import summary_fields
from experiments.answers.bisection import Bracket, bracket_of, next_values
from experiments.answers.interval import Interval, interval_of
from experiments.answers.points import Point, PointRunner, needs_compiling
from experiments.answers.quantity import Quantity, with_value

__all__ = ["Capacity", "Tried", "find_capacity", "tried_table"]

# Columns of the table beside the quantity: as in c2c.runs.collect.
_FIELDS = (
    "attainment_both", "attainment_ttft", "attainment_tpot", "ttft_p50_s", "ttft_p99_s",
    "tpot_p50_s", "tpot_p99_s", "goodput_rps", "failed", "requests",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One run: how much, of which seed, and whether it met the targets."""

    seed: int
    value: float
    meets: bool
    point: Point

    @property
    def binds(self) -> str | None:
        """The bottleneck."""
        found: str | None = (self.point.summary.get("verdict") or {}).get("binds")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Answer of a search: a bracket of each seed, and all runs.

    Attributes:
      quantity: of what.
      seeds: of the runs.
      brackets: of each seed.
      tried: all runs.
    """

    quantity: Quantity
    seeds: tuple[int, ...]
    brackets: tuple[Bracket, ...]
    tried: tuple[Tried, ...] = field(repr=False)

    @property
    def met(self) -> list[float]:
        """The hardest value that met the targets, of the seeds that have one."""
        return [b.met for b in self.brackets if b.met is not None]

    @property
    def interval(self) -> Interval | None:
        """The mean over seeds and its confidence; None where a seed has no value."""
        return interval_of(self.met) if len(self.met) == len(self.seeds) else None

    @property
    def sure(self) -> float | None:
        """The value that met the targets with every seed."""
        if len(self.met) < len(self.seeds):
            return None
        return min(self.met) if self.quantity.more_is_harder else max(self.met)

    @property
    def is_open(self) -> bool:
        """True if a seed met its targets as far as was looked."""
        return any(b.missed is None for b in self.brackets)

    @property
    def binds(self) -> str | None:
        """The most frequent bottleneck at the first value that was too hard."""
        found = [
            one.binds
            for seed, bracket in zip(self.seeds, self.brackets, strict=True)
            for one in self.tried
            if one.seed == seed and one.value == bracket.missed and one.binds
        ]
        return max(sorted(set(found)), key=found.count) if found else None


def find_capacity(
    setup: RunSetup,
    settings: Mapping[str, Any],
    quantity: Quantity,
    *,
    seeds: Sequence[int],
    tolerance: float,
    workers: int,
    on_point: Callable[[Tried], None],
) -> Capacity:
    """Try values for each seed until its bracket is narrow; points run in parallel processes.

    A value meets the targets if at least `slo.attainment` of its requests met both of theirs and
    no queue grew without end. One that cannot be set up (models that do not fit) does not.

    Args:
      setup: where the search begins, checked.
      settings: of it, for points.
      quantity: what to vary.
      seeds: of the workload; each has a capacity of its own.
      tolerance: see `next_values`.
      workers: processes.
      on_point: is told of each run.
    """
    tried: list[Tried] = []
    ahead = max(1, workers // len(seeds))
    with PointRunner(workers) as runner:
        under_way: dict[int, int] = {}

        def begin(seed: int) -> None:
            known = {one.value: one.meets for one in tried if one.seed == seed}
            values = next_values(quantity, known, tolerance, ahead)
            under_way[seed] = len(values)
            for value in values:
                runner.ask((seed, value), with_value(settings, quantity, value, seed))

        left = list(seeds)
        for seed in [left.pop(0)] if needs_compiling(setup) else list(seeds):
            begin(seed)
            left = [s for s in left if s != seed]
        for (seed, value), point in runner.done():
            tried.append(Tried(seed=seed, value=value, meets=_meets(point), point=point))
            on_point(tried[-1])
            under_way[seed] -= 1
            if under_way[seed] == 0:
                begin(seed)
            while left:
                begin(left.pop(0))
    by_seed = [{t.value: t.meets for t in tried if t.seed == seed} for seed in seeds]
    return Capacity(
        quantity=quantity,
        seeds=tuple(seeds),
        brackets=tuple(bracket_of(quantity, known) for known in by_seed),
        tried=tuple(sorted(tried, key=lambda t: (seeds.index(t.seed), t.value))),
    )


def tried_table(capacity: Capacity) -> pa.Table:
    """Return the runs as a table, a row each, by seed and value."""
    rows = []
    for one in capacity.tried:
        fields = summary_fields(one.point.summary)
        verdict = one.point.summary.get("verdict") or {}
        rows.append(
            {
                "seed": one.seed,
                capacity.quantity.name: one.value,
                "meets": one.meets,
                **{name: fields.get(name) for name in _FIELDS},
                "verdict": verdict.get("state"),
                "binds": one.binds,
                "run": one.point.folder and one.point.folder.name,
                "error": one.point.error or None,
            }
        )
    return pa.Table.from_pylist(rows)


def _meets(point: Point) -> bool:
    return (point.summary.get("verdict") or {}).get("state") == "served"
