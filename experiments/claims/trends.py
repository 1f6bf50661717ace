"""Trend predicates of the claims: "increasing in N", "< sym", "~= sym", "asym < sym"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from c2c.errors import SettingError

__all__ = ["TIE", "predicate_holds"]

TIE = 0.2  # "~=" holds within this relative difference
# Ties between neighbours of a computed series count as neither rise nor fall.
_FLAT = 1e-9

_MONOTONE = re.compile(r"^(?:monotone )?(increasing|decreasing|non-decreasing|non-increasing) in ")
_FASTER = re.compile(r"^(increasing|decreasing) (faster|slower) than (\w+)$")
_ORDER = re.compile(r"^(\w+)?\s*(<=|>=|~=|<|>)\s*(\w+)\b(?: \(.*\))?$")


def predicate_holds(predicate: str, key: str, ours: Mapping[str, Any]) -> bool:
    """Return whether a printed predicate, such as "< sym", holds for our values by name.

    >>> predicate_holds("< sym", "asym", {"asym": 4.0, "sym": 16.4})
    True
    >>> predicate_holds("increasing in N", "tflops", {"tflops": [1, 2, 2, 3]})
    True
    """
    mine = ours.get(key)
    if isinstance(mine, bool):
        return mine
    if match := _MONOTONE.match(predicate):
        return _monotone(_series(mine, key), match[1])
    if match := _FASTER.match(predicate):
        return _faster(_series(mine, key), _series(ours.get(match[3]), match[3]), match)
    if match := _ORDER.match(predicate):
        left, sign, right = match.groups()
        values = mine if isinstance(mine, Mapping) else ours
        first = values.get(left) if left else mine
        second = float(right) if right.isdigit() else values.get(right)
        if not isinstance(first, int | float) or not isinstance(second, int | float):
            raise SettingError(f"ours.{key}", ours, f"numbers to check {predicate!r}")
        return _compare(first, sign, second)
    raise SettingError(f"ours.{key}", mine, f"True or False, as {predicate!r} has no known form")


def _series(values: Any, key: str) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) < 2:
        raise SettingError(f"ours.{key}", values, "a series of at least two numbers")
    return [float(v) for v in values]


def _monotone(values: list[float], direction: str) -> bool:
    falls = direction.endswith("decreasing") and direction != "non-decreasing"
    falls = falls or direction == "non-increasing"
    signed = [-v if falls else v for v in values]
    scale = max(abs(v) for v in signed) or 1.0
    never_back = all(b >= a - _FLAT * scale for a, b in pairwise(signed))
    strict = not direction.startswith("non-")
    return never_back and (not strict or signed[-1] > signed[0] + _FLAT * scale)


def _faster(mine: list[float], other: list[float], match: re.Match[str]) -> bool:
    change, reference = mine[-1] / mine[0] - 1, other[-1] / other[0] - 1
    right_way = change > 0 if match[1] == "increasing" else change < 0
    faster = abs(change) > abs(reference)
    return right_way and faster == (match[2] == "faster")


def _compare(first: float, sign: str, second: float) -> bool:
    if sign == "~=":
        return abs(first - second) <= TIE * max(abs(first), abs(second))
    answers = {
        "<": first < second,
        ">": first > second,
        "<=": first <= second,
        ">=": first >= second,
    }
    return answers[sign]
