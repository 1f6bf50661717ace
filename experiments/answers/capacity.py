"""Capacity of a fleet within its targets."""

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

# Columns of the table beside the quantity, named as in c2c.runs.collect.
_FIELDS = (
    "attainment_both", "attainment_ttft", "attainment_tpot", "ttft_p50_s", "ttft_p99_s",
    "tpot_p50_s", "tpot_p99_s", "goodput_rps", "failed", "requests",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A run: seed, value, and whether within targets."""

    seed: int
    value: float
    meets: bool
    point: Point

    @property
    def binds(self) -> str | None:
        """Bottleneck of the run, None if unknown."""
        result: str | None = (self.point.summary.get("verdict") or {}).get("binds")
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Answer of a search: one bracket a seed, and all runs.

    Attributes:
      quantity: the searched one.
      brackets: of each seed.
    """

    quantity: Quantity
    seeds: tuple[int, ...]
    brackets: tuple[Bracket, ...]
    tried: tuple[Tried, ...] = field(repr=False)

    @property
    def met(self) -> list[float]:
        """Hardest value within targets, for each seed with one."""
        return [b.met for b in self.brackets if b.met is not None]

    @property
    def interval(self) -> Interval | None:
        """Mean over seeds with its confidence interval, or None."""
        return interval_of(self.met) if len(self.met) == len(self.seeds) else None

    @property
    def sure(self) -> float | None:
        """Hardest value within targets for every seed, or None."""
        if len(self.met) < len(self.seeds):
            return None
        return min(self.met) if self.quantity.more_is_harder else max(self.met)

    @property
    def is_open(self) -> bool:
        """True if a seed met its targets at all values."""
        return any(b.missed is None for b in self.brackets)

    @property
    def binds(self) -> str | None:
        """Most frequent bottleneck at the easiest missing value."""
        limits = [
            one.binds
            for seed, bracket in zip(self.seeds, self.brackets, strict=True)
            for one in self.tried
            if one.seed == seed and one.value == bracket.missed and one.binds
        ]
        return max(sorted(set(limits)), key=limits.count) if limits else None


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
    """Bisect the quantity for each seed, in parallel processes."""
    tried: list[Tried] = []
    ahead = max(1, workers // len(seeds))
    with PointRunner(workers) as runner:
        under_way: dict[int, int] = {}

        def begin(seed: int) -> None:
            meets_of = {one.value: one.meets for one in tried if one.seed == seed}
            values = next_values(quantity, meets_of, tolerance, ahead)
            under_way[seed] = len(values)
            for value in values:
                runner.ask((seed, value), with_value(settings, quantity, value, seed))

        queue = list(seeds)
        for seed in [queue.pop(0)] if needs_compiling(setup) else list(seeds):
            begin(seed)
            queue = [s for s in queue if s != seed]
        for (seed, value), point in runner.done():
            tried.append(Tried(seed=seed, value=value, meets=_meets(point), point=point))
            on_point(tried[-1])
            under_way[seed] -= 1
            if under_way[seed] == 0:
                begin(seed)
            while queue:
                begin(queue.pop(0))
    by_seed = [{t.value: t.meets for t in tried if t.seed == seed} for seed in seeds]
    return Capacity(
        quantity=quantity,
        seeds=tuple(seeds),
        brackets=tuple(bracket_of(quantity, meets_of) for meets_of in by_seed),
        tried=tuple(sorted(tried, key=lambda t: (seeds.index(t.seed), t.value))),
    )


def tried_table(capacity: Capacity) -> pa.Table:
    """Return a table of runs, sorted by seed and value."""
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
