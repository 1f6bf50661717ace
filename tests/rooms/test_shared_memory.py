"""Two models share one device's memory, of which each has a reserve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.hardware import load_platform, slices
from c2c.models import kv_bytes_per_token, load_spec
from c2c.serving import FAIL_KV, FAIL_NONE, Copy, Cost, Curve, Lane, StepLayout, Work
from c2c.serving.prepare.memories import lane_tokens
from tests.rooms.laws import served
from tests.simulator.lanes import COLD, SPEC, over
from tests.simulator.worlds import random_requests, requests, simulate

BYTES = [kv_bytes_per_token(load_spec(name)) for name in (SPEC, COLD)]


def one_device(room: float, reserves: tuple[float, float], *, by_age: bool = False) -> StepLayout:
    """A lane for each model on one device; all in bytes."""
    (place, *_) = slices(load_platform("gh200"), "1x96gb")
    curve = Curve((1, 4096), np.array([2e-3, 2e-2]))
    cost = Cost(curve, curve, cached=1e-8)
    lanes = tuple(
        Lane(
            place=replace(place, name=spec),
            steps={spec: ((Work(name="step", seconds=cost, draws={"gpu": cost}),),)},
            kv_homes=({"memory": 1.0},),
            reserve={"memory": reserve},
        )
        for spec, reserve in zip((SPEC, COLD), reserves, strict=True)
    )
    return StepLayout(name="shared", resources=("gpu",), lanes=lanes, by_age=by_age,
                      memories={"memory": room})  # fmt: skip


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 40), st.sampled_from([5.0, 1000.0]), st.floats(0.0, 0.4), st.floats(0.0, 0.4),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_neither_takes_the_others_reserve(
    n: int, rate: float, first: float, second: float, by_age: bool, seed: int
) -> None:
    room = 4000.0 * max(BYTES)
    made = one_device(room, (first * room, second * room), by_age=by_age)
    served(over(made, max_batch=8), random_requests(n, 2, rate, seed))


@pytest.mark.parametrize("kept", [0, 2])
def test_a_reserve_keeps_room_for_a_request_that_comes_later(kept: int) -> None:
    """Ten requests of 1,000 tokens fill the memory but for what is kept for the other model."""
    tokens = 1000
    room = 10 * tokens * BYTES[0] + kept * tokens * BYTES[1]
    made = one_device(room, (0.0, float(kept * tokens * BYTES[1])))
    block = requests([0.0] * 30 + [0.5], model=[0] * 30 + [1], prompt=500, output=500)
    records, _, _ = served(over(made, max_batch=64), block)
    waits_s = records.admitted_s[-1] - records.arrival_s[-1]
    if kept:
        assert waits_s < 0.1  # at the step boundary
    else:
        assert waits_s > 0.5  # until one of ten has all its tokens


def test_what_a_lane_holds_alone_is_all_but_the_others_reserve() -> None:
    room = 1000.0 * BYTES[1]
    made = over(one_device(room, (0.25 * room, 0.0)))
    records, _, _ = simulate(made, requests([0.0] * 2, model=1, prompt=[651, 650], output=100))
    assert list(records.failure) == [FAIL_KV, FAIL_NONE]  # 750 tokens are all it may have


def test_room_is_counted_beside_every_variant_of_other_lanes() -> None:
    """One variant of the first lane needs more of one memory, the other one of the other."""
    made = one_device(1000.0 * BYTES[1], (0.0, 0.0))
    first, second = made.lanes
    (plan,) = first.steps[SPEC]
    room = 1000.0 * BYTES[1]
    copies = ((Copy("host", "memory", 0.6 * room),), (Copy("host", "beside", 0.5 * room),))
    both = replace(
        made,
        memories={"memory": room, "beside": room},
        lanes=(
            replace(first, steps={SPEC: (plan, plan)}, copies=copies),
            replace(second, kv_homes=({"memory": 1.0}, {"beside": 1.0})),
        ),
    )
    assert lane_tokens(both, load_spec(COLD), second.place) == 500
    only = replace(both, lanes=(both.lanes[0], second))
    assert lane_tokens(only, load_spec(COLD), second.place) == 400
