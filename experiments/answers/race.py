"""Race of fleets: successive halving to the cheapest kinds of fleet that meet the targets.

Each round finds the smallest number of chips of each kind on a growing part of the requests.
After each part the dearer half of the kinds is out.
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
    """Run that the race asks for: index of the arm, chips, `part` in requests, and seed."""

    arm: int
    chips: int
    part: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run: targets met or missed, or the error of invalid settings."""

    meets: bool
    error: str = ""


@dataclass(slots=True)
class Standing:
    """Standing of an arm within a part: the most chips that fail, and the fewest that serve.

    `out` is the reason why the arm is out of the race. `error` is that of the last number of chips
    tried; more chips may work.
    """

    start: int
    fails: int = 0
    serves: float = math.inf
    out: str = ""
    error: str = ""
    tried: set[int] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """True if no number of chips is left to try."""
        return bool(self.out) or self.serves == self.fails + 1


def parts_of(requests: int) -> tuple[int, ...]:
    """Return the sizes of a race's parts, in requests.

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
    """Return the standing of each arm that reached the last part.

    An arm is out if its next number of chips costs more than `within` times the cheapest fleet that
    serves. A fleet is assumed to serve whatever a smaller one of its kind serves.

    Args:
      arms: kinds of fleets.
      parts: sizes of the parts in requests, ascending.
      serve: function that runs trials; equal trials have equal outcomes.
      seeds: seeds of the last part, with each of which a fleet must meet the targets. Earlier parts
        use the first one.
      most: largest number of chips of a fleet.
      keep: smallest number of arms that stay in after a part.
      within: largest price of a fleet that is still sized, as a multiple of the cheapest.
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
    """Find each arm's smallest number of chips, in rounds of trials of all arms."""
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
            return int(standing.serves) - 1  # a larger part seldom needs fewer chips
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
