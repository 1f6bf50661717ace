"""Sets of mechanisms: validity, and members' Shapley values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import factorial

from c2c.config import build
from c2c.errors import SettingError
from experiments.papers.c2cserve.settings import composed

__all__ = ["refusal", "settings_of", "shapley", "subsets"]

type Set = frozenset[str]


def settings_of(names: Collection[str]) -> tuple[str, ...]:
    """Return the overrides that choose a set of mechanisms.

    >>> settings_of({"streamed", "kept"})
    ('system=composed', 'system/mechanism=[kept,streamed]')
    """
    return "system=composed", f"system/mechanism=[{','.join(sorted(names))}]"


def refusal(names: Collection[str], settings: Sequence[str] = ()) -> SettingError | None:
    """Return an invalid set's error, or None."""
    try:
        build(composed([*settings, *settings_of(names)], {"workload.requests": 1}))
    except SettingError as error:
        if not error.field.startswith("system"):
            raise
        return error
    return None


def subsets(names: Collection[str]) -> Iterator[Set]:
    """Yield every subset, small ones first."""
    ordered = sorted(names)
    for count in range(len(ordered) + 1):
        yield from map(frozenset, combinations(ordered, count))


def shapley(worth: Mapping[Set, float]) -> dict[str, float]:
    """Return each mechanism's Shapley value, its mean gain over all orders of adding mechanisms.

    >>> shapley({frozenset(): 0.0, frozenset("a"): 1.0, frozenset("ab"): 4.0})
    {'a': 2.5, 'b': 1.5}
    """
    names = sorted(frozenset().union(*worth))
    whole = {subset: worth[_largest(subset, worth)] for subset in subsets(names)}
    count = len(names)
    orders = [factorial(k) * factorial(count - k - 1) / factorial(count) for k in range(count)]
    return {
        name: sum(
            orders[len(subset)] * (whole[subset | {name}] - whole[subset])
            for subset in whole
            if name not in subset
        )
        for name in names
    }


def _largest(names: Set, worth: Mapping[Set, float]) -> Set:
    inside = [subset for subset in worth if subset <= names]
    largest = max(inside, key=len)
    if any(not subset <= largest for subset in inside):
        raise ValueError(f"{sorted(names)} has several largest sets that can work")
    return largest
