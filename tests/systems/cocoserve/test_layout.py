"""CoCoServe in the serving loop: steps, memories and homes of scaled models over four devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import step_time as table_step_time
from c2c.errors import SettingError
from c2c.hardware import load_node
from c2c.models import kv_bytes_per_token, load_spec
from c2c.policies import ByThresholds, Static
from c2c.serving import FAIL_NONE, Curve, ServingSetup, StepLayout, Work, path_ends, prepare
from c2c.systems.cocoserve import Scaling, devices_of, headroom, placement_of, step_time
from c2c.systems.cocoserve.layout import scaled_layout
from tests.rooms.laws import Anything, served
from tests.simulator.lanes import over
from tests.simulator.worlds import random_requests, requests, simulate

SPEC = load_spec("llama-2-13b")
NODE = load_node("a100_40_pcie_x4")


@cache
def layout(rows: int = 64, tokens: int = 512, **given: Any) -> StepLayout:
    return scaled_layout(Scaling(**given), SPEC, NODE, rows=rows, tokens=tokens)


def scaled(made: StepLayout, **system: Any) -> ServingSetup:
    """A setup served by a layout, scaled for good unless a controller chooses."""
    alpha = {} if {"vary", "alpha"} & {*system} else {"alpha": Static(1.0)}
    return over(made, **alpha, **system)


def seconds(work: Work, rows: dict[int | None, int], context: int) -> float:
    count = rows[work.home]
    amount: Any = work.seconds
    by_rows = float(amount.decode.at(count) + amount.tokens.at(count))
    return by_rows + amount.cached * count * context


@pytest.mark.parametrize(
    "given_",
    [
        {}, {"replicated": 30}, {"replicated": 20, "copies": 4}, {"replicated": 30, "over": 3},
        {"migrated": 1}, {"replicated": 10, "migrated": 10}, {"split": 4},
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 15, 60])
def test_a_step_alone_is_the_predicted_one(given_: dict[str, Any], batch: int) -> None:
    made, want = layout(**given_), placement_of(Scaling(**given_), SPEC, NODE, 0)
    homes = max(want.counts)
    plan = made.lanes[0].steps[SPEC.name][-1]
    opened = made.lanes[0].open_homes[-1]
    split = [batch // homes + (k < batch % homes) for k in range(homes)]
    rows: dict[int | None, int] = {None: batch, **dict(zip(opened, split, strict=True))}
    ends = path_ends(plan, lambda work: seconds(work, rows, 300))
    devices = devices_of(SPEC, NODE, most_rows=64)
    found = step_time(want, devices, batch=batch, context=300).seconds
    assert max(ends.values()) == pytest.approx(found, rel=0.01)


@given(st.integers(1, 400), st.integers(1, 64))
def test_a_step_of_prompts_and_decodes_reads_its_weights_once(prompt: int, rows: int) -> None:
    costs: list[Any] = [work.seconds for work in layout().lanes[0].steps[SPEC.name][0]]
    mixed_s = sum(
        cost.prefill.at(prompt) + cost.decode.at(rows) + cost.tokens.at(prompt + rows)
        + cost.cached * rows * 300
        for cost in costs
    )  # fmt: skip
    found = table_step_time(
        devices_of(SPEC, NODE, most_rows=512).tables[0], prefill_tokens=prompt, decode_seqs=rows,
        decode_kv_tokens=rows * 300, head_rows=rows,
    ).seconds  # fmt: skip
    assert mixed_s == pytest.approx(found, rel=0.01)


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 8), st.sampled_from([2.0, 30.0]), st.integers(0, 10**6))
def test_layers_and_caches_move_while_requests_come(n: int, rate: float, seed: int) -> None:
    made = layout(replicated=30, between=2, copies=2, migrated=2)
    controller = Anything(period_s=0.4, variants=4, seed=seed)
    served(scaled(made, vary=controller, max_batch=8), random_requests(n, 1, rate, seed))


@pytest.mark.parametrize("kv", ["every", "copies"])
@pytest.mark.parametrize("layers", [10, 30])
def test_the_largest_batch_is_the_headroom(kv: str, layers: int) -> None:
    """Memory of the first device ends a batch; copies relieve it of their sequences' caches.

    Thirty layers on one device would leave less room there than on the first.
    """
    share = (26.03e9 + 0.53e9 + 10.0e9) / 42.3e9  # for about 40 requests of 300 tokens
    sizes = []
    for given_ in ({}, {"replicated": layers, "over": 3, "kv": kv}):
        made = layout(rows=256, memory_share=share, **given_)
        block = requests([0.0] * 200, prompt=100, output=200)
        found, _, _ = simulate(scaled(made, max_batch=256), block, compiled=False)
        starts, ends = found["started_s"], found["finished_s"]
        sizes.append(max(int(np.sum((starts <= at) & (ends > at))) for at in starts))
    tokens = layout(memory_share=share).memories["gpu0"] / kv_bytes_per_token(SPEC)
    assert sizes[0] == int(tokens // 300)
    part = {"every": 0.5, "copies": 1.0}[kv]
    assert sizes[1] == pytest.approx(headroom(layers, part, model_layers=40) * sizes[0], abs=2.0)


def test_what_cannot_be_is_refused() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"replicated": 41}, r"system\.layout\.replicated=41: expected at most 40 layers"),
        ({"replicated": 30, "migrated": 11}, r"migrated=11: expected at most 10 beside"),
        ({"replicated": 2, "copies": 5}, r"copies=5: expected copies on at most 3 other devices"),
        ({"firsts": (4,)}, r"firsts=4: expected 0 to 3"),
        ({"firsts": (0, 0)}, r"firsts=\(0, 0\): expected distinct device"),
        ({"way": "best"}, r"system\.layout\.way='best': expected one of"),
        ({"memory_share": 0.5}, r"devices with room for llama-2-13b; device 0 lacks"),
        ({"host_s": -1.0}, r"host_s=-1\.0: expected seconds, at least 0"),
    )
    for changed, said in wrong:
        with pytest.raises(SettingError, match=said):
            layout(**changed)


def test_two_instances_have_copies_on_the_other_two_devices() -> None:
    made = layout(firsts=(0, 1), replicated=7)
    assert [lane.kv_homes[-1].keys() for lane in made.lanes] == [
        {"gpu0", "gpu2"}, {"gpu1", "gpu3"},
    ]  # fmt: skip
    found, stats, _ = simulate(
        scaled(made, max_batch=16), requests(np.arange(40) * 0.05, prompt=85, output=40)
    )
    assert len(found) == 40
    assert stats.relayouts == 0
    assert prepare(scaled(made)).fleet.instances == 2


def test_planners_place_copies_where_there_is_room() -> None:
    runs = placement_of(Scaling(way="runs"), SPEC, NODE, 0)
    assert 0 < sum(p > 1 for p in runs.counts) <= 40
    assert set(runs.devices) == {0, 1}
    assert isinstance(layout(way="runs").lanes[0].steps[SPEC.name][0][0].seconds.decode, Curve)  # type: ignore[union-attr]


def test_the_controller_loses_to_neither_rest_nor_migration() -> None:
    rng = np.random.default_rng(5)
    block = requests(np.cumsum(rng.exponential(1 / 14.0, 300)), prompt=85, output=256)
    p95 = {}
    for name, given_, system in (
        ("unscaled", {}, {"alpha": Static(0.0)}),
        ("migrated", {"migrated": 20}, {"alpha": Static(1.0)}),
        ("controlled", {"replicated": 30, "between": 1}, {"vary": ByThresholds()}),
    ):
        what = scaled(layout(rows=128, tokens=4096, **given_), max_batch=128, **system)
        records, stats, _ = simulate(what, block, compiled=True)
        assert (records.failure == FAIL_NONE).all()
        p95[name] = np.percentile(records.first_token_s - records.arrival_s, 95)
        assert (stats.relayouts > 0) == (name == "controlled")
    assert p95["controlled"] < 0.5 * p95["unscaled"]
    assert p95["controlled"] < 1.2 * p95["migrated"]  # which has moved its layers before


def test_instances_copy_onto_each_others_devices() -> None:
    made = layout(rows=32, firsts=(0, 1, 2, 3), replicated=10, between=1)
    targets = {c.target for lane in made.lanes for copies in lane.copies for c in copies}
    assert targets == {"gpu0", "gpu1", "gpu2", "gpu3"}
    served(
        scaled(made, vary=ByThresholds(period_s=0.2), max_batch=8), random_requests(6, 1, 9.0, 1)
    )
