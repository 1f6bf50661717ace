"""Race of fleets: successive halving to the cheapest kinds within the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from experiments.answers.fleets import Arm

__all__ = ["Outcome", "Standing", "Trial", "parts_of", "race"]

_LEAST = 300  # requests of a part
# Each round finds the fewest chips of each kind; after each part the dearer half is out.
_SHARES = (16, 4)  # of the requests, one over these; then all
_STEP = 1.5  # largest ratio of prices of the fleets that run in a round
_ALIKE = 0.02  # relative difference of results that are alike
DEAR, SAME = "dearer than others that serve", "more chips change nothing"


@dataclass(frozen=True, slots=True)
class Trial:
    """Run of the race: arm, chips, `part` in requests, seed."""

    arm: int
    chips: int
    part: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run: targets met or missed, or the error of invalid settings.

    Attributes:
      latencies: those that more chips might lower.
      error: of invalid settings, or "".
    """

    meets: bool
    missed: int = 0
    latencies: tuple[float, ...] = ()
    error: str = ""

    def is_like(self, other: Outcome) -> bool:
        """Return whether two numbers of chips have equal results, but for chance."""
        if self.error or other.error:
            return self.error == other.error
        pairs = zip(
            (self.missed, *self.latencies), (other.missed, *other.latencies), strict=True
        )  # fmt: skip
        return bool(self.latencies) and all(math.isclose(a, b, rel_tol=_ALIKE) for a, b in pairs)


@dataclass(slots=True)
class Standing:
    """Standing of an arm in a part: most failing chips, fewest serving ones."""

    part: int
    start: int
    fails: int = 0
    serves: float = math.inf
    out: str = ""
    last: Outcome | None = None
    tried: set[int] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """True if no number of chips is untried."""
        return bool(self.out) or self.serves == self.fails + 1


