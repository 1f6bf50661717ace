"""Profiles of launches: shares of a trace's time, and room for the events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.gpu import Context
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import profiling
from pallas_kernels.counting import ceil_div, rem
from pallas_kernels.gemm import (
    Gemm,
    Profile,
    choose,
    machine_for,
    plan_launch,
    shared_bytes,
    with_profile,
)
from pallas_kernels.gemm.config import o_epilogue
from pallas_kernels.gemm.schedule import counts, first_pass, passes
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.interpreting import SMALL, within

CYCLES = st.integers(1, 10**6)
SECTION = st.fixed_dictionaries(
    {name: CYCLES for name in profiling.SCOPES if name not in ("wait_w", "wait_sums")}
)
PASS = st.tuples(CYCLES, CYCLES, SECTION, st.lists(SECTION, min_size=2, max_size=2))


def trace(drawn: list[Any], start: int, tid: int) -> list[dict[str, Any]]:
    """Return the events of a warpgroup as jax writes them: 1000 cycles are 1, 2**32 are none."""
    events: list[dict[str, Any]] = []
    now = start

    def event(name: str, ph: str) -> None:
        events.append(
            {"name": name, "ph": ph, "ts": float(now % 2**32) / 1e3, "pid": 1, "tid": tid}
        )

    def lasting(name: str, *parts: tuple[str, int], own: int) -> None:
        nonlocal now
        event(name, "B")
        for part, cycles in parts:
            lasting(part, own=cycles)
        now += own
        event(name, "E")

    lasting("Init", own=7)
    for wait_sums, wait_w, first, later in drawn:
        lasting("wait_sums", own=wait_sums)
        for number, section in enumerate((first, *later)):
            waits = [("wait_x", section["wait_x"])]
            waits += [("wait_w", wait_w)] if number == 0 else []
            lasting("products", *waits, own=section["products"])
            lasting("stores", ("read_sums", section["read_sums"]), own=section["stores"])
    return events


@given(st.lists(PASS, min_size=1, max_size=3), st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_shares_are_those_of_the_whole_launch(drawn: list[Any], start: int, tiles: int) -> None:
    loads = [e for e in trace([], start, 2) if e["name"] == "Init"]
    (found,) = profiling.shares([*trace(drawn, start, 1), *loads], tiles)
    weight = (tiles - 1) / 2
    times = dict.fromkeys(profiling.SCOPES, 0.0)
    for wait_sums, wait_w, first, later in drawn:
        times["wait_sums"] += wait_sums
        times["wait_w"] += wait_w
        for name in first:
            times[name] += first[name] + weight * sum(one[name] for one in later)
    whole = sum(times.values())
    assert sum(found.values()) == pytest.approx(1.0)
    assert found == pytest.approx({name: time / whole for name, time in times.items()}, abs=1e-6)


@pytest.mark.parametrize("m", [8, 64, 512, 10240])
def test_a_profile_has_room_for_each_event(m: int) -> None:
    gemm = Gemm(m=m, k=4096, n=16384)
    config, profile = with_profile(choose(gemm, machine_for(sm_count=132)), gemm, "traces")
    used = shared_bytes(config, gemm) + 16 * profile.ranges * (config.warpgroups + 1)
    assert used <= SHARED_BYTES_LIMIT
    sizes = counts(config, gemm)
    assert profile.tiles == ceil_div(sizes.row_tiles, config.turns)
    kept = sum(rem(tile, profile.every) == 0 for tile in range(profile.tiles))
    assert kept == min(3, profile.tiles)
    for cluster in range(config.clusters):
        number = passes(config, sizes.k_steps, first_pass(config, sizes.k_steps, cluster, 1))
        events = sizes.k_steps * (1 + kept) + number * (1 + 2 * kept) + 1  # and jax's own
        assert events + kept * o_epilogue(config, gemm).pieces < profile.ranges


def test_shapes_without_room_and_machines_without_events(tmp_path: Path) -> None:
    gemm = Gemm(m=10240, k=4096 * 16, n=16384)
    with pytest.raises(ValueError, match="bytes less of shared memory"):
        with_profile(choose(gemm, machine_for(sm_count=132)), gemm, "traces")
    with pytest.raises(Unmeasurable, match="only a GPU"):
        profiling.measure({}, Context(backend="interpret", folder=str(tmp_path)))


def test_a_recorded_launch_computes_the_same(tmp_path: Path) -> None:
    from pallas_kernels.gemm import sm90

    gemm = Gemm(m=200, k=256, n=128)
    config, profile = with_profile(SMALL, gemm, str(tmp_path), later=1)
    assert config == SMALL
    draw = np.random.default_rng(0)
    x, w = (
        jnp.asarray(draw.standard_normal(shape), jnp.bfloat16)
        for shape in ((gemm.m, gemm.k), (gemm.k, gemm.n))
    )
    plan = plan_launch(gemm, config, alpha=0.0)
    scalars = jnp.array(
        [plan.sym_strips, plan.sym_clusters, plan.active_clusters, plan.layer], jnp.int32
    )

    def made(wanted: Profile | None) -> np.ndarray:
        kernel = sm90.build(gemm, config, interpret=interpret_params(), profile=wanted)
        return within(lambda: np.asarray(kernel(x, w, scalars)))

    np.testing.assert_array_equal(made(profile), made(None))
    assert list(tmp_path.iterdir()) == []  # interpret mode has no events
