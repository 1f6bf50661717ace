"""Batch schedulers: laws of each, a user's own among them, interpreted, compiled and live."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import BatchTraits, fill
from c2c.serving import FAIL_NONE, ServingSetup, prepare
from c2c.serving.schedulers.sglang import SGLang
from c2c.serving.schedulers.token_budget import Sarathi, VllmV1
from c2c.serving.schedulers.vllm_v0 import VllmV0
from tests.contracts.systems import prepared
from tests.contracts.test_any_order import _hold
from tests.docs.test_recipes import blocks
from tests.simulator.worlds import requests, setup, simulate
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


@pytest.mark.parametrize("batch", GROWING, ids=NAMES)
def test_every_answer_is_whole_and_compiled_alike(batch: Any) -> None:
    what, block = _busy(batch)
    records, stats, simulation = simulate(what, block)
    assert records.id.tolist() == list(range(len(block)))
    assert (records.failure == FAIL_NONE).all()
    np.testing.assert_array_equal(records.output_tokens, block.output_tokens)
    np.testing.assert_array_equal(records.prompt_tokens, block.prompt_tokens)
    assert stats.preempted > 0
    state = simulation.state
    assert not state.device.kv_bytes.any()
    assert not state.instance.kv_used.any()
    compiled, again, _ = simulate(what, block, compiled=True)
    assert compiled.tobytes() == records.tobytes()
    assert again.preempted == stats.preempted


@pytest.mark.parametrize("batch", tiered(GROWING, GROWING[0], GROWING[4]), ids=NAMES)
@pytest.mark.parametrize("system", ["serverlessllm", "c2cserve"])
def test_any_order_of_events_holds_the_laws(system: str, batch: Any) -> None:
    made = prepared(system, "tight").setup
    _hold(prepare(replace(made, system=replace(made.system, batch=batch))), 3)


@pytest.mark.parametrize(
    ("system", "setting"),
    [("triage_3", "engines.residents"), ("tessera", "batch")],
)
def test_what_cannot_grow_refuses_it(system: str, setting: str) -> None:
    made = prepared(system, "roomy").setup
    with pytest.raises(SettingError, match=f"system.{setting}") as refused:
        replace(made.system, batch=VllmV1())
    assert "vllm_v1" in str(refused.value)


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
