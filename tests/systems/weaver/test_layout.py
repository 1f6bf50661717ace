"""A hot and a cold model in the serving loop: woven steps, shared memory, prompts apart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.hardware import load_node
from c2c.models import Deployment, kv_bytes_per_token, load_catalog
from c2c.policies import ByRatio, Fixed
from c2c.serving import ServingSetup, StepLayout, Work, path_ends, prepare
from c2c.systems.weaver import Weaving, expected_stall, woven_layout
from c2c.systems.weaver.layout import _Over, cut_of, pair_times
from c2c.systems.weaver.live.woven import is_away
from tests.rooms.laws import served
from tests.simulator.lanes import over, woven
from tests.simulator.worlds import random_requests, requests, simulate

MODELS = load_catalog("hot_and_cold")
NODE = load_node("a100_40_nvlink")
SMALL = load_catalog(
    [
        {"name": "hot", "spec": "qwen1.5-0.5b", "spec_name": "a"},
        {"name": "cold", "spec": "qwen1.5-1.8b", "spec_name": "b"},
    ]
)


@cache
def layout(
    models: tuple[Deployment, ...] = MODELS, rows: int = 64, node: str = "a100_40_nvlink",
    **given_: Any,
) -> StepLayout:  # fmt: skip
    made = Weaving(**given_)
    return woven_layout(made, models, load_node(node), rows=rows, tokens=2048)


def setup(made: StepLayout, ratio: float = 0.45, models: Any = MODELS, **more: Any) -> ServingSetup:
    """A setup of the models over a layout; those of `over` are named by shipped specs."""
    fields = {"vary": ByRatio(ratio), "max_batch": 64} | more
    base = over(woven(0.01, 0.0, 0.002, 0.01), **fields)
    return replace(base, deployments=models, system=replace(base.system, layout=made))


def two_models(n: int, rate: float, seed: int) -> Any:
    return random_requests(n, 2, rate, seed)


@pytest.mark.parametrize("way", ["dedicated", "spatial", "temporal", "woven"])
@pytest.mark.parametrize("prompt_devices", [None, 0, 1, 2])
def test_both_models_are_served(way: str, prompt_devices: int | None) -> None:
    if prompt_devices and way in ("spatial", "temporal"):
        with pytest.raises(SettingError, match=r"prompt_devices=[12]: expected 0 or null"):
            layout(way=way, prompt_devices=prompt_devices)
        return
    made = layout(way=way, prompt_devices=prompt_devices)
    found, stats, _ = simulate(setup(made), two_models(40, 20.0, 3))
    assert len(found) == 40
    assert stats.failed == 0


@pytest.mark.parametrize("way", ["dedicated", "spatial", "temporal", "woven"])
def test_prompts_take_time_unless_asked_otherwise(way: str) -> None:
    """A prompt of 2,000 tokens takes 2 * parameters * tokens at the tensor cores' peak at least."""
    block = requests([0.0], model=[1], prompt=2000, output=2)
    cores = 2 if way == "temporal" else 1
    least_s = 2 * 6.9e9 * 2000 / (cores * 312e12)  # llama-3-8b without embedding and head
    for given_, low, high in (
        ({}, least_s, 3 * least_s), ({"prompt_devices": None}, 0.0, 0.1 * least_s),
    ):  # fmt: skip
        made = setup(layout(way=way, **given_), chunk=Fixed(2048))
        found, _, _ = simulate(made, block)
        assert low < float(found["first_token_s"][0]) < high


def test_keys_of_a_prompt_that_is_away_cross_the_link() -> None:
    block = requests([0.0], model=[0], prompt=2000, output=2)
    one_s = 2000 * kv_bytes_per_token(MODELS[0].spec) / 100e9
    ttft = [
        float(simulate(setup(layout(ratio=r), r), block)[0]["first_token_s"][0]) for r in (0.0, 1.0)
    ]
    assert ttft[1] - ttft[0] == pytest.approx(one_s, rel=0.05)


def test_the_layout_names_its_gpus() -> None:
    assert [name for name, _ in layout(way="temporal").gpus] == ["both", "both"]
    apart = layout(prompt_devices=2)
    assert {name for name, _ in apart.gpus} < {*apart.resources}
    assert [platform.name for _, platform in apart.gpus] == ["a100_40"] * 6


