"""The rule of regret: when a layout comes, and what waiting for it costs at most."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import LAYOUT_DTYPE, ByRegret, LayoutStays, next_layout


def looks(here: int, in_time: list[float], price: list[float], requests: int = 100) -> np.ndarray:
    table = np.zeros(len(in_time), LAYOUT_DTYPE).view(np.recarray)
    table.requests, table.in_time, table.price = requests, in_time, price
    table.is_here[here] = 1
    return table


def test_a_layout_comes_when_its_absence_has_cost_its_price() -> None:
    policy = ByRegret(margin=0.01)
    own = policy.memory(2)
    for now_s in range(3):  # 9 requests a look, less the margin of 1: 8, 16, 24
        assert next_layout(policy, own, looks(0, [90, 99], [0, 25]), 2, now_s) == -1
    assert own.tolist() == [0.0, 24.0]
    assert next_layout(policy, own, looks(0, [90, 99], [0, 25]), 2, 3.0) == 1
    assert own.tolist() == [0.0, 0.0]
    assert next_layout(LayoutStays(), None, looks(0, [0, 99], [0, 0]), 2, 0.0) == -1


def test_of_several_the_one_that_gains_most_over_its_price_comes() -> None:
    policy = ByRegret()
    assert next_layout(policy, policy.memory(3), looks(1, [90, 50, 99], [10, 0, 40]), 3, 0.0) == 0


@given(
    margin=st.sampled_from([0.0, 0.01, 0.1]),
    gains=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=60),
    price=st.floats(1.0, 80.0),
)
def test_staying_never_costs_more_than_the_price_and_the_margin(
    margin: float, gains: list[tuple[int, int]], price: float
) -> None:
    policy = ByRegret(margin=margin)
    own, lost, here = policy.memory(2), 0.0, 0
    for now_s, pair in enumerate(gains):
        there = 1 - here
        prices = [price, price]
        prices[here] = 0.0
        lost += pair[there] - pair[here] - 100 * margin
        row = next_layout(policy, own, looks(here, list(pair), prices), 2, now_s)
        if row >= 0:
            assert row == there
            here, lost = there, 0.0
        assert lost <= price + 1e-9
