"""One code, three ways to run it: interpreted, compiled, and as a pure step over the port."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.policies import (
    AfterWaiting,
    AtOutstanding,
    ByLayer,
    Feedback,
    FirstIdle,
    Fixed,
    RandomIdle,
    Resident,
    Roofline,
    Static,
)
from c2c.serving import ServingSetup, prepare
from c2c.serving.loop import run, step
from c2c.serving.port import Arrival
from c2c.simulator import Simulation, build_machine
from c2c.simulator.port import SimulatorBackend
from tests.simulator.worlds import random_requests, setup, simulate

SYSTEMS: dict[str, dict[str, Any]] = {
    "c2cserve": {},
    "roofline": {"alpha": Roofline(), "scale": AtOutstanding(3)},
    "layers": {"alpha": Feedback(initial=1.0), "step": ByLayer()},
    "random": {"place": RandomIdle(), "alpha": Static(), "chunk": Fixed(512)},
    "serverlessllm": {"load": Resident(), "place": FirstIdle(), "check_slo": False},
}


def _setup(name: str, superchips: int = 1) -> ServingSetup:
    mig = "1x96gb" if name == "serverlessllm" else "7x12gb"
    specs = ["llama-3-3b", "llama-3-8b"] * 5
    system = {"preempt": AfterWaiting(3.0), **SYSTEMS[name]}
    return setup(*specs, mig=mig, superchips=superchips, **system)


@pytest.mark.parametrize("name", SYSTEMS)
def test_compiled_equals_interpreted_to_the_bit(name: str) -> None:
    prepared = prepare(_setup(name, superchips=2))
    blocks = [random_requests(150, 10, 2.0, 1)]
    slow, slow_stats, _ = simulate(prepared, *blocks, compiled=False, timeline_rows=500)
    fast, fast_stats, _ = simulate(prepared, *blocks, compiled=True, timeline_rows=500)
    assert slow.tobytes() == fast.tobytes()
    assert len(slow) == 150
    np.testing.assert_array_equal(slow_stats.instance_link_bytes, fast_stats.instance_link_bytes)
    np.testing.assert_array_equal(slow_stats.busy_s, fast_stats.busy_s)


@pytest.mark.parametrize("name", ["c2cserve", "layers", "serverlessllm"])
def test_pure_step_over_the_port_gives_the_same_records(name: str) -> None:
    prepared = prepare(_setup(name))
    block = random_requests(80, 10, 2.0, 2)
    expected, _, _ = simulate(prepared, block)
    backend = SimulatorBackend(prepared, build_machine(prepared), block)
    state = run(prepared.fleet, prepared.rules, prepared.new_serving(), backend)
    got = np.sort(state.records[: state.count[0].out], order="id")
    assert got.tobytes() == expected.tobytes()


def test_step_leaves_its_argument_alone() -> None:
    prepared = prepare(_setup("c2cserve"))
    state = prepared.new_serving()
    before = [field.copy() for field in state]
    event = Arrival(at_s=0.0, request_id=0, model=0, prompt_tokens=5, max_output_tokens=5)
    first = step(prepared.fleet, prepared.rules, state, event)
    again = step(prepared.fleet, prepared.rules, state, event)
    for field, kept in zip(state, before, strict=True):
        assert field.tobytes() == kept.tobytes()
    assert first[1] == again[1]
    assert len(first[1]) == 1
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first[0], again[0], strict=True))


def test_blocks_and_buffers_do_not_change_the_result() -> None:
    prepared = prepare(_setup("c2cserve"))
    whole = random_requests(200, 10, 3.0, 3)
    parts = [whole.take(slice(k, k + 17)) for k in range(0, 200, 17)]
    expected, _, _ = simulate(prepared, whole, buffer=10_000)
    got, _, _ = simulate(prepared, *parts, buffer=1)
    assert got.tobytes() == expected.tobytes()


def test_two_simulations_in_one_process_do_not_touch_each_other() -> None:
    prepared = prepare(_setup("c2cserve"))
    block = random_requests(60, 10, 2.0, 4)
    alone, _, _ = simulate(prepared, block)
    one, two = (Simulation.start(prepared, build_machine(prepared), compiled=False) for _ in "ab")
    out: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for k in range(0, 60, 10):
        last = k == 50
        one.feed(block.take(slice(k, k + 10)), out[0].append, is_last=last)
        two.feed(block.take(slice(k, k + 10)), out[1].append, is_last=last)
    for parts in out:
        assert np.sort(np.concatenate(parts), order="id").tobytes() == alone.tobytes()
