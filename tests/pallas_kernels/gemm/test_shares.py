"""Shares of matrices to keep in device memory: the greedy rule against every choice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.gemm import MACHINES, Config, Gemm, Quantised, plans, predict
from pallas_kernels.gemm.shares import Curve, Operation, allocate, best_shares

GH200 = MACHINES["NVIDIA GH200 480GB"]
TILES = Config(tm=64, tn=256, x_stages=5, w_stages=5, kc=256, asym_stages=4, warpgroups=1)


def brute_force(curves: list[Curve], budget: float) -> float:
    every = itertools.product(*(range(len(curve.nbytes)) for curve in curves))
    return min(
        sum(curve.time_s[at] for curve, at in zip(curves, chosen, strict=True))
        for chosen in every
        if sum(curve.nbytes[at] for curve, at in zip(curves, chosen, strict=True)) <= budget
    )


def total(curves: list[Curve], chosen: list[int]) -> tuple[float, float]:
    pairs = list(zip(curves, chosen, strict=True))
    return sum(c.nbytes[at] for c, at in pairs), sum(c.time_s[at] for c, at in pairs)


@st.composite
def curves_of(draw: st.DrawFn, *, convex: bool) -> list[Curve]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        saved = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
        saved = sorted(saved, reverse=True) if convex else saved
        sizes = [1] * len(saved)
        if not convex:
            sizes = draw(st.lists(st.integers(1, 5), min_size=len(saved), max_size=len(saved)))
        nbytes = np.cumsum([0, *sizes]).astype(float)
        made.append(Curve(nbytes=nbytes, time_s=100.0 - np.cumsum([0, *saved])))
    return made


@given(curves_of(convex=True), st.integers(0, 14))
def test_greedy_is_the_best_where_times_are_convex(curves: list[Curve], budget: int) -> None:
    nbytes, time_s = total(curves, allocate(curves, float(budget)))
    assert nbytes <= budget
    assert time_s == brute_force(curves, float(budget))


@given(curves_of(convex=False), st.integers(0, 40))
def test_greedy_is_no_further_from_the_best_than_one_step(curves: list[Curve], budget: int) -> None:
    nbytes, time_s = total(curves, allocate(curves, float(budget)))
    assert nbytes <= budget
    largest = max(curve.time_s[0] - curve.time_s.min() for curve in curves)
    assert time_s <= brute_force(curves, float(budget)) + largest


def operations(**more: object) -> list[Operation]:
    """Two matrices that are bound by the link alone, at different costs of a byte."""
    often = Operation(gemm=Gemm(m=8, k=1024, n=1024, w_layout="nk"), times=3.0, config=TILES)
    rare = Operation(gemm=Gemm(m=8, k=2048, n=1024, w_layout="nk"), config=TILES)
    return [often, replace(rare, **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [0.0, 0.2, 0.34, 0.7, 1.0])
def test_shares_of_operations_against_every_choice(part: float) -> None:
    ops = operations()
    size = sum(one.gemm.k * one.gemm.n * 2 for one in ops)
    curves = []
    for one in ops:
        strips = np.arange(one.gemm.n // TILES.tn + 1)
        tried = [
            predict(one.gemm, TILES, plans(one.gemm, TILES, alpha, resident_strips=strips), GH200)
            for alpha in np.linspace(0, 1, 9)
        ]
        time_s = np.stack([one_try.time_s for one_try in tried]).min(0) * one.times
        curves.append(Curve(nbytes=strips * TILES.tn * one.gemm.k * 2, time_s=time_s))
    found = best_shares(ops, part * size, GH200)
    assert sum(share.nbytes for share in found) <= part * size
    best = brute_force(curves, part * size)
    assert sum(share.time_s for share in found) == pytest.approx(best, rel=1e-12)
    # what is done thrice comes first
    assert found[0].columns == 1024 or found[1].columns == 0


def test_no_byte_where_it_saves_nothing_however_much_room_there_is() -> None:
    bound_by_tensor_cores = Operation(gemm=Gemm(m=10240, k=4096, n=4096))
    bound_by_the_link = Operation(gemm=Gemm(m=8, k=4096, n=4096), copies=4)
    first, second = best_shares([bound_by_tensor_cores, bound_by_the_link], 1e12, GH200)
    assert first.nbytes == first.columns == 0
    # the link brings the last columns while device memory gives the others
    assert 0.9 * 4096 < second.columns < 4096
    assert second.nbytes == 4 * second.columns * 4096 * 2


def test_bits_and_experts_count() -> None:
    int4 = Gemm(m=8, k=4096, n=16384, w_layout="nk", quantised=Quantised(kind="int4", group=128))
    one = best_shares([Operation(gemm=int4)], 1e12, GH200)[0]
    assert one.nbytes == one.columns * 4096 // 2 > 0
    experts = best_shares([Operation(gemm=Gemm(m=8, k=1024, n=1024, experts=4))], 1e12, GH200)[0]
    assert experts.nbytes == 4 * experts.columns * 1024 * 2 > 0


def test_a_budget_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"budget_bytes=-1\.0"):
        best_shares(operations(), -1.0, GH200)
