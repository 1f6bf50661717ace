"""The two tiers of a test that runs for many values of its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["tiered"]


def tiered(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return values of a parameter; `make test` runs `quick` (the first one), the others are slow.

    A tuple is a value for each of several parameters.
    """
    given = list(values)
    quick = quick or (given[0],)
    assert all(value in given for value in quick), f"{quick}: not all are among {given}"
    return [v if v in quick else _slow(v) for v in given]


def _slow(value: Any) -> Any:
    several = value if type(value) is tuple else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)
