"""A hot model's sequences keep their KV caches on a cold model's device, which attends to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.draws import draw
from c2c.hardware import load_platform, slices
from c2c.models import kv_bytes_per_token, load_spec
from c2c.policies import kv_home, variant
from c2c.serving import FAIL_DEVICE, Cost, Curve, Lane, StepLayout, Work
from c2c.serving.tables.port import DeviceLost
from tests.rooms.laws import served, served_while_lost
from tests.simulator.lanes import COLD, SPEC, over
from tests.simulator.worlds import random_requests, requests, simulate

HOT_BYTES, COLD_BYTES = (kv_bytes_per_token(load_spec(name)) for name in (SPEC, COLD))


class Away(NamedTuple):
    """A drawn share of the sequences has its caches away, if there is room."""

    ratio: float = 0.5


@kv_home.by(Away)
def _home(
    policy: Away, own: Any, table: Any, count: int, instance: int, request: int, tokens: int,
    seed: int,
) -> int:  # fmt: skip
    away = count > 1 and table[1].room_tokens >= tokens
    if away and draw(seed, request, 0, 0, 0) < policy.ratio:
        return 1
    return 0 if table[0].room_tokens >= tokens else -1


@variant.by(Away)
def _first(policy: Away, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    return 0


def flat(seconds: float, rows_s: float = 0.0) -> Curve:
    sizes = np.array([1.0, 4096.0])
    return Curve((1, 4096), seconds + rows_s * sizes)


def pair(*, hot: int, cold: int, reserve: int, wait_s: float = 1e-3) -> StepLayout:
    """A hot and a cold model on devices that hold so many of their own tokens."""
    (place, *_) = slices(load_platform("gh200"), "1x96gb")
    prompt = Cost(flat(5e-3, 1e-5))
    rest = Cost(decode=flat(2e-3, 1e-5))
    attends = Cost(decode=flat(1e-4, 1e-5), cached=2e-8)
    waits = Cost(decode=flat(wait_s))
    step = (
        Work(name="prompt", seconds=prompt, draws={"hot": prompt}),
        Work(name="rest", seconds=rest, draws={"hot": rest}, after=("prompt",)),
        Work(name="K", seconds=attends, draws={"hot": attends}, home=0, after=("rest",)),
        Work(name="W", seconds=waits, home=1, after=("rest",)),
        Work(name="N", seconds=attends, draws={"cold": attends}, home=1, after=("W",), rank=1),
    )
    both = Cost(flat(8e-3, 1e-5), flat(4e-3, 2e-5), cached=3e-8)
    alone = (Work(name="step", seconds=both, draws={"cold": both}),)
    return StepLayout(
        name="woven",
        resources=("hot", "cold"),
        lanes=(
            Lane(place=replace(place, name="hot"), steps={SPEC: (step,)},
                 kv_homes=({"hot": 1.0}, {"cold": 1.0})),
            Lane(place=replace(place, name="cold"), steps={COLD: (alone,)},
                 kv_homes=({"cold": 1.0},), reserve={"cold": reserve * COLD_BYTES}),
        ),
        by_age=False,
        memories={"hot": hot * HOT_BYTES, "cold": cold * COLD_BYTES},
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 30), st.sampled_from([5.0, 100.0]), st.sampled_from([0.0, 0.45, 1.0]),
    st.sampled_from([1200, 5000]), st.integers(0, 10**6),
)  # fmt: skip
def test_both_models_are_served(n: int, rate: float, ratio: float, room: int, seed: int) -> None:
    made = pair(hot=room, cold=2 * room, reserve=room)
    served(over(made, vary=Away(ratio), max_batch=8), random_requests(n, 2, rate, seed))


def test_a_step_takes_the_longer_side() -> None:
    """Computed by hand: two sequences of 101 tokens, one of them away, 50 more tokens each."""
    for wait_s in (0.0, 1e-4, 5e-3):
        what = over(pair(hot=10_000, cold=10_000, reserve=0, wait_s=wait_s), vary=Away(0.5))
        for seed in range(100):
            if (draw(seed, 0, 0, 0, 0) < 0.5) != (draw(seed, 1, 0, 0, 0) < 0.5):
                break
        records, _, _ = served(replace(what, seed=seed), requests([0.0] * 2, output=51, prompt=100))
        # both prompts in one step, if the second has come before the first begins
        last = records[1]
        lengths = 101 + np.arange(50)
        attends = 1e-4 + 1e-5 + 2e-8 * lengths
        if records.first_token_s[0] == last.first_token_s:
            step_s = 2e-3 + 2e-5 + np.maximum(attends, wait_s + attends)
            assert last.finished_s - last.first_token_s == pytest.approx(step_s.sum(), rel=1e-9)
        else:
            assert records.first_token_s[0] < last.first_token_s


def test_without_sequences_away_the_models_do_not_meet() -> None:
    """The hot model's records at ratio 0 are those without the other, to the byte."""
    made = pair(hot=5000, cold=5000, reserve=0)
    block = random_requests(40, 2, 20.0, 7)
    of_hot = block.model == 0
    both, _, _ = simulate(over(made, vary=Away(0.0)), block)
    alone = replace(
        block,
        **{name: getattr(block, name)[of_hot]
           for name in ("arrival_s", "model", "prompt_tokens", "output_tokens")},
    )  # fmt: skip
    only, _, _ = simulate(over(made, vary=Away(0.0)), alone)
    assert (both.finished_s[of_hot] == only.finished_s).all()
    assert (both.first_token_s[of_hot] == only.first_token_s).all()


def test_a_home_does_not_depend_on_the_order_of_events() -> None:
    """All that have room are where the draw of their number says, at any rate."""
    made = over(pair(hot=20_000, cold=20_000, reserve=0), vary=Away(0.5))
    wanted = {k: int(draw(made.seed, k, 0, 0, 0) < 0.5) for k in range(30)}
    for rate in (5.0, 500.0):
        _, _, books = served(made, random_requests(30, 1, rate, 3))
        assert books.all_homes == wanted


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1), st.floats(0.05, 1.0), st.integers(0, 10**6))
def test_a_lane_is_lost_and_the_other_serves_on(device: int, at_s: float, seed: int) -> None:
    made = over(pair(hot=3000, cold=3000, reserve=500), vary=Away(0.5), max_batch=8)
    block = random_requests(20, 2, 30.0, seed)
    records = served_while_lost(made, block, DeviceLost(at_s=at_s, device=device))
    assert not (records.failure[block.model != device] == FAIL_DEVICE).any()
