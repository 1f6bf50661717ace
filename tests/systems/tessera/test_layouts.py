"""A pair in the serving loop: closed forms, pipelined steps one by one, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from c2c.config import build, load
from c2c.cost.kernel_graph import Load
from c2c.errors import SettingError
from c2c.hardware import load_node
from c2c.models import load_spec, weight_bytes
from c2c.policies import ByWait
from c2c.serving import Prepared
from c2c.systems.tessera import Costs, Lanes, Pair, PairLayout, Steps, pair_layout, pipelined
from c2c.systems.tessera.lanes import PARTS
from tests.simulator.lanes import layout, over
from tests.simulator.worlds import requests, simulate

SPEC, PAIR = load_spec("llama-3-8b"), Pair(node=load_node("a100_l40s"))
CATALOG = "catalog.models=[{spec: llama-3-8b, ttft_slo_s: 1.0, tpot_slo_s: 0.1}]"


def prepared(system: str, *more: str) -> Prepared:
    overrides = [f"system={system}", "workload=poisson", CATALOG]
    return build(load([*overrides, "system.layout.expert_bytes=2", *more])).prepared


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
    assert done.world.works.used[0, 2:].sum() == pytest.approx(prefill_s + 49 * step_s)


def test_rank_gives_what_groups_one_by_one_give() -> None:
    """Two lanes over both GPUs by turns, the older first: the pipelined steps' throughput."""
    step = Steps(
        gpu_of=(0, 1), seconds=(1.0, 1.0), waits=(0, 1), sends=(((1, 0.0),), ()),
        order=((0,), (1,)),
    )  # fmt: skip
    one_by_one = pipelined([step], [[0] * 20, [0] * 20], "priority", 2).seconds
    works = [(0.0, {}), (2.0, {0: 1.0, 1: 1.0})]
    made = over(layout(*[[[work] for work in works]] * 2, resources=2), max_batch=1)
    records, _, _ = simulate(made, requests([0.0, 0.0], output=21))
    assert records.finished_s.max() == pytest.approx(one_by_one, rel=0.03)


def test_sizes_between_are_interpolated_and_beyond_in_proportion() -> None:
    costs = Costs((1.0, 3.0), ((1.0, 0.0), (2.0, 4.0)), (2.0, 8.0))
    assert costs.at(2.0) == (pytest.approx((1.5 / 5, 2 / 5)), pytest.approx(5.0))
    assert costs.at(6.0) == (pytest.approx((4 / 16, 8 / 16)), pytest.approx(16.0))


def test_a_window_shorter_than_a_switch_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"system\.vary\.window_s=0\.02: .*0\.03 s"):
        prepared("tessera", "system.vary.window_s=0.02")


def test_prefill_and_decode_apart_take_prompt_link_and_steps(lanes: Lanes) -> None:
    what = prepared("pd", "system.layout.first=left")
    records, _, _ = simulate(what, requests([0.0], 0, 1024, 50))
    first_s = lanes.single(0).prefill.at(1024)[1] + lanes.handed_s(1024, 0)
    assert records.first_token_s[0] == pytest.approx(first_s, rel=1e-6)
    steps_s = 49 * lanes.single(1).decode.at(1)[1]
    assert records.finished_s[0] == pytest.approx(first_s + steps_s, rel=1e-6)
    assert what.slice_kinds[what.kind_of[records.slice[0]]].name.endswith("l40s")


def test_what_cannot_be_is_refused() -> None:
    def refused(field: str, spec: str = "llama-3-8b", **given: Any) -> None:
        given = {"way": "replicas"} | given
        with pytest.raises(SettingError, match=field):
            pair_layout(PairLayout(**given), PAIR, load_spec(spec), rows=8)

    refused(r"layout\.way", way="kernel")
    refused(r"layout\.first", first="above")
    refused(r"layout\.in_flight", in_flight=0)
    refused(r"layout\.expert_bytes", expert_bytes=0.0)
    refused(r"layout\.gbps", gbps=-1.0)
    with pytest.raises(SettingError, match=r"layout\.contxt='3': expected a key among"):
        prepared("replicas", "+system.layout.contxt=3")
    refused("node", spec="llama-3-70b")


def test_a_node_and_a_layout_need_one_another() -> None:
    with pytest.raises(SettingError, match=r"node=.*no node without system\.layout"):
        build(load(["node=a100_l40s", "workload=poisson"]))
    with pytest.raises(SettingError, match="node=None"):
        build(load(["system=replicas", "~node", "workload=poisson"]))
    with pytest.raises(SettingError, match="superchips"):
        build(load(["system=replicas", "catalog=dense", "workload=poisson"]))
    with pytest.raises(SettingError, match="weights_start"):
        build(load(["system=replicas", "weights_start=disk", "workload=poisson"]))
    with pytest.raises(SettingError, match=r"scale\.hbm"):
        build(load(["system=replicas", "scale.hbm=2", "workload=poisson"]))


def test_waits_choose_nothing_where_steps_have_no_variants() -> None:
    setup = build(load(["workload=poisson"])).serving
    with pytest.raises(SettingError, match=r"system\.vary\.policy"):
        replace(setup, system=replace(setup.system, vary=ByWait()))


@pytest.mark.parametrize("policy", ["latency", "throughput"])
def test_a_joint_plan_holds_a_model_that_neither_gpu_does(policy: Any) -> None:
    """Weights are on one GPU each, and what is left of both holds keys and values."""
    big, reserve = load_spec("qwen3-32b"), 3e9
    given = PairLayout(way="kernels", plans="joint", objective=policy, hbm_reserve_bytes=reserve)
    with pytest.raises(SettingError, match=r"l40s has 48 GB\. With system\.layout\.plans=joint"):
        pair_layout(PairLayout(way="kernels"), PAIR, big, rows=8)
    made = pair_layout(given, PAIR, big, rows=8)
    hbm = sum(gpu.gpu.hbm_bytes for gpu in PAIR.gpus)
    assert sum(made.memories.values()) == pytest.approx(
        hbm - 2 * reserve - weight_bytes(big), rel=1e-4
    )
    assert min(made.memories.values()) > 0
    (shares,), rows = made.lanes[0].kv_homes, made.worker["parts"].split()
    attention = [int(row[PARTS.index("attention")]) for row in rows]
    assert shares.get("l40s", 0.0) == pytest.approx(sum(attention) / big.layers)
    assert len(rows) == big.layers


def test_a_request_alone_takes_what_a_joint_plan_says() -> None:
    what = prepared("tessera", "system.layout.plans=joint", "system.layout.in_flight=1")
    records, _, _ = simulate(what, requests([0.0], 0, 1024, 20))
    load_ = Load(prompt=1020, output=128, rows=64, prompts=1)
    lane = Lanes(spec=SPEC, pair=PAIR, context=1084).joint("latency", load_, 2e9).lane
    alone_s = lane.prefill.at(1024)[1] + 19 * lane.decode.at(1)[1]
    assert records.finished_s[0] == pytest.approx(alone_s, rel=1e-6)


def test_equal_gpus_are_a_pair() -> None:
    made = prepared("replicas", "node.gpus=[l40s,l40s]", "system.layout.hbm_reserve_bytes=1e9")
    assert made.setup.system.layout is not None
    assert made.setup.system.layout.resources[::2] == ("l40s 1", "l40s 2")
