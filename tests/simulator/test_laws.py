"""Capacity, order, ties and monotonicity; what holds for every system is in `tests/contracts`."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import step_time
from c2c.hardware import load_platform, scaled
from c2c.models import load_spec
from c2c.policies import (
    AfterWaiting,
    AtOutstanding,
    BandwidthAware,
    FirstIdle,
    Fixed,
    Resident,
    Static,
    Stream,
)
from c2c.serving import FAIL_CONTEXT, FAIL_KV, prepare
from tests.simulator.worlds import random_requests, requests, setup, simulate
from tests.tiers import tiered

SPECS = ("llama-3-3b", "llama-3-8b", "llama-3-3b", "llama-3-8b", "llama-3-3b")
workloads = st.integers(0, 2**31).flatmap(
    lambda seed: st.tuples(
        st.just(seed), st.integers(1, 60), st.sampled_from([0.2, 2.0, 20.0, 2000.0])
    )
)


@settings(max_examples=10, deadline=None)
@given(what=workloads, headroom=st.sampled_from([0.7, 1.0]))
def test_promised_bandwidth_never_exceeds_the_link(
    what: tuple[int, int, float], headroom: float
) -> None:
    """Placement admits a set of models only while sum S_m/TPOT_m is within the budget."""
    seed, n, rate = what
    place = BandwidthAware(headroom=headroom)
    prepared = prepare(setup(*SPECS, superchips=2, preempt=AfterWaiting(2.0), place=place))
    block = random_requests(n, len(SPECS), rate, seed)
    _, _, simulation = simulate(prepared, block, timeline_rows=100_000)
    phases = simulation.world.timeline[: simulation.world.n_timeline[0]]
    demand = prepared.fleet.deployment.demand_gbps
    for t in np.unique(phases.start_s):
        running = phases[(phases.start_s <= t) & (phases.end_s > t)]
        for chip in np.unique(running.chip):
            here = running[running.chip == chip]
            assert demand[here.model].sum() <= headroom * prepared.link_gbps[0] * (1 + 1e-9)


def test_one_slice_alone_equals_the_closed_form() -> None:
    prepared = prepare(setup("llama-3-8b", mig="3x24gb", alpha=Static()))
    table, chunk = prepared.tables[0][0], prepared.chunks[0][0].tokens
    prompt, output = 2 * chunk + 37, 5
    records, _, _ = simulate(prepared, requests([1.0], prompt=prompt, output=output))
    expected = prepared.setup.constants.switch_dense_s
    link = 0.0
    for offset in range(0, prompt, chunk):
        tokens = min(chunk, prompt - offset)
        cost = step_time(
            table,
            prefill_tokens=tokens,
            context_tokens=offset,
            head_rows=int(offset + tokens == prompt),
        )
        expected += cost.seconds
        link += cost.link_bytes
    assert records.first_token_s[0] - 1.0 == pytest.approx(expected, rel=1e-12)
    for k in range(output - 1):
        cost = step_time(table, decode_seqs=1, decode_kv_tokens=prompt + 1 + k, head_rows=1)
        expected += cost.seconds
        link += cost.link_bytes
    assert records.finished_s[0] - 1.0 == pytest.approx(expected, rel=1e-12)
    assert records.link_bytes[0] == pytest.approx(link, rel=1e-12)
    assert records.chunks[0] == 3


def test_two_link_bound_slices_share_the_link_equally() -> None:
    prepared = prepare(setup("llama-3-8b", "llama-3-8b", mig="2x48gb", tpot=0.5))
    solo, _, _ = simulate(prepared, requests([0.0], output=400))
    both, _, _ = simulate(prepared, requests([0.0, 0.0], model=[0, 1], output=400))
    decode = both.finished_s - both.first_token_s
    assert decode[0] == pytest.approx(decode[1], rel=1e-9)
    alone = float(solo.finished_s[0] - solo.first_token_s[0])
    # each gets half the link unless it could not use that much
    table = prepared.tables[0][0]
    cost = step_time(table, decode_seqs=1, decode_kv_tokens=101, head_rows=1)
    half_s = cost.link_bytes / (prepared.link_capacity_gbps / 2 * 1e9)
    assert decode[0] == pytest.approx(max(alone, 399 * half_s), rel=1e-3)


def test_ties_are_settled_by_rule() -> None:
    """Phase ends before arrivals, instances by number, arrivals in trace order."""
    prepared = prepare(setup("llama-3-3b", "llama-3-3b"))
    first, _, _ = simulate(prepared, requests([0.0], model=[0], output=1))
    ready = prepared.setup.constants.switch_dense_s
    # an arrival at the very moment the first request ends finds the slice idle, and joins it warm
    end = float(first.finished_s[0])
    records, _, _ = simulate(prepared, requests([0.0, end], model=[0, 0], output=1))
    assert records.finished_s[0] == end
    assert records.started_s[1] == end
    assert records.instance.tolist() == [0, 0]
    assert records.start_kind.tolist() == [1, 0]
    # equal arrivals take slices in trace order
    records, _, _ = simulate(prepared, requests([0.0] * 3, model=[1, 0, 1], output=3))
    assert records.instance.tolist() == [0, 1, 0]
    assert records.admitted_s[0] == records.admitted_s[2] == ready


@pytest.mark.parametrize(
    ("axis", "system"),
    tiered(
        product(["link", "hbm", "sms"], ["stream", "resident"]),
        *[("link", "stream"), ("hbm", "resident")],
    ),
)
def test_more_hardware_never_hurts(axis: str, system: str) -> None:
    """Every model has a slice: if models compete for slices, speed changes who waits for whom."""
    mig = "7x12gb" if system == "stream" else "1x96gb"
    streams = system == "stream"
    block = random_requests(120, 3, 1.5, 5)

    def times(factor: float) -> tuple[np.ndarray, np.ndarray]:
        platform = scaled(load_platform("gh200"), **{axis: factor})
        what = setup(
            *SPECS[:3], mig=mig, superchips=3, platform=platform,
            load=Stream() if streams else Resident(),
            place=BandwidthAware() if streams else FirstIdle(), alpha=Static(), chunk=Fixed(512),
        )  # fmt: skip
        records, _, _ = simulate(what, block)
        tpot = (records.finished_s - records.first_token_s) / np.maximum(
            1, records.output_tokens - 1
        )
        return records.first_token_s - records.arrival_s, tpot[records.output_tokens > 1]

    for before, after in zip(times(1.0), times(2.0), strict=True):
        for statistic in (np.mean, np.median, lambda v: np.percentile(v, 95)):
            # a request that starts earlier may share a step with another it did not meet before
            assert statistic(after) <= statistic(before) * (1 + 1e-3)
    if (axis, system) in {("link", "stream"), ("hbm", "resident"), ("sms", "stream")}:
        assert np.mean(times(2.0)[0]) < np.mean(times(1.0)[0])


def test_starts_are_told_apart_and_cost_what_they_should() -> None:
    constants = prepare(setup("llama-3-8b")).setup.constants
    disk = load_platform("gh200").host.disk_gbps
    weights = 16.06e9
    block = requests([0.0, 1000.0], output=1)
    switch, _, _ = simulate(setup("llama-3-8b"), block)
    cold, _, _ = simulate(setup("llama-3-8b", weights_start="disk"), block)
    assert switch.start_kind.tolist() == [1, 0]
    assert cold.start_kind.tolist() == [2, 0]
    ttft = [float(r.first_token_s[0]) for r in (switch, cold)]
    extra = weights / (disk * 1e9) + constants.engine_init_s
    assert ttft[1] - ttft[0] == pytest.approx(extra, rel=0.01)
    # A -> B -> A: on a chip with one slice each change is a switch, never a disk read again
    records, stats, _ = simulate(
        setup("llama-3-3b", "llama-3-8b", mig="1x96gb", weights_start="disk"),
        requests([0.0, 100.0, 200.0, 300.0], model=[0, 1, 0, 1], output=2),
    )
    assert records.start_kind.tolist() == [2, 2, 1, 1]
    assert stats.evictions == 3
    assert stats.cold_starts == 2


def test_no_model_starves() -> None:
    """A steady stream to one model does not keep another from the only slice."""
    arrivals = np.sort(np.concatenate([np.arange(0, 120, 0.2), [1.0]]))
    model = (np.arange(len(arrivals)) == np.searchsorted(arrivals, 1.0) + 1).astype(int)
    what = setup("llama-3-3b", "llama-3-8b", mig="1x96gb", preempt=AfterWaiting(5.0))
    records, stats, _ = simulate(what, requests(arrivals, model=model, output=50))
    waited = records.started_s - records.arrival_s
    assert stats.drains >= 1
    assert float(waited[records.model == 1].max()) < 15.0


@pytest.mark.parametrize("seed", [57, 128, 175])
def test_a_model_drained_from_its_only_slices_gets_its_requests_back(seed: int) -> None:
    """Found by fuzzing: a model kept both slices it was drained from, and its queue was lost."""
    what = setup(
        *["llama-3-8b"] * 5, "llama-3-70b", mig="2x48gb", place=FirstIdle(), tpot=2.0, max_batch=3,
        scale=AtOutstanding(3), preempt=AfterWaiting(1.0), check_slo=False,
        profile__chunks=(64, 256),
    )  # fmt: skip
    records, _, simulation = simulate(what, random_requests(80, 6, 1.0, seed), compiled=True)
    assert len(records) == 80
    assert (simulation.state.chip.claim == -1).all()


def test_a_prompt_longer_than_the_token_budget_is_chunked() -> None:
    what = setup("llama-3-3b", chunk=Fixed(64), profile__chunks=(64,))
    records, _, _ = simulate(what, requests([0.0], prompt=5000, output=2))
    assert records.chunks[0] == -(-5000 // 64)
    assert records.failure[0] == 0


def test_requests_that_cannot_be_served_fail_with_a_reason() -> None:
    context = load_spec("llama-3-8b").max_position
    what = setup("llama-3-8b", "llama-3-70b", tpot=1.0, check_slo=False)
    records, stats, _ = simulate(
        what,
        requests(
            [0.0, 1.0, 2.0], prompt=[context, 7000, 10], output=[1, 1000, 10], model=[0, 0, 0]
        ),
    )
    assert records.failure.tolist()[0] == FAIL_CONTEXT
    assert records.failure.tolist()[1:] == [0, 0]
    small: Any = setup("llama-3-8b", hbm_reserve_bytes=11.2e9)
    capacity = int(prepare(small).fleet.kv_capacity[0, 0])
    assert 0 < capacity < 6000
    records, stats, _ = simulate(
        small, requests([0.0, 1.0], prompt=[capacity, capacity - 1], output=[1, 1])
    )
    assert records.failure.tolist() == [FAIL_KV, 0]
    assert (stats.finished, stats.failed) == (1, 1)


def test_an_empty_workload_ends_at_once() -> None:
    records, stats, _ = simulate(setup())
    assert len(records) == 0
    assert stats.arrived == 0


def test_blocks_without_requests_change_nothing() -> None:
    block = random_requests(6, 1, 5.0, 0)
    none, first, rest = (block.take(slice(*ends)) for ends in ((0, 0), (0, 3), (3, 6)))
    whole, _, _ = simulate(setup("llama-3-3b"), block)
    records, stats, _ = simulate(setup("llama-3-3b"), none, first, none, rest, none)
    assert stats.arrived == 6
    assert records.tobytes() == whole.tobytes()
