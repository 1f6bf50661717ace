"""Requests that come while a simulation runs are served as those of a workload are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from c2c.serving import FAIL_NONE
from c2c.serving.tables.state import NOBODY
from c2c.simulator import Simulation, build_machine
from c2c.simulator.progress import progress
from c2c.workloads import RequestBlock, concatenate
from tests.contracts.systems import models, prepared
from tests.simulator.worlds import random_requests, simulate
from tests.tiers import tiered

# An example takes a second: as it was drawn it is small enough.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)


def _serve_open(
    system: str, block: RequestBlock, cancelled: dict[int, float]
) -> tuple[np.ndarray, dict[int, int]]:
    """Return records by id, and the tokens that were seen of each request while it was open."""
    what = prepared(system, "tight")
    machine = build_machine(what)._replace(cuts_runs=True, most_steps=1)
    simulation = Simulation.start(what, machine)
    parts: list[np.ndarray] = []
    seen: dict[int, int] = {}

    def look() -> None:
        for row in progress(simulation.state):
            request, tokens = int(row["id"]), int(row["tokens"])
            assert seen.get(request, 0) <= tokens <= seen.get(request, 0) + 1, "one by one"
            seen[request] = tokens

    def go_to(at_s: float) -> None:
        while (next_s := simulation.next_s) < at_s:
            simulation.feed(concatenate([]), parts.append, until_s=next_s)
            look()

    happens: list[tuple[float, str, int]] = [
        (float(at_s), "comes", k) for k, at_s in enumerate(block.arrival_s)
    ]
    for at_s, what_happens, k in sorted(
        happens + [(at_s, "is cancelled", k) for k, at_s in cancelled.items()]
    ):
        go_to(at_s)
        if what_happens == "comes":
            simulation.feed(block.take(slice(k, k + 1)), parts.append, until_s=at_s)
        else:
            simulation.cancel(k, at_s, parts.append)
        look()
    go_to(np.inf)
    assert (simulation.state.request.id == NOBODY).all()
    records = np.sort(np.concatenate(parts), order="id")
    return records, seen


@pytest.mark.parametrize("system", tiered(["c2cserve", "mig_resident", "triage_3"]))
@settings(max_examples=4, deadline=None, phases=AS_DRAWN)
@given(n=st.integers(1, 12), rate=st.sampled_from([0.5, 4.0, 200.0]), seed=st.integers(0, 2**31))
def test_requests_one_by_one_are_served_as_a_workload_is(
    system: str, n: int, rate: float, seed: int
) -> None:
    block = random_requests(n, models(system), rate, seed)
    one_by_one, seen = _serve_open(system, block, {})
    machine = build_machine(prepared(system, "tight"))._replace(cuts_runs=True, most_steps=1)
    whole, _, _ = simulate(prepared(system, "tight"), block, machine=machine)
    assert one_by_one.tobytes() == whole.tobytes()
    for row in whole[whole.failure == FAIL_NONE]:
        assert seen.get(int(row.id), 0) == row.output_tokens - 1  # the last one ends it


@settings(max_examples=6, deadline=None, phases=AS_DRAWN)
@given(
    n=st.integers(2, 40),
    seed=st.integers(0, 2**31),
    cancelled=st.dictionaries(st.integers(0, 39), st.floats(0.0, 30.0), max_size=20),
)
def test_each_request_ends_once_though_some_are_cancelled(
    n: int, seed: int, cancelled: dict[int, Any]
) -> None:
    block = random_requests(n, models("c2cserve"), 20.0, seed)
    records, seen = _serve_open("c2cserve", block, {k: s for k, s in cancelled.items() if k < n})
    assert records["id"].tolist() == list(range(n))
    served = records[records["failure"] == FAIL_NONE]
    assert (served["output_tokens"] == block.output_tokens[served["id"]]).all()
    assert {int(r) for r in records["id"][records["failure"] != FAIL_NONE]} <= cancelled.keys()
    for row in records:
        assert seen.get(int(row["id"]), 0) <= row["output_tokens"]
