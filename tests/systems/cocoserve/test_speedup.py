"""Estimates of a placement's speedup, against values that were computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.speedup import (
    changes,
    counted_speedup,
    gamma_of,
    headroom,
    printed_speedup,
    split_speedup,
    transitions,
)

LAYERS = 40


def copied(count: int, copies: int = 2, layers: int = LAYERS) -> list[int]:
    return [copies] * count + [1] * (layers - count)


def with_copies(chosen: list[int], *devices: int, layers: int = LAYERS) -> Placement:
    placement = Placement.unscaled(layers)
    for device in devices:
        placement = placement.replicated(chosen, device)
    return placement


@pytest.mark.parametrize(
    ("count", "copies", "gamma", "expected"),
    [
        (15, 2, 0, 16 / 13), (20, 2, 0, 4 / 3), (25, 2, 0, 16 / 11), (30, 2, 0, 8 / 5),
        (20, 4, 0, 8 / 5), (20, 2, 0.1, 40 / 31), (40, 2, 0.1, 20 / 11),
        (20, 2, 1, 1), (40, 2, 1, 1), (20, 2, 2, 4 / 5), (40, 2, 2, 2 / 3),
        (30, 2, 0.1, 80 / 53),
    ],
)  # fmt: skip
def test_eq_4(count: int, copies: int, gamma: float, expected: float) -> None:
    assert printed_speedup(copied(count, copies), gamma) == pytest.approx(expected)


def test_eqs_1_to_3_with_dimensions() -> None:
    """d 8, four rows, C 64, B 32, delta 2: W(P0) = 16, W = 12, T = 2."""
    gamma = gamma_of(2, 64e-12, 32e-9, 8)
    assert gamma == pytest.approx(1 / 2)
    assert split_speedup([[2, 2], [2, 2], [4], [4]], gamma) == pytest.approx(8 / 7)
    assert printed_speedup([2, 2, 1, 1], gamma) == pytest.approx(8 / 7)


@pytest.mark.parametrize(
    ("rows", "gamma", "expected"),
    [((8, 7), 0, 20 / 13), ((8, 7), 0.1, 200 / 137), ((7, 8), 0.1, 100 / 69)],
)
def test_whole_rows(rows: tuple[int, int], gamma: float, expected: float) -> None:
    found = split_speedup([rows] * 30 + [(15,)] * 10, gamma)
    assert found == pytest.approx(expected)
    assert found < printed_speedup(copied(30), gamma)


@pytest.mark.parametrize(("rows", "expected"), [((8, 4), 6 / 5), ((6, 6), 1)])
def test_a_copy_at_half_the_rate(rows: tuple[int, int], expected: float) -> None:
    assert split_speedup([rows, (12,)], 0, rates=[(1, 0.5), (1,)]) == pytest.approx(expected)


def test_a_slower_link_weighs_a_copys_rows_more() -> None:
    rows = [(2, 2), (4,)]
    assert split_speedup(rows, 0.5, links=[(1, 0.5), (1,)]) == pytest.approx(8 / (6 + 0.5 * 4))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.floats(0, 3))
def test_eq_3_with_even_rows_is_eq_4(copies: list[int], gamma: float) -> None:
    rows = [[12 // p] * p for p in copies]
    assert split_speedup(rows, gamma) == pytest.approx(printed_speedup(copies, gamma))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.floats(0, 2), st.data())
def test_one_more_copy_helps_below_a_gamma_of_one_only(
    copies: list[int], gamma: float, data: st.DataObject
) -> None:
    more = list(copies)
    more[data.draw(st.integers(0, len(copies) - 1))] += 1
    gain = printed_speedup(more, gamma) - printed_speedup(copies, gamma)
    assert gain * (1 - gamma) >= -1e-12
    assert abs(gain) < 1e-12 or (gain > 0) == (gamma < 1)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([0], 80 / 81), ([0, 1], 1), ([0, 1, 2], 80 / 79), (list(range(30)), 20 / 13),
        ([*range(15), *range(20, 35)], 40 / 27),
    ],
)  # fmt: skip
def test_counted(chosen: list[int], expected: float) -> None:
    assert counted_speedup(with_copies(chosen, 1), 1 / 80) == pytest.approx(expected)


def test_changes_and_transitions() -> None:
    for devices, ends in (((1,), 4), ((1, 2), 8)):
        placement = with_copies([0, 1, 2, 5], *devices)
        assert transitions(placement) == ends
        assert changes(placement, 15) == 4
    two = with_copies([0, 1], 1).replicated([2, 3], 2)  # from one copy's rows to another's
    assert (transitions(two), changes(two, 15)) == (4, 3)
    assert changes(two, 1) == 0  # one row: no copy takes any
    moved = Placement.unscaled(4).migrated([3], 0, 1)
    assert (transitions(moved), changes(moved, 15)) == (2, 2)


@given(st.lists(st.sets(st.integers(1, 3)), min_size=1, max_size=10))
def test_no_more_changes_than_transitions(sets: list[set[int]]) -> None:
    placement = Placement(tuple((0, *sorted(chosen)) for chosen in sets))
    assert changes(placement, 12) <= transitions(placement)


def test_gamma_of_an_a100_is_above_one() -> None:
    assert gamma_of(1, 312, 25, 5120) == pytest.approx(2.4375)


def test_headroom() -> None:
    found = [headroom(n, 1, model_layers=LAYERS) for n in (15, 20, 25, 30)]
    assert found == pytest.approx([1.6, 2, 8 / 3, 4])
    for n in (15, 20, 25, 30):  # half of the sequences: Eq. 4's bound
        assert headroom(n, 0.5, model_layers=LAYERS) == pytest.approx(printed_speedup(copied(n), 0))


def test_wrong_values_are_named() -> None:
    for field, call in {
        "gamma": lambda: printed_speedup([1], -1),
        "copies": lambda: printed_speedup([0], 0),
        "rows": lambda: split_speedup([[2, 1], [2]], 0),
        "rates": lambda: split_speedup([[2, 1]], 0, rates=[[1, 0]]),
        "per_transition": lambda: counted_speedup(Placement.unscaled(2), -1.0),
        "layers": lambda: headroom(40, 1, model_layers=40),
        "share": lambda: headroom(4, 1.5, model_layers=40),
        "rows[0]": lambda: Placement(((0, 1),), rows=((2, 2),)).partitions(5),
    }.items():
        with pytest.raises(SettingError) as refused:
            call()
        assert refused.value.field == field
