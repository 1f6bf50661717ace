"""Beyond the paper: every bandwidth at once, latency with overlap, slices of one GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost.kernel_graph import Batch, StepKernel, Transfer, step_kernels
from c2c.errors import SettingError
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import load_spec
from c2c.systems.tessera import (
    Gpus,
    Work,
    cost,
    cut_curve,
    joined,
    overlapped,
    overlapped_s,
    pipelined,
    plan,
    robust_plan,
    stages_of,
    steps_of,
    streamed_ways,
)


def random_work(seed: int, kernels: int = 12) -> Work:
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for a, b in itertools.combinations(range(kernels), 2) if rng.random() < 0.25]
    return Work(
        names=tuple(f"k{n}" for n in range(kernels)),
        times_s=tuple(tuple(row) for row in rng.uniform(5e-6, 60e-6, (kernels, 2)).tolist()),
        transfers=tuple(Transfer(a, b, float(rng.integers(1, 900)) * 1e3) for a, b in pairs),
    )


LINK = Gpus.alike(("a", "b"), gbps=25.0, latency_s=1e-6)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_a_curve_has_the_best_placement_of_every_bandwidth(seed: int) -> None:
    work = random_work(seed)
    curve = cut_curve(work, LINK, 0.01, 1e5)
    begins = [each.from_gbps for each in curve]
    assert begins == sorted(begins)
    assert begins[0] == 0.01
    assert curve[0].cuts == 0 or curve[0].nbytes > 0
    assert all(a.nbytes < b.nbytes for a, b in itertools.pairwise(curve))  # more link, more sent
    for gbps in np.geomspace(0.02, 9e4, 25):
        mine = next(each for each in reversed(curve) if each.from_gbps <= gbps)
        wanted = plan(work, replace(LINK, gbps=((gbps,) * 2,) * 2), "latency").objective_s
        assert mine.latency_s(gbps) == pytest.approx(wanted, rel=1e-5)


def test_a_curve_is_of_two_gpus_and_a_range() -> None:
    three = Gpus.alike(("a", "b", "c"), gbps=1.0, latency_s=0.0)
    with pytest.raises(SettingError, match="two GPUs"):
        cut_curve(random_work(0), three, 1.0, 2.0)
    with pytest.raises(SettingError, match="0 < low < high"):
        cut_curve(random_work(0), LINK, 2.0, 1.0)


@given(st.integers(0, 10_000), st.integers(0, 2**12 - 1))
def test_overlap_is_a_lone_request_of_the_pipeline(seed: int, bits: int) -> None:
    """Chains, where the order in which a link sends is the same by both."""
    work = random_work(seed)
    work = replace(work, transfers=tuple(Transfer(k, k + 1, 9e4) for k in range(11)))
    gpu_of = [bits >> k & 1 for k in range(12)]
    ran = pipelined([steps_of(work, LINK, gpu_of)], [(0,)], "none", 1)
    assert overlapped_s(work, LINK, gpu_of) == pytest.approx(ran.seconds)


def test_branches_on_two_gpus_count_once() -> None:
    """Two equal branches: the policy adds them up and keeps one GPU, overlap takes both."""
    work = Work(
        names=("in", "left", "right", "out"),
        times_s=((1e-6, 1e-6), (90e-6, 90e-6), (90e-6, 90e-6), (1e-6, 1e-6)),
        transfers=tuple(Transfer(*e, 1e3) for e in ((0, 1), (0, 2), (1, 3), (2, 3))),
    )
    found = overlapped(work, LINK)
    assert found.method == "list"
    assert len(set(found.gpu_of[1:3])) == 2
    assert found.seconds < 100e-6 < plan(work, LINK, "latency").objective_s
    assert found.added_s > 182e-6


@given(st.integers(0, 10_000))
def test_overlap_takes_no_longer_than_the_sum(seed: int) -> None:
    work = random_work(seed)
    made = plan(work, LINK, "latency")
    found = overlapped(work, LINK)
    assert found.seconds <= min(found.added_s, made.objective_s) * (1 + 1e-9)
    ended = [0.0] * 12  # the longest path, nothing sent
    for k, row in enumerate(work.times_s):
        before = [ended[e.source] for e in work.transfers if e.target == k]
        ended[k] = max(before, default=0.0) + min(row)
    assert found.seconds >= max(ended) * (1 - 1e-9)


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_one_placement_for_mixes_loses_least_where_it_loses_most(seed: int) -> None:
    prefill, decode = random_work(seed, 6), random_work(seed + 1, 6)
    mixes = [(1.0, n) for n in (0.2, 1.0, 5.0)]
    found = robust_plan([prefill, decode], mixes, LINK, gap=0.0)
    assert found.worst == max(found.losses)
    assert found.worst <= min(map(max, found.own_losses)) + 1e-12
    for k, row in enumerate(found.own_losses):
        assert row[k] <= 1e-4  # under its own mix a plan loses nothing
        assert min(row) >= 0
    for k, (mix, loss) in enumerate(zip(mixes, found.losses, strict=True)):
        work = joined(list(zip((prefill, decode), mix, strict=True)))
        own = plan(work, LINK, "throughput", gap=0.0).objective_s
        ours = cost("throughput", stages_of(work, LINK, found.gpu_of)[0])
        assert ours / own - 1 == pytest.approx(loss, abs=1e-4), k


def test_mixes_must_be_of_the_steps() -> None:
    with pytest.raises(SettingError, match="mixes"):
        robust_plan([random_work(0)], [(1.0, 2.0)], LINK)


def decode(rows: int) -> tuple[StepKernel, ...]:
    return step_kernels(load_spec("llama-3-3b"), Batch(rows=rows, chunk=1, context=1084))


def test_kernels_over_two_slices_stream_each_weight_once() -> None:
    platform = load_platform("gh200")
    parts = slices(platform, "3g_4x1g")[:2]
    link = link_gbps(platform.link, "measured")
    found = {way.name: way for way in streamed_ways(decode, 64, platform, parts, link)}
    weights = sum(k.weight_bytes for k in decode(64))
    assert found["large"].streamed_bytes == found["limit"].streamed_bytes == weights
    # each of two engines streams all but the embeddings of the other's rows
    assert found["apart"].streamed_bytes == pytest.approx(2 * weights, rel=0.01)
    assert sum(found["apart"].rows) == 64
    assert weights <= found["kernels"].streamed_bytes < 1.2 * weights
    for way in found.values():
        assert way.seconds >= way.streamed_bytes / (link * 1e9) * (1 - 1e-9)
    assert found["limit"].seconds <= found["kernels"].seconds < found["large"].seconds
    assert found["large"].seconds < found["small"].seconds
    with pytest.raises(SettingError, match="two slices"):
        streamed_ways(decode, 64, platform, parts[:1], link)
    with pytest.raises(SettingError, match="rows=1"):
        streamed_ways(decode, 1, platform, parts, link)
