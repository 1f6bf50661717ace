"""A pair in the serving loop: against the simulation of lanes alone, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.policies import ByWait, note_end, variant
from c2c.serving import Prepared
from c2c.systems.tessera import (
    Arrival,
    Lanes,
    Monitor,
    MonitorState,
    Server,
    finish,
    load_pair,
    pair_layout,
    serve,
    tick,
)
from tests.simulator.worlds import requests, simulate

SPEC, PAIR = load_spec("llama-3-8b"), load_pair("a100_l40s")
CATALOG = "catalog.models=[{spec: llama-3-8b, ttft_slo_s: 1.0, tpot_slo_s: 0.1}]"


def prepared(system: str, *more: str) -> Prepared:
    overrides = [f"system={system}", "workload=poisson", CATALOG]
    return build(load([*overrides, "system.layout.expert_bytes=2", *more])).prepared


def both(what: Prepared, server: Server, rate: float, n: int, seed: int) -> tuple[Any, Any]:
    """Seconds a token of the same requests, in the loop and of lanes alone."""
    g = np.random.default_rng(seed)
    at = np.cumsum(g.exponential(1 / rate, n))
    prompt, output = g.integers(100, 3000, n), g.integers(2, 300, n)
    records, _, _ = simulate(what, requests(at, 0, prompt, output))
    done, _ = serve(
        server,
        [Arrival(float(t), int(p), int(o)) for t, p, o in zip(at, prompt, output, strict=True)],
    )
    ours = (records.finished_s - records.arrival_s) / records.output_tokens
    return ours, np.array([d.per_token_s for d in done])


@pytest.fixture(scope="module")
def lanes() -> Lanes:
    return Lanes(spec=SPEC, pair=PAIR, context=1084)


def test_a_request_alone_takes_what_the_tables_say(lanes: Lanes) -> None:
    lane = lanes.attention_ffn(1)
    what = prepared("af", "system.layout.first=right")
    records, _, done = simulate(what, requests([3.0], 0, 700, 50))
    prefill_s, step_s = lane.prefill.at(700)[1], lane.decode.at(1)[1]
    assert records.first_token_s[0] - 3.0 == pytest.approx(prefill_s)
    assert records.finished_s[0] - 3.0 == pytest.approx(prefill_s + 49 * step_s)
    assert done.world.lanes.used_s[0].sum() == pytest.approx(prefill_s + 49 * step_s)


@pytest.mark.parametrize(("system", "rate"), [("replicas", 8.0), ("af", 4.0)])
def test_the_loop_agrees_with_lanes_alone(lanes: Lanes, system: str, rate: float) -> None:
    """Below what the pair sustains. The loop's steps are mixed; there prompts hold up decodes."""
    if system == "af":
        what = prepared(system, "system.layout.first=right", "system/route=ends_first")
        server = Server({"latency": (lanes.attention_ffn(1),) * 2})
    else:
        what = prepared(system)
        server = Server({"latency": (lanes.single(0), lanes.single(1))})
    ours, theirs = both(what, server, rate, 60, seed=2)
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.1)
    assert np.median(ours / theirs) == pytest.approx(1.0, abs=0.1)


def test_prefill_and_decode_apart_take_prompt_link_and_steps(lanes: Lanes) -> None:
    what = prepared("pd", "system.layout.first=left")
    records, _, _ = simulate(what, requests([0.0], 0, 1024, 50))
    first_s = lanes.single(0).prefill.at(1024)[1] + lanes.handed_s(1024, 0)
    assert records.first_token_s[0] == pytest.approx(first_s, rel=1e-6)
    steps_s = 49 * lanes.single(1).decode.at(1)[1]
    assert records.finished_s[0] == pytest.approx(first_s + steps_s, rel=1e-6)
    assert what.slice_kinds[what.kind_of[records.slice[0]]].name.endswith("l40s")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(1.0, 3.0)), max_size=30),
    st.sampled_from([0.0, 0.2]),
)
def test_the_variant_is_the_monitors_policy(ends: list[tuple[float, float]], band: float) -> None:
    policy, monitor = ByWait(band=band), Monitor(band=band)

    class Chips:
        chip_first = np.zeros(2)

    own = policy.memory(Chips)
    state, now_s = MonitorState(ends_s=monitor.window_s), 0.0
    for gap_s, ratio in ends:
        now_s += gap_s
        note_end(policy, own, 0, ratio, 1.0)
        state = tick(finish(state, ratio, 1.0), monitor, now_s)
        chosen = variant(policy, own, 0, now_s)
        assert ("latency", "throughput")[chosen] == state.policy
        assert own.ends_s[0] == pytest.approx(state.ends_s)


def test_what_cannot_be_is_refused() -> None:
    def refused(field: str, spec: str = "llama-3-8b", **given: Any) -> None:
        with pytest.raises(SettingError, match=field):
            pair_layout({"way": "replicas"} | given, PAIR, load_spec(spec), rows=8)

    refused(r"layout\.way", way="kernel")
    refused(r"layout\.first", first="above")
    refused(r"layout\.in_flight", in_flight=0)
    refused(r"layout\.expert_bytes", expert_bytes=0.0)
    refused(r"layout\.gbps", gbps=-1.0)
    refused(r"layout\.contxt", contxt=3)
    refused("pair", spec="llama-3-70b")


def test_a_pair_and_a_layout_need_one_another() -> None:
    with pytest.raises(SettingError, match=r"pair=.*over none"):
        build(load(["pair=a100_l40s", "workload=poisson"]))
    with pytest.raises(SettingError, match="pair=None"):
        build(load(["system=replicas", "~pair", "workload=poisson"]))
    with pytest.raises(SettingError, match="catalog"):
        build(load(["system=replicas", "catalog=dense", "workload=poisson"]))
    with pytest.raises(SettingError, match="weights_start"):
        build(load(["system=replicas", "weights_start=disk", "workload=poisson"]))
    with pytest.raises(SettingError, match=r"scale\.hbm"):
        build(load(["system=replicas", "scale.hbm=2", "workload=poisson"]))


def test_waits_choose_nothing_where_steps_have_no_variants() -> None:
    setup = build(load(["workload=poisson"])).serving
    with pytest.raises(SettingError, match=r"system\.vary\.policy"):
        replace(setup, system=replace(setup.system, vary=ByWait()))
