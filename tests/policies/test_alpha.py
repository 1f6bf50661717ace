"""Algorithm 2 and the roofline choice of alpha."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import (
    AlphaObservation,
    AlphaState,
    Feedback,
    Priced,
    Roofline,
    adjust_alpha,
    alpha_index,
    best_alpha_index,
    link_price,
)

unit = st.floats(0.0, 1.0)
POLICY = Feedback()


@given(unit, unit, unit, st.floats(0.0, 2.0))
def test_alpha_moves_against_the_saturated_side(
    alpha: float, hbm: float, c2c: float, latency: float
) -> None:
    start = AlphaState(alpha, -1.0, 0.0, 0.0)
    seen = AlphaObservation(latency, 1.0, hbm, c2c)
    late = adjust_alpha(POLICY, start, seen._replace(latency_s=2.0)).alpha
    on_time = adjust_alpha(POLICY, start, seen._replace(latency_s=0.5)).alpha
    for after in (late, on_time):
        assert 0.0 <= after <= 1.0
        assert (after - alpha) * (c2c - hbm) <= 0.0
        if abs(c2c - hbm) <= POLICY.deadband:
            assert after == alpha
    assert abs(late - alpha) >= abs(on_time - alpha)  # faster while the target is missed


@given(unit, st.lists(st.tuples(unit, unit, st.floats(0.0, 2.0)), max_size=40))
def test_alpha_stays_in_range_whatever_it_sees(
    alpha: float, signals: list[tuple[float, float, float]]
) -> None:
    state = AlphaState(alpha, -1.0, 0.0, 0.0)
    for hbm, c2c, latency in signals:
        state = adjust_alpha(POLICY, state, AlphaObservation(latency, 1.0, hbm, c2c))
        assert 0.0 <= state.alpha <= 1.0
        assert 0.0 <= state.c2c_utilisation <= 1.0


def test_settles_after_a_step_change_of_the_link() -> None:
    """A plant whose link use grows and HBM use falls with alpha: alpha ends where they meet."""

    def plant(alpha: float, link: float) -> AlphaObservation:
        return AlphaObservation(0.5, 1.0, 0.9 - 0.6 * alpha, min(1.0, (0.2 + 0.6 * alpha) / link))

    for start in (0.0, 0.5, 1.0):
        state = AlphaState(start, -1.0, 0.0, 0.0)
        history = []
        for step in range(80):
            state = adjust_alpha(POLICY, state, plant(state.alpha, 1.0 if step < 40 else 0.5))
            history.append(state.alpha)
        before, after = history[30:40], history[70:]
        assert max(before) - min(before) <= POLICY.step_slow  # no sustained oscillation
        assert max(after) - min(after) <= POLICY.step_slow
        assert np.mean(after) < np.mean(before)  # half the link: more AsymGEMM


def test_grid_and_roofline() -> None:
    assert [alpha_index(a, 17) for a in (0.0, 0.03, 0.5, 1.0)] == [0, 0, 8, 16]
    alone = np.array([3.0, 2.0, 1.0])
    moved = np.array([1e9, 2e9, 6e9])
    assert best_alpha_index(alone, moved, 100.0, 0.0) == 2  # a free link: the fastest alone
    assert best_alpha_index(alone, moved, 1.0, 0.0) == 1
    assert best_alpha_index(alone, moved, 0.1, 0.0) == 0  # a narrow link: the fewest bytes
    assert best_alpha_index(np.ones(3), np.ones(3), 1.0, 0.0) == 0  # ties to the first


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_link_time_costs_more_the_fuller_the_link(a: float, b: float, price: float) -> None:
    policy = Priced(price=price)
    low, high = link_price(policy, min(a, b)), link_price(policy, max(a, b))
    assert 0.0 <= low <= high < np.inf
    assert link_price(policy, 0.5) == pytest.approx(price)
    assert link_price(Roofline(), a) == 0.0


def test_a_price_chooses_fewer_bytes_at_equal_shares() -> None:
    alone = np.array([3.0, 2.0, 1.0])
    moved = np.array([1e9, 2e9, 6e9])
    chosen = [best_alpha_index(alone, moved, 100.0, gb_s) for gb_s in (0.0, 0.3, 5.0)]
    assert chosen == [2, 1, 0]
