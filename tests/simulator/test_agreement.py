"""A run does not depend on how it is cut up, nor on what else runs."""

from __future__ import annotations

import numpy as np

from c2c.policies import AfterWaiting
from c2c.serving import Prepared, prepare
from c2c.simulator import Simulation, build_machine
from tests.simulator.worlds import random_requests, setup, simulate


def _prepared() -> Prepared:
    return prepare(setup(*["llama-3-3b", "llama-3-8b"] * 5, preempt=AfterWaiting(3.0)))


def test_blocks_and_buffers_do_not_change_the_result() -> None:
    prepared = _prepared()
    whole = random_requests(200, 10, 3.0, 3)
    parts = [whole.take(slice(k, k + 17)) for k in range(0, 200, 17)]
    expected, _, _ = simulate(prepared, whole, buffer=10_000)
    got, _, _ = simulate(prepared, *parts, buffer=1)
    assert got.tobytes() == expected.tobytes()


def test_two_simulations_in_one_process_do_not_touch_each_other() -> None:
    prepared = _prepared()
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
