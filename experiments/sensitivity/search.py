"""Search for the smallest change of one number with which a missed claim agrees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from c2c.errors import DataError, SettingError
from experiments.claims import Result, claim, compare
from experiments.sensitivity.knobs import Knob, changed

__all__ = ["LIMIT", "Change", "Search", "Wanted"]

LIMIT: Final = 16.0  # largest factor tried, and its inverse the smallest
LADDER: Final = (1.25, 1.6, 2.0, 4.0, 8.0, LIMIT)  # factors tried in order, and their inverses
HALVINGS: Final = 5  # bisections of the interval in which the answer changes
ENOUGH: Final = 3  # numbers that mend a claim, after which the search stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A factor of one number with which the claim agrees."""

    knob: str
    factor: float
    before: float
    after: float

    @property
    def distance(self) -> float:
        """Absolute logarithm of the factor, equal for half and double."""
        return abs(math.log(self.factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A missed claim, our value, and the smallest change of each number that mends it.

    `changes` are sorted by distance, at most one per number; empty if no single number suffices
    within `LIMIT`. `tried` counts the numbers scaled, `matter` those that change the result.
    """

    claim_id: str
    ours: object
    changes: tuple[Change, ...]
    tried: int
    matter: int


@dataclass(slots=True)
class _Walk:
    """Progress of scaling a number in one direction."""

    knob: Knob
    side: int  # 1: factors above 1; -1: below 1
    reached: float = 1.0  # last factor tried
    open: bool = True  # whether farther factors are still to be tried


@dataclass(slots=True)
class Search:
    """Search over factors of one number at a time; results are cached by number and factor.

    Attributes:
      compute: function that computes the results from the current settings.
      knobs: numbers to scale.
      done: function called with the number of computations so far; None: no progress.
    """

    compute: Callable[[], Iterable[Result]]
    knobs: Sequence[Knob]
    done: Callable[[int], None] | None = None
    _seen: dict[tuple[str, float], dict[str, Result] | None] = field(default_factory=dict)

    def missed(self) -> list[Wanted]:
        """Return every claim that does not agree, with the changes that mend it."""
        base = self._at(None, 1.0)
        assert base is not None
        return [self._wanted(base[name]) for name in base if not _agrees(base[name])]

    def _wanted(self, ours: Result) -> Wanted:
        matter = 0
        walks: list[_Walk] = []
        for knob in self.knobs:
            ends = [(f, self._result(knob, f, ours.claim_id)) for f in _ends(knob)]
            if all(_same(ours, there) for _, there in ends):
                continue
            matter += 1
            walks += [
                _Walk(knob=knob, side=1 if factor > 1.0 else -1)
                for factor, there in ends
                if factor != 1.0 and _may_cross(ours, there)
            ]
        nearest: dict[str, Change] = {}
        for size in LADDER:
            for walk in walks:
                if walk.open and (change := self._go_on(walk, ours, size)) is not None:
                    known = nearest.get(change.knob)
                    if known is None or change.distance < known.distance:
                        nearest[change.knob] = change
            if len(nearest) >= ENOUGH:
                break
        return Wanted(
            claim_id=ours.claim_id,
            ours=ours.ours,
            changes=tuple(sorted(nearest.values(), key=lambda c: (c.distance, c.knob))),
            tried=len(self.knobs),
            matter=matter,
        )

    def _go_on(self, walk: _Walk, ours: Result, size: float) -> Change | None:
        """Try the next factor; return a change if the claim agrees up to there."""
        factor = min(size if walk.side > 0 else 1.0 / size, walk.knob.most)
        if factor == walk.reached:
            walk.open = False
            return None
        there = self._result(walk.knob, factor, ours.claim_id)
        if there is None:
            walk.open = False  # neither this factor nor farther ones are valid
            return None
        near, walk.reached = walk.reached, factor
        if not _agrees(there) and _side(there) == _side(ours):
            return None
        walk.open = False
        return self._between(walk.knob, ours, near, factor)

    def _between(self, knob: Knob, ours: Result, near: float, far: float) -> Change | None:
        """Bisect the interval for the smallest change that agrees; None if it is jumped over."""
        hit = None
        there = self._result(knob, far, ours.claim_id)
        if there is not None and _agrees(there):
            hit = far
        for _ in range(HALVINGS):
            middle = math.sqrt(near * far)
            there = self._result(knob, middle, ours.claim_id)
            if there is not None and (_agrees(there) or _side(there) != _side(ours)):
                far = middle
                hit = middle if _agrees(there) else hit
            else:
                near = middle
        if hit is None:
            return None
        return Change(knob=knob.name, factor=hit, before=knob.value, after=knob.value * hit)

    def _result(self, knob: Knob, factor: float, claim_id: str) -> Result | None:
        found = self._at(knob, factor)
        return None if found is None else found.get(claim_id)

    def _at(self, knob: Knob | None, factor: float) -> dict[str, Result] | None:
        """Return our results with a number scaled; None if the settings refuse it."""
        key = ("" if knob is None else knob.name, float(f"{factor:.9g}"))
        if key not in self._seen:
            if knob is None:
                found = {r.claim_id: r for r in self.compute()}
            else:
                try:
                    with changed(knob, factor):
                        found = {r.claim_id: r for r in self.compute()}
                except (SettingError, DataError):
                    found = None
            self._seen[key] = found
            if self.done is not None:
                self.done(len(self._seen))
        return self._seen[key]


def _ends(knob: Knob) -> tuple[float, float]:
    """Return the outermost factors; a number without effect there has none anywhere."""
    return (1.0 / LIMIT, min(LIMIT, knob.most))


def _may_cross(ours: Result, there: Result | None) -> bool:
    """Return whether the claim may agree at some factor up to the outermost one.

    Results are monotone in each number (`tests/experiments/sensitivity` checks every constant and
    rate). So a result that, at the outermost factor, neither agrees nor is on the other side of the
    printed number agrees nowhere before. If the result is no number, or is refused there, all
    factors are tried.
    """
    if there is None or _side(ours) == 0:
        return True
    return _agrees(there) or _side(there) != _side(ours)


def _agrees(result: Result) -> bool:
    return compare(claim(result.claim_id), result).agrees


def _side(result: Result) -> int:
    """Return 1 if ours is above the printed number, else -1; 0 if it is no single number."""
    printed = claim(result.claim_id).value
    if isinstance(printed, bool) or not isinstance(printed, int | float):
        return 0
    return 1 if float(result.ours) > printed else -1


def _same(ours: Result, there: Result | None) -> bool:
    return there is not None and repr(there.ours) == repr(ours.ours)
