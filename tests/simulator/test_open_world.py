"""Requests that come while the world runs are served as those of a workload are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from c2c.serving import FAIL_DEVICE, FAIL_NONE, Prepared
from c2c.serving.loop import Step
from c2c.serving.port import Cancelled
from c2c.serving.state import Loop
from c2c.simulator import build_machine
from c2c.simulator.open_world import OpenWorld
from c2c.simulator.port import SimulatorBackend
from c2c.workloads import RequestBlock
from tests.contracts.systems import models, prepared
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests

# An example takes a second: as it was drawn it is small enough.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)


def _serve_open(
    what: Prepared, block: RequestBlock, most: int, cancelled: dict[int, float]
) -> tuple[np.ndarray, dict[int, int]]:
    """Return records by place in the block, and how many tokens came of each."""
    world = OpenWorld(what, build_machine(what), most)
    rules = what.new_rules()
    state = what.new_serving(buffer=1, rules=rules)
    take = Step(Loop(what.fleet, rules, state), compiled=True)
    number: dict[int, int] = {}  # the loop's: the block's
    tokens = dict.fromkeys(range(len(block)), 0)
    records: dict[int, np.ndarray] = {}
    outside = [(float(at_s), "comes", k) for k, at_s in enumerate(block.arrival_s)]
    outside += [(at_s, "cancelled", k) for k, at_s in cancelled.items()]
    outside.sort()
    while outside or number:
        until_s = outside[0][0] if outside else world.next_s
        event = world.next_event(until_s)
        if event is None:
            assert outside, "all that was opened ends"
            at_s, happens, k = outside.pop(0)
            if happens == "comes":
                event = world.open(
                    at_s=at_s,
                    model=int(block.model[k]),
                    prompt_tokens=int(block.prompt_tokens[k]),
                    output_tokens=int(block.output_tokens[k]),
                )
                number[event.request_id] = k
            elif k in number.values():
                slot = next(slot for slot, one in number.items() if one == k)
                event = Cancelled(at_s=at_s, request_id=slot)
            else:
                continue
        state, actions = take(state, event)
        for slot, got in world.got.items():
            if slot in number:
                tokens[number[slot]] += got
        world.got = {}
        for row in state.records[: int(state.count[0].out)]:
            records[number.pop(int(row.id))] = row.copy()
            world.close(int(row.id))
        state.count[0].out = 0
        world.submit(float(state.count[0].now_s), actions)
    assert sorted(records) == list(range(len(block))), "each once"
    return np.array([records[k] for k in range(len(block))]), tokens


@pytest.mark.parametrize("system", ["mig_resident", "c2cserve", "triage_3"])
@settings(max_examples=4, phases=AS_DRAWN)
@given(n=st.integers(1, 12), rate=st.sampled_from([0.5, 4.0, 200.0]), seed=st.integers(0, 2**31))
def test_an_open_world_serves_as_a_workload_is_served(
    system: str, n: int, rate: float, seed: int
) -> None:
    what = prepared(system, "tight")
    block = random_requests(n, models(system), rate, seed)
    over_port, _, _ = serve(what, SimulatorBackend(what, build_machine(what), block))
    over_port = over_port[np.argsort(over_port.id)]
    found, tokens = _serve_open(what, block, n, {})
    assert (found["failure"] == over_port.failure).all()
    good = over_port.failure == FAIL_NONE
    assert [tokens[k] for k in np.flatnonzero(good)] == block.output_tokens[good].tolist()
    for name in ("first_token_s", "finished_s"):
        np.testing.assert_allclose(found[name][good], over_port[name][good], rtol=1e-9)


@settings(max_examples=6, phases=AS_DRAWN)
@given(
    n=st.integers(2, 40),
    seed=st.integers(0, 2**31),
    cancelled=st.dictionaries(st.integers(0, 39), st.floats(0.0, 30.0), max_size=20),
)
def test_numbers_are_used_again_though_requests_are_cancelled_in_the_middle(
    n: int, seed: int, cancelled: dict[int, float]
) -> None:
    what = prepared("c2cserve", "tight")
    block = random_requests(n, models("c2cserve"), 20.0, seed)
    found, tokens = _serve_open(what, block, n, {k: s for k, s in cancelled.items() if k < n})
    for k in np.flatnonzero(found["failure"] == FAIL_NONE):
        assert tokens[k] == block.output_tokens[k]
    assert not (found["failure"] == FAIL_DEVICE).any()
