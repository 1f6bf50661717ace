"""Prompts on one device, decodes on another, KV caches from device to device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import BackendError, SettingError
from c2c.policies import AtOutstanding, Fixed, Resident
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.serving.loop import step
from c2c.serving.tables.port import (
    Arrival,
    Cancelled,
    HandedOver,
    HandOver,
    Ready,
    RunSteps,
    StepEnd,
    new_report,
)
from c2c.workloads import RequestBlock
from tests.contracts.recorded import Recorded
from tests.contracts.watching import serve
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate

KV_BYTES = 131072  # of a token of Llama-3 8B


def apart(*models: str, **changes: Any) -> ServingSetup:
    """Return models resident on two GPUs from the start, the first of which takes prompts."""
    settings_: dict[str, Any] = {
        "mig": "1x96gb", "superchips": 2, "load": Resident(start_s=0.1), "chunk": Fixed(512),
        "starts_active": True, "disaggregation__prompt_share": 0.5, "check_slo": False,
    }  # fmt: skip
    return setup(*(models or ("llama-3-8b",)), **settings_ | changes)


def test_by_hand_a_prompt_of_1000_tokens_at_10_gb_per_s() -> None:
    """1,000 x 131,072 bytes take 13.1072 ms, and then one decode step begins at once."""
    (found,), stats, simulation = simulate(
        apart(disaggregation__hand_over_gbps=10.0),
        requests([0.0], prompt=1000, output=2),
        timeline_rows=9,
    )
    prompts, decodes = simulation.timeline()[:-1], simulation.timeline()[-1]
    assert prompts["prefill_tokens"].tolist() == [512, 488]
    assert found.first_token_s == prompts["end_s"][-1]
    assert (found.slice, decodes["instance"], decodes["decode_seqs"]) == (1, 1, 1)
    assert decodes["start_s"] - found.first_token_s == pytest.approx(0.0131072, abs=1e-12)
    assert found.finished_s == decodes["end_s"]
    assert stats.kv_out_bytes == stats.kv_in_bytes == 1000 * KV_BYTES
    assert stats.instance_link_bytes.sum() == 0.0  # the link to the host carries none of it


def test_slices_of_a_chip_send_as_fast_as_the_slower_one() -> None:
    made = apart("llama-3-3b", mig="4x24gb", superchips=1, disaggregation__hand_over_gbps=1e9)
    what = prepare(made)
    assert what.fleet.role.tolist() == [1, 1, 2, 2]
    block = requests([0.0], prompt=100, output=2)
    (found,), stats, simulation = simulate(what, block, timeline_rows=9)
    carried_s = simulation.timeline()["start_s"][-1] - found.first_token_s
    assert carried_s == pytest.approx(stats.kv_out_bytes / simulation.machine.link_cap[0])


def test_caches_of_a_sender_follow_one_another_and_no_decode_stands_still() -> None:
    """While three caches take 1 s each, a fourth request decodes without a pause."""
    size = 160 * KV_BYTES
    block = requests([0.0, 5.0, 5.0, 5.0], prompt=160, output=[1900, 2, 2, 2])
    slow = apart(disaggregation__hand_over_gbps=size / 1e9)
    records, _, simulation = simulate(slow, block, timeline_rows=100)
    alone, _, _ = simulate(slow, requests([0.0], prompt=160, output=1900))
    phases = simulation.timeline()
    steps = phases[phases["instance"] == 1]
    assert np.ptp(records.first_token_s[1:]) < 0.1
    due_s = records.first_token_s[1] + np.arange(1.0, 4.0)
    joins = [float(steps["start_s"][steps["start_s"] >= at][0]) for at in due_s]
    assert records.finished_s[1:] == pytest.approx([steps["end_s"][steps["start_s"] == at][0]
                                                    for at in joins])  # fmt: skip
    assert (np.array(joins) - due_s < 0.02).all()  # a step boundary
    assert (steps["start_s"][1:] == steps["end_s"][:-1]).all()
    # the long one pays for three steps that are a little longer, and for nothing else
    assert 0.0 < records.finished_s[0] - alone.finished_s[0] < 1e-3


def test_a_cache_waits_at_its_source_for_room_and_holds_up_prompts_there() -> None:
    tight = apart(max_batch=1, disaggregation__hand_over_gbps=1e6)
    block = requests([0.0, 0.0, 0.0], prompt=300, output=50)
    records, _, _ = simulate(tight, block)
    # `max_batch` 1: the next is sent when the one before has ended
    assert (np.diff(records.finished_s) > 0.2).all()
    assert (np.diff(records.first_token_s) < 0.1).all()
    short = apart(hbm_reserve_bytes=95e9 - 16.5e9, max_batch=32)
    capacity = int(prepare(short).fleet.kv_capacity[0, 0])
    long = requests([0.0] * 5, prompt=capacity // 2 - 100, output=100)
    waits, _, simulation = simulate(short, long)
    assert not waits.failure.any()
    assert not simulation.state.device.kv_bytes.any()
    # two on each device: the fifth prompt begins when a first has ended
    first_end_s = waits.finished_s.min()
    assert (waits.started_s < first_end_s).sum() == 4


def _short(n: int, seed: int, gbps: float, tokens: int, **changes: Any) -> tuple[Any, RequestBlock]:
    # HBM for so many KV tokens beside weights.
    made = apart("llama-3-3b", disaggregation__hand_over_gbps=gbps, **changes)
    spare = int(prepare(made).fleet.kv_capacity[0, 0]) - tokens
    token = float(prepare(made).fleet.costs.kv_bytes[0])
    short = replace(made.system, hbm_reserve_bytes=made.system.hbm_reserve_bytes + spare * token)
    return replace(made, system=short), random_requests(n, 1, 20.0, seed)


@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 25), seed=st.integers(0, 999), gbps=st.sampled_from([0.05, 1.0, 50.0]),
    tokens=st.sampled_from([1200, 3000, 40000]), superchips=st.integers(2, 4),
    max_batch=st.sampled_from([1, 3, 32]),
)  # fmt: skip
def test_laws(n: int, seed: int, gbps: float, tokens: int, superchips: int, max_batch: int) -> None:
    """`serve` checks at every event that memory holds, that nothing decodes before its KV cache has
    come, and at the end that there is a record of each request and everything is free."""
    made, block = _short(n, seed, gbps, tokens, superchips=superchips, max_batch=max_batch)
    what = prepare(made)
    over_port, _, watch = serve(what, Recorded(what, block))
    records, stats, _ = simulate(what, block)
    assert over_port.tobytes() == records.tobytes()
    assert not records.failure.any()
    goes = block.output_tokens > 1
    kv_bytes = float(what.fleet.costs.kv_bytes[0])
    assert stats.handed == goes.sum()
    assert stats.kv_out_bytes == stats.kv_in_bytes == block.prompt_tokens[goes].sum() * kv_bytes
    is_prompts = what.fleet.role == 1
    assert stats.prefill_tokens[is_prompts].sum() == block.prompt_tokens.sum()
    assert stats.decode_tokens[~is_prompts].sum() == (block.output_tokens - 1).sum()
    least_s = block.prompt_tokens * kv_bytes / (gbps * 1e9)
    assert (records.finished_s - records.first_token_s >= np.where(goes, least_s, 0.0)).all()
    assert watch.steps > 0


@settings(max_examples=6, deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 999))
def test_ttft_is_that_of_the_prompts_device_alone_where_nothing_is_short(n: int, seed: int) -> None:
    block = random_requests(n, 1, 20.0, seed)
    records, _, _ = simulate(apart("llama-3-3b", disaggregation__hand_over_gbps=1e12), block)
    alone = replace(block, output_tokens=np.ones_like(block.output_tokens))
    prompts, _, _ = simulate(
        apart("llama-3-3b", superchips=1, disaggregation__prompt_share=0.0), alone
    )
    np.testing.assert_allclose(records.first_token_s, prompts.first_token_s, rtol=1e-12)


def test_compiled_is_interpreted_to_the_byte() -> None:
    """Several models that start and give way, on slices that send to one another and abroad."""
    made = apart(
        *["llama-3-3b"] * 5, mig="4x24gb", starts_active=False, scale=AtOutstanding(3), max_batch=4
    )
    block = random_requests(120, 5, 6.0, 7)
    _, stats, _ = in_both_forms(made, block)
    assert stats.evictions > 5
    assert stats.handed > 80


def test_a_model_that_starts_is_active_on_a_device_of_each_role() -> None:
    what = prepare(apart("llama-3-3b", "llama-3-3b", superchips=4, one_each=True))
    active = what.new_serving().instance
    assert active.model.tolist() == [0, 1, 0, 1]
    with pytest.raises(SettingError, match=r"one_each.* 3 on 2"):
        prepare(apart(*["llama-3-3b"] * 3, superchips=4, one_each=True))


def test_without_a_start_decoding_starts_when_the_first_prompt_is_done() -> None:
    made = apart("llama-3-3b", starts_active=False)
    (found,), stats, simulation = simulate(made, requests([0.0], output=5), timeline_rows=9)
    assert stats.switches == 2
    loads = simulation.timeline()[simulation.timeline()["is_load"] == 1]
    assert loads["start_s"].tolist() == [0.0, found.first_token_s]
    assert found.start_kind == 1


class Loop:
    """The loop at the port, up to a request whose KV cache is on its way."""

    def __init__(self) -> None:
        self.what: Prepared = prepare(apart("llama-3-3b"))
        self.state = self.what.new_serving()
        ask = Arrival(at_s=0.0, request_id=7, model=0, prompt_tokens=100, max_output_tokens=50)
        (prompt,) = self.take(ask)
        assert isinstance(prompt, RunSteps)
        report = new_report(steps=1, latency_s=0.1, available_gbps=100.0)
        (self.sent,) = self.take(StepEnd(at_s=1.0, device=0, report=report))

    def take(self, event: Any) -> tuple[Any, ...]:
        self.state, actions = step(self.what.fleet, self.what.rules, self.state, event)
        return actions

    def held(self) -> list[float]:
        held: list[float] = (
            self.state.device.kv_bytes / self.what.fleet.costs.kv_bytes[0]
        ).tolist()
        return held


def test_both_devices_hold_a_cache_until_it_has_come() -> None:
    loop = Loop()
    kv_bytes = 100 * float(loop.what.fleet.costs.kv_bytes[0])
    assert loop.sent == HandOver(
        request_id=7, source=0, device=1, instance=1, kv_bytes=kv_bytes, directly=True
    )
    assert loop.held() == [150.0, 150.0]
    (run,) = loop.take(HandedOver(at_s=1.5, request_id=7))
    assert (run.device, run.decodes) == (1, (7,))
    assert loop.held() == [0.0, 150.0]
    with pytest.raises(BackendError, match=r"request_id=7: expected .* on its way"):
        loop.take(HandedOver(at_s=1.6, request_id=7))


def test_a_request_that_is_cancelled_on_its_way_frees_both_devices() -> None:
    loop = Loop()
    loop.take(Cancelled(at_s=1.2, request_id=7))
    assert loop.held() == [0.0, 0.0]
    assert not loop.state.inbound.sent.any()
    assert (loop.state.instance.state == 3).all()  # idle
    assert loop.take(HandedOver(at_s=1.5, request_id=7)) == ()  # too late


def test_a_model_that_is_not_loaded_gets_nothing_yet() -> None:
    """The cache stays where it is while the target loads, and goes when that is ready."""
    what = prepare(apart("llama-3-3b", starts_active=False))
    state = what.new_serving()
    ask = Arrival(at_s=0.0, request_id=7, model=0, prompt_tokens=100, max_output_tokens=50)
    state, _ = step(what.fleet, what.rules, state, ask)
    state, _ = step(what.fleet, what.rules, state, Ready(at_s=1, device=0, available_gbps=1.0))
    report = new_report(steps=1, latency_s=0.1, available_gbps=100.0)
    end = StepEnd(at_s=2.0, device=0, report=report)
    state, (load,) = step(what.fleet, what.rules, state, end)
    assert load.device == 1
    assert (state.device.kv_bytes > 0.0).tolist() == [True, False]
    state, (sent,) = step(
        what.fleet, what.rules, state, Ready(at_s=3, device=1, available_gbps=1.0)
    )
    assert isinstance(sent, HandOver)
    assert (state.device.kv_bytes > 0.0).all()