@settings(max_examples=4, deadline=None)
@given(st.sampled_from([0.0, 0.45, 1.0]), st.sampled_from([1, 2, None]), st.integers(0, 10**6))
def test_memory_is_never_exceeded(ratio: float, prompts: int | None, seed: int) -> None:
    """The laws hold at every step on cards with room for some requests only."""
    made = layout(SMALL, ratio=ratio, kv_share=0.12, prompt_devices=prompts)
    if prompts is None:
        served(setup(made, ratio, SMALL, max_batch=16), two_models(25, 100.0, seed))
    found, stats, _ = simulate(setup(made, ratio, SMALL, max_batch=16), two_models(25, 100.0, seed))
    assert len(found) == 25
    assert stats.failed == 0


def test_nothing_away_is_the_dedicated_pair_to_the_byte() -> None:
    block = two_models(60, 15.0, 5)
    beside, _, _ = simulate(setup(layout(ratio=0.0), 0.0), block)
    apart, _, _ = simulate(setup(layout(way="dedicated")), block)
    assert beside.tobytes() == apart.tobytes()


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("node", ["a100_40_nvlink", "l40s_pcie"])
@pytest.mark.parametrize("rows", [4, 60])
def test_a_step_is_the_rest_and_the_longer_side_of_each_layer(
    ratio: float, node: str, rows: int
) -> None:
    """The planner's numbers at the batch that the cut is made for."""
    asked = Weaving(ratio=ratio, rows=rows)
    made = _Over(asked, tuple(m.spec for m in MODELS[:2]), load_node(node), 64, 0, None)
    hot, cold, away = (
        made._times(made.hot, 0),
        made._times(made.colds[0], 1),
        made._times(made.hot, 1),
    )
    pair = pair_times(asked, hot, cold, made.gpus, made.node, away)
    (plan,) = made.layout().lanes[0].steps[MODELS[0].spec.name]
    lengths = cut_of(asked, pair).lengths
    counts = {None: rows, 0: rows - pair.away, 1: pair.away}

    def seconds(work: Work) -> float:
        cost: Any = work.seconds
        count = counts[work.home]
        return float(
            cost.decode.at(count) + cost.tokens.at(count) + cost.cached * count * asked.context
        )

    found = max(path_ends(plan, seconds).values())
    # the mean of max(K, W + N): W is uniform within an operator, which is met by its length
    rng = np.random.default_rng(0)
    each = np.array(lengths)
    drawn = rng.choice(each, 400_000, p=each / each.sum()) * rng.random(400_000)
    layer_s = np.maximum(pair.local_s, drawn + pair.away_s + pair.wire_s).mean()
    assert found == pytest.approx(pair.rest_s + pair.layers * layer_s, rel=2e-3)
    exact = pair.iteration_s + pair.layers * expected_stall(lengths, pair.slack_s)
    assert found == pytest.approx(exact, rel=1e-9)


def test_a_lone_sequence_takes_its_own_side() -> None:
    """A step stalls only beside a cold model that computes."""
    made = layout(ratio=0.5)
    what = setup(made, 0.5)
    plan: Any = made.lanes[0].steps[MODELS[0].spec.name][0]
    by_name = {work.name: work for work in plan}
    lengths = 301 + np.arange(10)

    def seconds(names: tuple[str, ...]) -> float:
        works = [by_name[name].seconds for name in names]
        once = sum(float(c.at(1)) for cost in works for c in (cost.decode, cost.tokens))
        return 10 * once + float(sum(cost.cached * lengths.sum() for cost in works))

    for seed in range(8):
        away = is_away(seed, 0, 0.5)
        names = ("rest", "sent", "away") if away else ("rest", "own")
        seeded = replace(what, seed=seed)
        found, _, _ = simulate(seeded, requests([0.0], prompt=300, output=11))
        took = float(found.finished_s[0] - found.first_token_s[0])
        assert took == pytest.approx(seconds(names), rel=1e-9)
        both = requests([0.0, 0.0], model=[0, 1], prompt=300, output=[11, 400])
        found, _, _ = simulate(seeded, both)
        took = float(found.finished_s[0] - found.first_token_s[0])
        names += ("stall",) if away else ()
        assert took == pytest.approx(seconds(names), rel=1e-9)
    assert by_name["stall"].seconds.decode.at(1) > 0


