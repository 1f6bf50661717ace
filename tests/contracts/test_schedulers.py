"""Batch schedulers: laws of each, a user's own among them, interpreted, compiled and live."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import BatchTraits, Reserved, fill
from c2c.serving import FAIL_NONE, ServingSetup, prepare
from c2c.serving.batches.schedulers.sglang import SGLang
from c2c.serving.batches.schedulers.token_budget import Sarathi, VllmV1
from c2c.serving.batches.schedulers.vllm_v0 import VllmV0
from tests.contracts.recorded import Recorded
from tests.contracts.systems import MIXES, prepared
from tests.contracts.test_any_order import _hold
from tests.contracts.watching import serve
from tests.docs.test_recipes import blocks
from tests.simulator.worlds import in_both_forms, requests, setup, simulate
from tests.tiers import tiered


def users_module(name: str) -> Any:
    """Return an example of docs/recipes.md as a module outside the package."""
    module = ModuleType(name)
    sys.modules[name] = module
    code = blocks(Path(__file__).parents[2])[f"mydir/system/{name}.py"]
    file = Path(tempfile.mkdtemp()) / f"{name}.py"
    file.write_text(code)
    exec(compile(code, file, "exec"), module.__dict__)
    return module


GROWING = [
    VllmV1(max_tokens=600),
    VllmV0(max_tokens=600),
    Sarathi(chunk=300),
    SGLang(chunk=600, new_token_ratio=0.0, clip_tokens=1),
    users_module("longest_goes").LongestGoes(),
]
NAMES = [type(batch).__name__ for batch in GROWING]


RESERVE_BYTES = 11.1e9  # which leaves room for some 5,800 tokens


def _busy(batch: Any, count: int = 60, seed: int = 0) -> tuple[ServingSetup, Any]:
    """Seven slices with little room, of which one serves more requests than fit at once."""
    rng = np.random.default_rng(seed)
    what = setup(
        "llama-3-3b", mig="7x12gb", batch=batch, hbm_reserve_bytes=RESERVE_BYTES, check_slo=False
    )
    block = requests(
        np.cumsum(rng.exponential(0.01, count)),
        prompt=rng.integers(1, 400, count), output=rng.integers(100, 900, count),
    )  # fmt: skip
    return what, block


@pytest.mark.parametrize("batch", tiered(GROWING, GROWING[0], GROWING[4]), ids=NAMES)
def test_every_answer_is_whole_and_compiled_alike(batch: Any) -> None:
    what, block = _busy(batch)
    records, stats, simulation = in_both_forms(what, block)
    assert records.id.tolist() == list(range(len(block)))
    assert (records.failure == FAIL_NONE).all()
    np.testing.assert_array_equal(records.output_tokens, block.output_tokens)
    np.testing.assert_array_equal(records.prompt_tokens, block.prompt_tokens)
    assert stats.preempted > 0
    state = simulation.state
    assert not state.device.kv_bytes.any()
    assert not state.instance.kv_used.any()


@pytest.mark.parametrize(
    ("system", "batch"),
    tiered(
        product(["serverlessllm", "c2cserve", "triage_3", "parked_3"], GROWING),
        ("c2cserve", GROWING[4]), ("triage_3", GROWING[0]),
    ),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_any_order_of_events_holds_the_laws(system: str, batch: Any) -> None:
    made = prepared(system, "tight").setup
    _hold(prepare(replace(made, system=replace(made.system, batch=batch))), 3)


@pytest.mark.parametrize("system", ["apart_3", "tessera"])
def test_what_cannot_grow_refuses_it(system: str) -> None:
    made = prepared(system, "roomy").setup
    with pytest.raises(SettingError, match=r"system\.batch") as refused:
        replace(made.system, batch=VllmV1())
    assert "vllm_v1" in str(refused.value)


def _sharing(batch: Any, room_bytes: float) -> ServingSetup:
    """Three engines on one slice, with so much room for all their KV caches."""
    what = setup(
        "llama-3-3b", "llama-3-3b", "llama-3-3b", mig="1x96gb", check_slo=False,
        **MIXES["triage_3"] | {"batch": batch, "engines__bytes": 1e6},
    )  # fmt: skip
    too_many = float(prepare(what).fleet.kv_capacity_bytes[0, 0]) - room_bytes
    reserve_bytes = what.system.hbm_reserve_bytes + too_many
    return replace(what, system=replace(what.system, hbm_reserve_bytes=reserve_bytes))


@pytest.mark.parametrize("batch", tiered(GROWING), ids=NAMES)
def test_engines_that_share_a_slice_grow(batch: Any) -> None:
    what, rng = _sharing(batch, 0.45e9), np.random.default_rng(1)
    block = requests(
        np.cumsum(rng.exponential(0.01, 40)), prompt=rng.integers(1, 200, 40),
        output=rng.integers(300, 900, 40), model=rng.integers(0, 3, 40),
    )  # fmt: skip
    records, stats, simulation = simulate(what, block, compiled=True)
    assert records.id.tolist() == list(range(len(block)))
    np.testing.assert_array_equal(records.output_tokens, block.output_tokens)
    assert stats.preempted > 0
    assert not simulation.state.device.kv_bytes.any()
    reserved = replace(what, system=replace(what.system, batch=Reserved()))
    waits, _, _ = simulate(reserved, block, compiled=True)
    assert records.finished_s.max() < waits.finished_s.max()


def test_an_engine_begins_where_its_answer_has_room_beside_others() -> None:
    what = _sharing(VllmV1(), 0.14e9)
    room = int(prepare(what).fleet.kv_capacity[0, 0])
    block = requests(
        np.array([0.0, 1.0]), model=np.array([0, 1]), prompt=np.full(2, 10),
        output=np.array([200, room - 20]),
    )  # fmt: skip
    records, _, _ = simulate(what, block, compiled=True)
    first, second = records
    assert second.started_s >= first.finished_s


@pytest.mark.slow
def test_the_newest_gives_way_where_no_engine_has_room_for_a_token() -> None:
    # Two engines with a short answer and a long one each: once the short ones have ended, neither
    # long one has room for all of its answer, and both grow until nothing is left.
    what = _sharing(VllmV1(), 0.14e9)
    room = int(prepare(what).fleet.kv_capacity[0, 0])
    block = requests(
        np.array([0.0, 0.001, 0.002, 0.003]), model=np.array([0, 0, 1, 1]),
        prompt=np.full(4, 10), output=np.array([20, room - 20, 20, room - 20]),
    )  # fmt: skip
    records, stats, _ = simulate(what, block)
    np.testing.assert_array_equal(np.sort(records.output_tokens), np.sort(block.output_tokens))
    assert stats.preempted == 1
    ends_s = records.finished_s[np.argsort(records.id)]
    assert ends_s[3] > ends_s[1] > ends_s[2]
    compiled, _, _ = simulate(what, block, compiled=True)
    held, _, _ = serve(prepare(what), Recorded(prepare(what), block))  # to the laws
    assert compiled.tobytes() == held.tobytes() == records.tobytes()


def test_a_request_joins_by_what_is_used_not_by_what_a_run_may_come_to() -> None:
    what, _ = _busy(VllmV1(), 1)
    room = int(prepare(what).fleet.kv_capacity[0, 0])
    block = requests([0.0, 5.0], prompt=[10, room // 4], output=[room - 100, 10])
    records, stats, _ = simulate(what, block, compiled=True)
    assert stats.preempted == 0
    assert records.finished_s[1] < 10.0 < records.finished_s[0]


class Pretender(NamedTuple):
    """Says that it is the default."""

    traits = BatchTraits(is_default=True)


@fill.by(Pretender)
def _fill(policy: Pretender, w: Any, i: int, now_s: float) -> int:
    return 1


def test_only_the_default_may_say_that_it_is() -> None:
    made = prepared("serverlessllm", "roomy").setup
    with pytest.raises(SettingError, match=r"system.batch='pretender'.*is_default"):
        replace(made.system, batch=Pretender())
