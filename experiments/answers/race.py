"""A race of fleets: the smallest number of chips of each kind that meets the targets.

It runs over a growing part of the requests. After each part the dearer half of the kinds is out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from experiments.answers.fleets import Arm

__all__ = ["Outcome", "Standing", "Trial", "parts_of", "race"]

_LEAST = 300  # requests of a part
_SHARES = (16, 4, 1)


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that is asked for: `arm` of those that race, `part` in requests."""

    arm: int
    chips: int
    part: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run's outcome: targets met or not, or the error of a run that cannot be."""

    meets: bool
    error: str = ""


@dataclass(slots=True)
class Standing:
    """An arm's standing within a part: the most chips that fail, the fewest that serve.

    `out` says why it is out of the race; `error` is that of the last number of chips, which more
    may mend.
    """

    start: int
    fails: int = 0
    serves: float = math.inf
    out: str = ""
    error: str = ""
    tried: set[int] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """True if nothing is left to try."""
        return bool(self.out) or self.serves == self.fails + 1


def parts_of(requests: int) -> tuple[int, ...]:
    """Return the parts of a workload that a race runs over.

    >>> parts_of(16_000), parts_of(200)
    ((1000, 4000, 16000), (200,))
    """
    return tuple(sorted({min(requests, max(_LEAST, requests // n)) for n in _SHARES}))


def race(
    arms: Sequence[Arm],
    parts: Sequence[int],
    serve: Callable[[Sequence[Trial]], Sequence[Outcome]],
    *,
    seeds: Sequence[int],
    most: int = 64,
    keep: int = 4,
    within: float = 2.0,
) -> dict[int, Standing]:
    """Return where each arm stands that came to the last part.

    An arm whose next number of chips costs more than `within` times the cheapest that serves is
    out. More chips are taken to serve whatever fewer do.

    Args:
      arms: kinds of fleets.
      parts: requests, growing.
      serve: runs trials; the same trial has the same outcome.
      seeds: of the last part, on each of which a fleet must meet the targets; the first is that of
        the parts before.
      most: chips.
      keep: arms that stay in at least.
      within: fleets up to so many times as dear as the best are told apart.
    """
    starts = dict.fromkeys(range(len(arms)), 1)
    standings: dict[int, Standing] = {}
    for part in parts:
        is_last = part == parts[-1]
        standings = {arm: Standing(start=chips) for arm, chips in starts.items()}
        _settle(
            standings, arms, part, serve, seeds if is_last else seeds[:1],
            most=most, within=within,
        )  # fmt: skip
        serving = {a: int(s.serves) for a, s in standings.items() if s.serves < math.inf}
        order = sorted(serving, key=lambda a: (serving[a] * arms[a].usd_per_hour, a))
        starts = {arm: serving[arm] for arm in order[: max(keep, math.ceil(len(order) / 2))]}
        if not starts:
            break
    return standings


def _settle(
    standings: dict[int, Standing],
    arms: Sequence[Arm],
    part: int,
    serve: Callable[[Sequence[Trial]], Sequence[Outcome]],
    seeds: Sequence[int],
    *,
    most: int,
    within: float,
) -> None:
    """Find each arm's smallest number of chips, a round of trials of all arms at a time."""
    while True:
        asked = []
        for arm, standing in standings.items():
            limit = min(most, within * _best(standings, arms) / arms[arm].usd_per_hour + 1e-9)
            chips = None if standing.is_settled else _next(standing, int(limit))
            if chips is None and not standing.is_settled:
                dear = "dearer than others that serve"
                standing.out = standing.error or (f"{most} chips fail" if limit >= most else dear)
            if chips is not None:
                asked += [Trial(arm, chips, part, seed) for seed in seeds]
        if not asked:
            return
        for arm, chips, found in _by_arm(asked, serve(asked)):
            standing = standings[arm]
            standing.tried.add(chips)
            standing.error = next((o.error for o in found if o.error), "")
            if all(o.meets for o in found):
                standing.serves = min(standing.serves, chips)
            else:
                standing.fails = max(standing.fails, chips)


def _best(standings: dict[int, Standing], arms: Sequence[Arm]) -> float:
    """Return the price of the cheapest fleet that serves, in US dollars an hour."""
    return min((s.serves * arms[a].usd_per_hour for a, s in standings.items()), default=math.inf)


def _next(standing: Standing, limit: int) -> int | None:
    """Return the number of chips to try next; None if all up to the limit fail."""
    low = standing.fails + 1
    if standing.serves < math.inf:
        if not standing.fails and standing.serves == standing.start > 1:
            return int(standing.serves) - 1  # what served a part is seldom too much for more of it
        return (standing.fails + int(standing.serves)) // 2
    if low > limit:
        return None
    return min(limit, standing.start if not standing.tried else 2 * standing.fails)


def _by_arm(
    asked: Sequence[Trial], found: Sequence[Outcome]
) -> Iterable[tuple[int, int, list[Outcome]]]:
    grouped: dict[tuple[int, int], list[Outcome]] = {}
    for trial, outcome in zip(asked, found, strict=True):
        grouped.setdefault((trial.arm, trial.chips), []).append(outcome)
    return ((arm, chips, outcomes) for (arm, chips), outcomes in grouped.items())
