"""Closed loops: never more in flight than clients, Little's law, equal records in every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.serving import FAIL_CONTEXT, FAIL_NONE, prepare
from c2c.simulator import build_machine
from c2c.simulator.run import Simulation, run_blocks
from c2c.workloads import ClosedLoop, RequestBlock, write_trace
from tests.contracts.recorded import Recorded
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests, setup
from tests.tiers import tiered

MODELS = ("llama-3-3b", "llama-3-8b")


def simulate(
    prepared: Any, loop: ClosedLoop, *blocks: RequestBlock, compiled: bool = False,
    buffer: int = 256,
) -> np.recarray:  # fmt: skip
    simulation = Simulation.start(
        prepared, build_machine(prepared), loop=loop, compiled=compiled, buffer=buffer
    )
    parts: list[Any] = []
    run_blocks(simulation, blocks, parts.append)
    return np.sort(np.concatenate(parts), order="id").view(np.recarray)


def in_flight(records: np.recarray) -> tuple[int, float]:
    """Return the most requests in flight at a time, and their mean until the last arrival."""
    ends = np.where(records.failure == FAIL_NONE, records.finished_s, records.arrival_s)
    at = np.concatenate([ends, records.arrival_s])
    step = np.concatenate([np.full(len(ends), -1), np.ones(len(ends))])
    order = np.lexsort((step, at))  # at equal times one ends before the next begins
    at, count = at[order], np.cumsum(step[order])
    until = records.arrival_s.max()
    upto = np.minimum(at, until)
    mean = float(np.sum(count[:-1] * np.diff(upto)) / until)
    return int(count.max()), mean


@pytest.mark.parametrize("clients", tiered([1, 3, 40], 3))
@pytest.mark.parametrize("think_s", [0.0, 2.0])
def test_never_more_in_flight_than_clients(clients: int, think_s: float) -> None:
    prepared = prepare(setup(*MODELS))
    records = simulate(
        prepared, ClosedLoop(concurrency=clients, think_s=think_s), random_requests(90, 2, 1.0, 7)
    )
    assert len(records) == 90
    most, _ = in_flight(records)
    assert most == clients  # all begin at once
    if think_s == 0.0:
        # nobody waits to send: each arrival after the first ones is at the end of another request
        later = records.arrival_s[clients:]
        assert np.isin(later, records.finished_s).all()


def test_littles_law() -> None:
    clients, think_s = 6, 3.0
    prepared = prepare(setup(*MODELS))
    records = simulate(
        prepared, ClosedLoop(concurrency=clients, think_s=think_s), random_requests(400, 2, 1.0, 3)
    )
    span_s = records.arrival_s.max()
    rate = (len(records) - clients) / span_s  # of sending again
    seconds = float((records.finished_s - records.arrival_s).mean())
    # clients = rate * (time in the system + time to think)
    assert rate * (seconds + think_s) == pytest.approx(clients, rel=0.05)
    _, mean = in_flight(records)
    assert mean == pytest.approx(rate * seconds, rel=0.05)


def test_one_client_is_a_chain() -> None:
    prepared = prepare(setup("llama-3-3b"))
    records = simulate(
        prepared, ClosedLoop(concurrency=1, think_s=0.25), random_requests(12, 1, 1.0, 5)
    )
    np.testing.assert_array_equal(records.arrival_s[1:], records.finished_s[:-1] + 0.25)


def test_clients_may_begin_one_after_another() -> None:
    prepared = prepare(setup("llama-3-3b"))
    loop = ClosedLoop(concurrency=4, ramp_s=20.0)
    records = simulate(prepared, loop, random_requests(40, 1, 1.0, 5))
    assert {5.0, 10.0, 15.0} <= set(records.arrival_s.tolist())
    assert (np.diff(records.arrival_s) >= 0).all()


def test_blocks_and_buffers_do_not_matter() -> None:
    prepared = prepare(setup(*MODELS))
    whole = random_requests(120, 2, 1.0, 11)
    parts = [whole.take(slice(a, a + 17)) for a in range(0, 120, 17)]
    loop = ClosedLoop(concurrency=5, think_s=0.1)
    one = simulate(prepared, loop, whole)
    many = simulate(prepared, loop, *parts, buffer=prepared.fleet.max_batch + 4)
    assert one.tobytes() == many.tobytes()


@pytest.mark.slow
def test_compiled_interpreted_and_over_the_port_are_the_same() -> None:
    prepared = prepare(setup(*MODELS))
    block = random_requests(80, 2, 1.0, 2)
    # one that no model takes: its client has its answer at once
    prompt = block.prompt_tokens.copy()
    prompt[11] = 10**6
    block = RequestBlock(
        arrival_s=block.arrival_s, model=block.model, prompt_tokens=prompt,
        output_tokens=block.output_tokens,
    )  # fmt: skip
    loop = ClosedLoop(concurrency=4, think_s=0.5)
    interpreted = simulate(prepared, loop, block)
    over_port, _, _ = serve(prepared, Recorded(prepared, block, loop=loop))
    compiled = simulate(prepared, loop, block, compiled=True)
    assert interpreted.failure[11] == FAIL_CONTEXT
    assert interpreted.tobytes() == over_port.tobytes() == compiled.tobytes()


def test_a_closed_loop_is_no_trace(tmp_path: Path) -> None:
    loop = build(load(["workload=closed_loop", "workload.requests=5"])).workload
    with pytest.raises(SettingError, match="closed_loop"):
        write_trace(tmp_path / "t.parquet", loop)
    assert not list(tmp_path.iterdir())


def test_the_workload_of_the_settings() -> None:
    made = build(load([
        "catalog=dense6", "workload=closed_loop", "workload.requests=20", "workload.models=6",
        "workload.concurrency=3", "workload.think_s=1.5",
    ]))  # fmt: skip
    assert made.workload.loop == ClosedLoop(concurrency=3, think_s=1.5)
    assert sum(map(len, made.workload.blocks())) == 20