def test_the_cold_model_grows_by_what_it_meets() -> None:
    """It is slowed by attention of the hot one's sequences, and by polls where any are away."""
    hot = [(0.0, 0)] * 24
    block = requests(
        [0.0] * 25, model=[m for _, m in hot] + [1], prompt=900, output=[400] * 24 + [100]
    )
    took = {}
    for ratio in (0.0, 0.25, 0.5, 0.75):
        found, _, _ = simulate(setup(layout(ratio=ratio, cut="none"), ratio), block)
        cold = found[found["model"] == 1][0]
        took[ratio] = float(cold["finished_s"] - cold["first_token_s"]) / 99
    assert took[0.0] < took[0.25] < took[0.5] < took[0.75]


@pytest.mark.slow
def test_the_largest_batch_uses_the_cold_gpu() -> None:
    """More sequences at once than the hot GPU holds, and none beyond both rooms."""
    sizes = {}
    for ratio, cold_share in ((0.0, 0.0), (0.45, 0.0), (0.45, 1.0)):
        made = layout(rows=512, ratio=ratio, cold_share=cold_share)
        block = requests([0.0] * 400, prompt=1800, output=200)
        found, _, _ = simulate(setup(made, ratio, max_batch=512), block)
        at = np.unique(found["started_s"])
        live = [int(((found["started_s"] <= t) & (found["finished_s"] > t)).sum()) for t in at]
        sizes[ratio, cold_share] = max(live)
        room = sum(made.memories.values()) - made.lanes[1].reserve.get("gpu1", 0.0)
        assert max(live) * 2000 * kv_bytes_per_token(MODELS[0].spec) <= room
    assert sizes[0.0, 0.0] == sizes[0.45, 1.0]
    assert sizes[0.45, 0.0] > 1.5 * sizes[0.0, 0.0]


def test_steps_of_multiplexed_models_take_turns() -> None:
    """While both have a batch, each waits for one step of the other."""
    made = layout(way="temporal", prompt_devices=None)
    plans: Any = [lane.steps[m.spec.name][0] for lane, m in zip(made.lanes, MODELS, strict=True)]
    block = requests([0.0] * 21, model=[0] * 20 + [1], prompt=300, output=[300] * 20 + [20])
    found, _, _ = simulate(setup(made), block)
    cold = found[found["model"] == 1][0]
    took = float(cold["finished_s"] - cold["first_token_s"]) / 19
    seconds = [p[0].seconds.decode.at(n) + p[0].seconds.cached * n * 310 for p, n in
               zip(plans, (20, 1), strict=True)]  # fmt: skip
    assert took == pytest.approx(float(sum(seconds)), rel=0.03)


def test_a_cpu_that_issues_ahead_makes_tasks_wait() -> None:
    plans: Any = [
        layout(ahead_s=ahead).lanes[0].steps[MODELS[0].spec.name][0] for ahead in (0.0, 4e-3)
    ]
    stall = [float(plan[-1].seconds.decode.at(20)) for plan in plans]
    assert stall[0] == 0.0
    assert 0.0 < stall[1] <= 32 * 4e-3


def test_the_hot_model_may_be_the_second() -> None:
    made = layout(hot="cold")
    assert list(made.lanes[0].steps) == [MODELS[1].spec.name]
    assert prepare(setup(made)).fleet.instances == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ratio": 1.5}, r"system\.layout\.ratio=1\.5: expected a share in \[0, 1\]"),
        ({"way": "mux"}, r"system\.layout\.way='mux': expected one of dedicated, spatial"),
        ({"cut": "halves"}, r"system\.layout\.cut='halves': expected one of"),
        ({"hot": "llama"}, r"system\.layout\.hot='llama': expected one of cold, hot"),
        ({"kv_share": 0.2}, r"GPUs with room for llama-3-8b-hot; a100_40 lacks"),
        ({"way": "temporal", "kv_share": 0.4}, r"GPUs with room for both models; they lack"),
        ({"prompt_devices": 9}, r"prompt_devices=9: expected 0 to 8, or null"),
        ({"poll_s": -1.0}, r"poll_s=-1\.0: expected seconds, at least 0"),
        ({"ahead_s": -1.0}, r"ahead_s=-1\.0: expected seconds, at least 0, or null"),
        ({"threshold_of": "step"}, r"system\.layout\.threshold_of='step': expected one of"),
        ({"sm_share": 1.0}, r"sm_share=1\.0: expected a share in \(0, 1\)"),
        ({"models": MODELS[:1]}, r"catalog=\['hot'\]: expected 2 models"),
        ({"node": "a100_l40s", "way": "woven"}, None),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert layout(**changed).lanes
        return
    with pytest.raises(SettingError, match=said):
        layout(**changed)
