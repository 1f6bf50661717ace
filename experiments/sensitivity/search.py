"""The smallest change of one number that makes a missed claim agree, found by search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from c2c.errors import DataError, SettingError
from experiments.claims import Result, claim, compare
from experiments.sensitivity.knobs import Knob, changed

__all__ = ["LIMIT", "Change", "Search", "Wanted"]

LIMIT: Final = 16.0  # factors beyond it are not tried
LADDER: Final = (1.25, 1.6, 2.0, 4.0, 8.0, LIMIT)  # both ways, from near to far
HALVINGS: Final = 5  # of the interval in which the answer changes
ENOUGH: Final = 3  # numbers that would do; farther ones are not looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A number is multiplied by `factor`, and the claim agrees with what comes out then."""

    knob: str
    factor: float
    before: float
    after: float

    @property
    def distance(self) -> float:
        """Its distance, the same for a half and for the double."""
        return abs(math.log(self.factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A missed claim: what we have, and the smallest change of each number that would give it.

    `changes` has the smallest first, at most one a number; none: no single number does within
    `LIMIT`. `tried`: how many numbers; `matter`: how many of them change the result.
    """

    claim_id: str
    ours: object
    changes: tuple[Change, ...]
    tried: int
    matter: int


@dataclass(slots=True)
class _Walk:
    """Progress of scaling a number one way."""

    knob: Knob
    side: int  # 1 above 1, -1 below it
    reached: float = 1.0
    open: bool = True


@dataclass(slots=True)
class Search:
    """Scales numbers one at a time; what was computed once is not computed again.

    Attributes:
      compute: the results, from the settings as they are at that moment.
      knobs: what is scaled.
      done: takes the number of computations so far.
    """

    compute: Callable[[], Iterable[Result]]
    knobs: Sequence[Knob]
    done: Callable[[int], None] | None = None
    _seen: dict[tuple[str, float], dict[str, Result] | None] = field(default_factory=dict)

    def missed(self) -> list[Wanted]:
        """Return every claim that does not agree, with what it would take."""
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
        """Go one rung farther; return a change if the claim agrees on the way there."""
        factor = min(size if walk.side > 0 else 1.0 / size, walk.knob.most)
        if factor == walk.reached:
            walk.open = False
            return None
        there = self._result(walk.knob, factor, ours.claim_id)
        if there is None:
            walk.open = False  # not allowed, nor what lies beyond
            return None
        near, walk.reached = walk.reached, factor
        if not _agrees(there) and _side(there) == _side(ours):
            return None
        walk.open = False
        return self._between(walk.knob, ours, near, factor)

    def _between(self, knob: Knob, ours: Result, near: float, far: float) -> Change | None:
        """Halve the interval in which the claim begins to agree, or is jumped over."""
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
        """Return our results with a number scaled, None where the settings refuse it."""
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
    """Return the outermost factors: a number that matters nowhere does not matter there."""
    return (1.0 / LIMIT, min(LIMIT, knob.most))


def _may_cross(ours: Result, there: Result | None) -> bool:
    """Return whether the claim may come to agree on the way to the outermost factor.

    A number moves one way only as another one grows (`tests/experiments/sensitivity` asks it of
    every constant and rate), so that one which neither agrees there nor lies on the other side has
    not been passed. Of what is no number, or is refused there, all of the way is looked at.
    """
    if there is None or _side(ours) == 0:
        return True
    return _agrees(there) or _side(there) != _side(ours)


def _agrees(result: Result) -> bool:
    return compare(claim(result.claim_id), result).agrees


def _side(result: Result) -> int:
    """Return 1 above the printed number, -1 below; 0 where it is no single number."""
    printed = claim(result.claim_id).value
    if isinstance(printed, bool) or not isinstance(printed, int | float):
        return 0
    return 1 if float(result.ours) > printed else -1


def _same(ours: Result, there: Result | None) -> bool:
    return there is not None and repr(there.ours) == repr(ours.ours)
