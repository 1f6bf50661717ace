"""The tiers of a test that runs for many values of its parameters."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["tiered"]


def tiered(values: Iterable[Any], *quick: Any, slow: int | None = None) -> list[Any]:
    """Return values of a parameter; `make test` runs `quick` (the first one), the others are slow.

    A tuple is a value for each of several parameters. With `slow` only so many of the others, drawn
    once, are slow; the rest is for `make soak`.
    """
    given = list(values)
    quick = quick or (given[0],)
    assert all(value in given for value in quick), f"{quick}: not all are among {given}"
    others = [value for value in given if value not in quick]
    drawn = others if slow is None else random.Random(0).sample(others, slow)
    return [v if v in quick else _marked(v, is_slow=v in drawn) for v in given]


def _marked(value: Any, *, is_slow: bool) -> Any:
    several = value if type(value) is tuple else (value,)
    return pytest.param(*several, marks=pytest.mark.slow if is_slow else pytest.mark.soak)
