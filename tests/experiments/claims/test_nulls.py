"""Null models beside the counts, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.claims import Claim, Result, Row, compare
from experiments.claims.nulls import beside


def row(number: int, printed: Any, ours: Any, unit: str = "x", qualifier: str = "") -> Row:
    item = Claim(
        id=f"s.c{number}", system="c2cserve", where="§1", says="", metric="m", value=printed,
        unit=unit, kind="ratio", how="analytic",
        conditions={"qualifier": qualifier} if qualifier else {},
    )  # fmt: skip
    found = Result(claim_id=item.id, ours=ours, unit=unit, sample="out-of-sample")
    return Row(claim=item, status="out-of-sample", result=found, comparison=compare(item, found))


def test_one_constant_agrees_with_what_lies_near_each_other() -> None:
    """1.2 is within a fifth of 1.0, 1.1 and 1.4; ours agrees with the first and the last."""
    rows = [
        row(0, 1.0, 1.1), row(1, 1.1, 2.0), row(2, 1.4, 0.5), row(3, 4.0, 4.0),
        row(4, {"a": 2.0, "b": 3.0}, {"a": 2.0, "b": 9.0}), row(5, True, True),
        row(6, 10.0, 11.0, unit="s"),
    ]  # fmt: skip
    found = beside(rows)
    assert (found["numbers"], found["agree"]) == (6, 3)
    assert found["constant_agree"] == 3 + 1  # of x, and of s, where there is one number
    assert 1.12 - 1e-9 <= found["constants"]["x"] <= 1.2 + 1e-9
    assert found["no_effect_agree"] == 2  # 1.0 for 1.0 and 1.1
    # Errors: 0.1, 0.82, 0.64, 0, 0, 2, 0.1.
    assert found["median_error"] == pytest.approx(0.1)
    assert set(found["rank_correlation"]) == {"x"}


def test_bounds_and_shares_are_held_to_their_own_rules() -> None:
    found = beside([
        row(0, 40.0, 10.0, unit="percent", qualifier="at_least"),
        row(1, 98.0, 97.0, unit="percent"),
        row(2, [20.0, 30.0], 25.0, unit="percent"),
    ])  # fmt: skip
    assert (found["numbers"], found["agree"]) == (3, 2)
    assert found["constant_agree"] == 2  # the bound, and the share or the range
    assert found["no_effect_agree"] == 0


def test_without_numbers_there_is_nothing_beside() -> None:
    found = beside([row(0, True, False)])
    assert (found["numbers"], found["constant_agree"], found["median_error"]) == (0, 0, None)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=12), st.floats(0.1, 100.0))
def test_no_constant_is_better_than_the_best(printed: list[float], constant: float) -> None:
    rows = [row(n, value, value) for n, value in enumerate(printed)]
    best = beside(rows)["constant_agree"]
    others = [row(n, value, constant) for n, value in enumerate(printed)]
    assert best >= beside(others)["agree"]
    assert 1 <= best <= len(printed)


@given(st.permutations([1.0, 2.0, 4.0, 8.0, 16.0]))
def test_ranks_are_of_ours_with_what_is_printed(order: list[float]) -> None:
    rows = [row(n, value, value**2) for n, value in enumerate(order)]
    assert beside(rows)["rank_correlation"] == {"x": 1.0}
    turned = [row(n, value, 1.0 / value) for n, value in enumerate(order)]
    assert beside(turned)["rank_correlation"] == {"x": -1.0}