def parts_of(requests: int) -> tuple[int, ...]:
    """Return the sizes of a race's parts, in requests.

    >>> parts_of(16_000), parts_of(1500), parts_of(200)
    ((1000, 4000, 16000), (375, 1500), (200,))
    """
    return (*(requests // n for n in _SHARES if requests // n >= _LEAST), requests)


def race(
    arms: Sequence[Arm],
    parts: Sequence[int],
    serve: Callable[[Sequence[Trial]], Sequence[Outcome]],
    *,
    seeds: Sequence[int],
    most: int = 64,
    keep: int = 4,
    within: float = 2.0,
    named: Sequence[Sequence[int]] = (),
    may_miss: float = 0.0,
    standings: dict[int, Standing] | None = None,
) -> dict[int, Standing]:
    """Return each arm's standing in its last part."""
    standings = {} if standings is None else standings
    always = {arm for group in named for arm in group}

    def settle(starts: Mapping[int, int], part: int, limit: float) -> None:
        mine = {arm: Standing(part=part, start=chips) for arm, chips in starts.items()}
        standings.update(mine)
        _settle(mine, arms, serve, seeds if part == parts[-1] else seeds[:1],
                most=most, within=limit, always=always if part == parts[0] else set())  # fmt: skip

    def price(arm: int) -> float:
        return _restart(standings[arm]) * arms[arm].usd_per_hour

    starts = dict.fromkeys(range(len(arms)), 1)
    for part in parts:
        settle(starts, part, within)
        serving = {a: int(standings[a].serves) for a in starts if standings[a].serves < math.inf}
        order = sorted(serving, key=lambda a: (serving[a] * arms[a].usd_per_hour, a))
        starts = {arm: serving[arm] for arm in order[: max(keep, math.ceil(len(order) / 2))]}

    def whole(some: Iterable[int]) -> list[float]:
        return [
            standings[a].serves * arms[a].usd_per_hour for a in some
            if standings[a].part == parts[-1] and standings[a].serves < math.inf
        ]  # fmt: skip

    def again(some: Iterable[int], limit: float = math.inf) -> dict[int, int]:
        may = [a for a in some if _may_serve(standings[a], parts, may_miss) and price(a) <= limit]
        return {a: _restart(standings[a]) for a in sorted(may, key=price)}

    if not whole(standings):
        settle(again(standings), parts[-1], within)
    elif late := again(
        (
            a
            for a, one in standings.items()
            if one.part < parts[-1] and (one.serves < math.inf or one.out == DEAR)
        ),
        min(whole(standings)) * (1 + 1e-9),
    ):
        settle(late, parts[-1], within)
    for group in named:
        if not whole(group) and (rest := again(group)):
            settle(again(group, price(next(iter(rest))) * (1 + 1e-9)), parts[-1], math.inf)
    return standings


def _may_serve(standing: Standing, parts: Sequence[int], may_miss: float) -> bool:
    if standing.out == DEAR:
        return True
    last = standing.last if standing.serves == math.inf else None
    return standing.part < parts[-1] and (
        last is None or (not last.error and last.missed <= may_miss)
    )


def _restart(standing: Standing) -> int:
    if standing.serves < math.inf:
        return int(standing.serves)
    return standing.fails + 1 if standing.out == DEAR else 1


def _settle(
    standings: dict[int, Standing],
    arms: Sequence[Arm],
    serve: Callable[[Sequence[Trial]], Sequence[Outcome]],
    seeds: Sequence[int],
    *,
    most: int,
    within: float,
    always: Set[int],
) -> None:
    while True:
        pairs: list[tuple[int, int]] = []
        for arm, standing in standings.items():
            limit = min(most, within * _best(standings, arms) / arms[arm].usd_per_hour + 1e-9)
            if arm in always and not standing.tried:
                limit = max(1.0, limit)
            chips = None if standing.is_settled else _next(standing, int(limit))
            if chips is not None:
                pairs.append((arm, chips))
            elif not standing.is_settled:
                standing.out = f"fails up to advise.most={most}" if limit >= most else DEAR
        if not pairs:
            return
        cost = {pair: pair[1] * arms[pair[0]].usd_per_hour for pair in pairs}
        pairs = [pair for pair in pairs if cost[pair] <= _STEP * min(cost.values())]
        fails = _first_failures(standings, pairs, serve, seeds)
        for arm, chips in pairs:
            standing, failure = standings[arm], fails.get((arm, chips))
            standing.tried.add(chips)
            if failure is None:
                standing.serves = min(standing.serves, chips)
            elif chips > standing.fails:
                if standing.last and standing.serves == math.inf and failure.is_like(standing.last):
                    standing.out = failure.error or SAME
                standing.fails, standing.last = chips, failure


def _first_failures(
    standings: dict[int, Standing],
    fleets: Sequence[tuple[int, int]],
    serve: Callable[[Sequence[Trial]], Sequence[Outcome]],
    seeds: Sequence[int],
) -> dict[tuple[int, int], Outcome]:
    fails: dict[tuple[int, int], Outcome] = {}
    for some in (seeds[:1], seeds[1:2], seeds[2:]):
        trials = [
            Trial(arm, chips, standings[arm].part, seed)
            for arm, chips in fleets if (arm, chips) not in fails for seed in some
        ]  # fmt: skip
        for trial, outcome in zip(trials, serve(trials) if trials else (), strict=True):
            if not outcome.meets:
                fails.setdefault((trial.arm, trial.chips), outcome)
    return fails


def _best(standings: dict[int, Standing], arms: Sequence[Arm]) -> float:
    return min((s.serves * arms[a].usd_per_hour for a, s in standings.items()), default=math.inf)


def _next(standing: Standing, limit: int) -> int | None:
    low = standing.fails + 1
    if standing.serves < math.inf:
        if not standing.fails and standing.serves == standing.start > 1:
            return int(standing.serves) - 1  # a larger part seldom needs fewer chips
        return (standing.fails + int(standing.serves)) // 2
    if low > limit:
        return None
    return min(limit, standing.start if not standing.tried else 2 * standing.fails)
