"""GEMMs over weights in HBM: laws of the menu of tiles, exact bytes, the power limit."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import Constants, Routing, expert_layer_time, expert_load, resident_gemm_time
from c2c.cost import load_constants as load
from c2c.cost.resident import K_SLICES, TILES, soft_maximum, throttled_s
from c2c.errors import SettingError
from c2c.hardware import Slice, load_platform, slices
from c2c.models import ModelSpec

H100 = slices(load_platform("h100_sxm"), "1x80gb")[0]
SIZES = st.integers(1, 20_000)


@settings(deadline=None)
@given(SIZES, SIZES, SIZES)
def test_no_gemm_is_faster_than_the_chip(m: int, n: int, k: int) -> None:
    constants = load("h100_sxm")
    found = resident_gemm_time(m, n, k, slice_=H100, constants=constants)
    math_s = 2.0 * m * n * k / (H100.bf16_tflops * 1e12)
    read_s = 2.0 * (m * k + k * n + m * n) / (H100.hbm_gbps * 1e9)
    assert float(found.total_s) >= max(math_s, read_s) + constants.gemm_launch_s
    assert float(found.hbm_bytes) >= 2 * (m * k + k * n + m * n)


@settings(deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(TILES))
def test_one_tile_for_every_shape_is_never_faster_than_the_menu(
    m: int, n: int, k: int, tile: tuple[int, int]
) -> None:
    constants = load("h100_sxm")
    best = resident_gemm_time(m, n, k, slice_=H100, constants=constants)
    one = resident_gemm_time(
        m, n, k, slice_=H100, constants=constants, tiles=(tile,), k_slices=(1,)
    )
    assert float(one.total_s) >= float(best.total_s)
    assert float(one.hbm_bytes) == 2 * (m * k + k * n + m * n)  # no partial sums without a split


@settings(deadline=None)
@given(st.integers(1, 3000), st.sampled_from([1024, 4096, 28672]), st.sampled_from([2048, 14336]))
def test_the_best_of_the_menu_is_taken(m: int, n: int, k: int) -> None:
    constants = load("h100_sxm")
    found = resident_gemm_time(m, n, k, slice_=H100, constants=constants)
    sm_flops = H100.bf16_tflops * 1e12 * constants.gemm_mma_efficiency / H100.sm_count
    for tm, tn in TILES:
        for parts in K_SLICES:
            # a tile's own time is at least its operations at the full rate
            waves = np.ceil(np.ceil(m / tm) * np.ceil(n / tn) * parts / H100.sm_count)
            depth = 64 * np.ceil(k / (64 * parts))
            least_s = waves * 2 * tm * tn * depth / sm_flops
            moved = 2 * (m * k + k * n + m * n) + (parts > 1) * 8 * parts * m * n
            hbm_s = moved / (H100.hbm_gbps * 1e9 * constants.gemm_hbm_efficiency)
            slowest = 1.3 * max(least_s, hbm_s) + waves * constants.gemm_tile_s
            fed = constants.gemm_intensity * (tm + tn) / (tm * tn)
            assert float(found.total_s) <= slowest * max(1.0, fed) * 1.2 + constants.gemm_launch_s


def test_where_hbm_binds_the_time_is_that_of_the_bytes() -> None:
    constants = load("h100_sxm")
    m, n, k = 1, 28672, 8192
    found = resident_gemm_time(m, n, k, slice_=H100, constants=constants)
    rate = H100.hbm_gbps * 1e9 * constants.gemm_hbm_efficiency
    assert float(found.hbm_bytes) == 2 * (m * k + k * n + m * n)
    assert float(found.total_s) == pytest.approx(
        float(found.hbm_bytes) / rate + constants.gemm_launch_s, rel=1e-2
    )


def test_weights_in_turn_that_the_l2_keeps_are_read_sooner() -> None:
    platform = load_platform("l40s")
    chip, constants = slices(platform, platform.mig[0])[0], load("l40s")

    def seconds(turns: int, width: int) -> float:
        found = resident_gemm_time(1, width, width, slice_=chip, constants=constants, turns=turns)
        return float(found.total_s)

    assert chip.l2_bytes == 96 << 20
    few, some, many, none = (seconds(turns, 2896) for turns in (1, 6, 12, 0))  # 16 MB each
    assert few < some < many == none
    assert seconds(6, 8192) == seconds(0, 8192)


def test_narrow_products_split_k_and_wide_ones_do_not() -> None:
    constants = load("h100_sxm")
    narrow = resident_gemm_time(64, 1024, 16384, slice_=H100, constants=constants)
    assert float(narrow.hbm_bytes) > 2 * (64 * 16384 + 16384 * 1024 + 64 * 1024)
    wide = resident_gemm_time(4096, 16384, 4096, slice_=H100, constants=constants)
    assert float(wide.hbm_bytes) == 2 * (4096 * 4096 + 4096 * 16384 + 4096 * 16384)


def test_time_never_falls_with_rows(full_gpu: Slice, small_slice: Slice) -> None:
    constants = load("gh200")
    rows = np.arange(0, 3000)
    for slice_ in (full_gpu, small_slice):
        found = resident_gemm_time(rows, 14336, 4096, slice_=slice_, constants=constants)
        assert found.total_s[0] == found.hbm_bytes[0] == 0
        assert (np.diff(found.total_s) >= 0).all()


def test_shapes_broadcast_to_single_calls() -> None:
    constants = load("gb200")
    chip = slices(load_platform("gb200"), "1x192gb")[0]
    m, n, k = np.array([1, 70, 4096]), np.array([1024, 4096, 10240]), np.array([16384, 2048, 4096])
    together = resident_gemm_time(m, n, k, slice_=chip, constants=constants, repeats=36)
    for i in range(3):
        alone = resident_gemm_time(
            int(m[i]), int(n[i]), int(k[i]), slice_=chip, constants=constants, repeats=36
        )
        assert float(alone.total_s) == together.total_s[i]


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_the_soft_maximum_is_near_the_maximum(a: float, b: float) -> None:
    found = float(soft_maximum(a, b))
    assert max(a, b) <= found <= max(a, b) * 2 ** (1 / 6) * (1 + 1e-12)
    assert found == float(soft_maximum(b, a))


def test_the_power_limit_needs_time_to_set_in() -> None:
    constants = load("gb200")
    assert float(throttled_s(1e-4, 1e-3, constants)) < 1e-8
    assert float(throttled_s(0.1, 0.1, constants)) == pytest.approx(
        0.1 * constants.gemm_throttle, rel=0.01
    )
    assert float(throttled_s(0.0, 0.0, constants)) == 0


@pytest.mark.parametrize("routing", [Routing(), Routing(kind="power_law", skew=1.2)])
def test_experts_read_what_is_active_and_no_more(
    routing: Routing, moe: ModelSpec, full_gpu: Slice, constants: Constants
) -> None:
    tokens = np.array([0, 1, 8, 64, 512, 4096])
    found = expert_layer_time(
        tokens, hidden=moe.hidden, intermediate=moe.moe_intermediate, experts=moe.experts,
        experts_per_token=moe.experts_per_token, slice_=full_gpu, constants=constants,
        routing=routing,
    )  # fmt: skip
    weights = 2 * 3 * moe.hidden * moe.moe_intermediate
    active = expert_load(tokens, moe.experts, moe.experts_per_token, routing).active
    activations = 2 * tokens * moe.experts_per_token * (2 * moe.hidden + 3 * moe.moe_intermediate)
    np.testing.assert_allclose(found.hbm_bytes, active * weights + activations)
    assert found.total_s[0] == 0
    assert (np.diff(found.total_s) > 0).all()


def test_skew_leaves_fewer_experts_active_and_longer_queues() -> None:
    skewed = expert_load(64, 128, 8, Routing(kind="power_law", skew=1.2))
    even = expert_load(64, 128, 8, Routing(kind="balanced"))
    alone = expert_load(64, 128, 8, Routing())
    assert float(skewed.active) < float(alone.active) < float(even.active) == 128
    many = expert_load(16384, 128, 8, Routing(kind="power_law", skew=1.2))
    assert float(many.tiles(128)) > 16384 * 8 / 128  # half-filled tiles of those with few rows


@pytest.mark.parametrize(
    "change", [{"kind": "odd"}, {"kind": "power_law"}, {"kind": "power_law", "skew": 1.0},
               {"skew": 0.5}],
)  # fmt: skip
def test_routings_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=r"routing\."):
        Routing(**change)  # type: ignore[arg-type]


def test_a_cut_slice_gets_more_of_its_hbm(gh200: Callable[[str], Slice]) -> None:
    constants = load("gh200")
    assert constants.on(gh200("1x96gb")) is constants
    cut = constants.on(gh200("7x12gb"))
    # 461.6 of 500 GB/s, as measured on one slice
    assert cut.hbm_efficiency == pytest.approx(461.6 / 500, rel=1e-3)
    assert cut.gemm_mma_efficiency == constants.gemm_mma_efficiency
