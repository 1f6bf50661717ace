"""Stalls and cuts: the order's values by hand, draws, brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.weaver import (
    Limits,
    Threshold,
    best_cut,
    expected_stall,
    guarded_cut,
    printed_cut,
    printed_stall,
    stated_objective,
)

OPS = (8.0, 4.0, 2.0)
FREE = Limits(least_s=1e-9, most=64, split_s=0.0, poll_s=0.0)
lengths = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8)


def test_stalls_by_hand() -> None:
    assert printed_stall(OPS, 1) == expected_stall(OPS, 1) == 59 / 28
    assert stated_objective(OPS, 1) == 81 / 28
    assert printed_stall([8], 2) == 9 / 4
    assert stated_objective([8], 2) == 15 / 4
    assert expected_stall([100], 0) == 50
    assert expected_stall([50, 50], 0) == 25
    assert expected_stall([961e-6], 32e-6) == pytest.approx(449.0e-6, abs=0.1e-6)
    assert stated_objective([4], -3) == 2  # every wait is too long


def test_with_less_time_than_the_receiver_the_printed_estimate_grows_again() -> None:
    pieces = [[100 / n] * n for n in (1, 4, 16)]
    assert [printed_stall(p, -20) for p in pieces] == [72, 40.5, 55.125]
    assert [expected_stall(p, -20) for p in pieces] == [70, 32.5, 23.125]


@pytest.mark.parametrize(
    ("threshold", "pieces", "splits"),
    [
        (1.0, [4, 4, 4, 2], 1), (0.5, [4, 2, 2, 2, 2, 2], 3), (0.25, [2] * 7, 4),
        (0.0, [1] * 14, 11),
    ],
)  # fmt: skip
def test_algorithm_1_by_hand(threshold: float, pieces: list[float], splits: int) -> None:
    for cut in (
        printed_cut(OPS, 1, Threshold(seconds=threshold)),
        guarded_cut(OPS, 1, Threshold(seconds=threshold), FREE),
    ):
        assert sorted(cut.lengths, reverse=True) == pieces
        assert cut.splits == splits
        assert sum(cut.lengths) == 14
        assert [sum(p) for p in cut.pieces] == list(OPS)


def test_the_threshold_is_of_an_operator_a_layer_or_an_iteration() -> None:
    # layer: 59/28; all four layers: 59/7; a task that meets the longest: 49/16
    for of, reached in (("layer", 59 / 28), ("iteration", 59 / 7), ("operator", 49 / 16)):
        at = Threshold(seconds=reached * (1 + 1e-12), of=of, layers=4)
        below = Threshold(seconds=reached * (1 - 1e-12), of=of, layers=4)
        assert printed_cut(OPS, 1, at).splits == 0
        assert printed_cut(OPS, 1, below).splits > 0


def test_guards_end_what_the_listing_does_not() -> None:
    unreachable = Threshold(seconds=10)
    with pytest.raises(SettingError, match=r"threshold.seconds.*splits did not"):
        printed_cut([100], -20, unreachable)
    assert guarded_cut([100], -20, unreachable, FREE).splits == 63
    by_length = Limits(least_s=10, most=64, split_s=0, poll_s=0)
    assert guarded_cut([100], -20, unreachable, by_length).lengths == (12.5,) * 8
    by_cost = Limits(least_s=1e-9, most=64, split_s=30, poll_s=10)
    cut = guarded_cut([100], 0, Threshold(seconds=0), by_cost)
    # halves of 70 take 70^2 for 100^2 / 2; halves of 55 no less than one of 70
    assert cut.lengths == (70, 70)


@pytest.mark.parametrize("slack", [-3.0, 0.0, 1.5])
def test_the_expected_stall_is_the_mean_of_draws(slack: float) -> None:
    g = np.random.default_rng(4)
    t = np.array(OPS)
    met = g.choice(t, 2_000_000, p=t / t.sum())
    drawn = np.maximum(met * g.random(len(met)) - slack, 0)
    assert expected_stall(OPS, slack) == pytest.approx(drawn.mean(), rel=0.005)


@given(lengths, st.floats(0.0, 50.0))
def test_printed_and_expected_agree_where_slack_is_not_negative(
    ops: list[float], slack: float
) -> None:
    assert printed_stall(ops, slack) == expected_stall(ops, slack)
    assert stated_objective(ops, slack) >= expected_stall(ops, slack)


@given(lengths, st.floats(-20.0, 50.0), st.floats(0.0, 10.0), st.integers(1, 20))
def test_a_guarded_cut_keeps_limits_and_never_makes_stalls_longer(
    ops: list[float], slack: float, threshold: float, most: int
) -> None:
    limits = Limits(least_s=0.5, most=most, split_s=0.02, poll_s=0.01)
    cut = guarded_cut(ops, slack, Threshold(seconds=threshold), limits)
    assert expected_stall(cut.lengths, slack) <= expected_stall(ops, slack) * (1 + 1e-12)
    for t, pieces in zip(ops, cut.pieces, strict=True):
        assert len(pieces) <= most
        assert len(pieces) == 1 or min(pieces) >= limits.least_s
        assert sum(pieces) == pytest.approx(t + (len(pieces) - 1) * limits.added_s)


@given(
    st.lists(st.floats(0.5, 20.0), min_size=3, max_size=3), st.floats(-5.0, 10.0),
    st.floats(0.0, 3.0), st.floats(0.0, 1.0),
)  # fmt: skip
def test_no_cut_of_three_operators_into_four_pieces_is_better_than_ours(
    ops: list[float], slack: float, weight: float, added: float
) -> None:
    layers = 5
    limits = Limits(least_s=0.01, most=4, split_s=added / 2, poll_s=added / 2)

    def cost(pieces: list[float]) -> float:
        return layers * expected_stall(pieces, slack) + weight * sum(pieces)

    ours = best_cut(ops, slack, layers=layers, weight=weight, limits=limits)
    found = cost(list(ours.lengths))
    g = np.random.default_rng(0)
    for counts in product(range(1, 5), repeat=3):
        even, uneven = [], []
        for t, n in zip(ops, counts, strict=True):
            whole = t + (n - 1) * added
            even += [whole / n] * n
            uneven += list(whole * g.dirichlet(np.full(n, 5.0)))
        assert found <= cost(even) * (1 + 1e-9)
        assert found <= cost(uneven) * (1 + 1e-9)


def test_ours_splits_nothing_where_the_cold_model_weighs_more() -> None:
    assert best_cut(OPS, 1, layers=1, weight=1e6, limits=Limits(least_s=0.1)).splits == 0
    limits = Limits(least_s=1e-3, most=(1, 8, 2))
    cut = best_cut(OPS, 0, layers=9, weight=0, limits=limits)
    assert [len(p) for p in cut.pieces] == [1, 8, 2]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("least_s", lambda: Limits(least_s=0)),
        ("most", lambda: Limits(most=0)),
        ("split_s", lambda: Limits(split_s=-1)),
        ("most", lambda: best_cut(OPS, 0, layers=1, weight=1, limits=Limits(most=(1, 2)))),
        ("weight", lambda: best_cut(OPS, 0, layers=1, weight=-1)),
        ("layers", lambda: best_cut(OPS, 0, layers=0, weight=1)),
        ("threshold.seconds", lambda: Threshold(seconds=float("nan"))),
        ("threshold.of", lambda: Threshold(seconds=1, of="token")),
        ("operators", lambda: expected_stall([], 1)),
        ("operators", lambda: expected_stall([1, 0], 1)),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, make: object) -> None:
    with pytest.raises(SettingError, match=rf"^{name}="):
        make()
