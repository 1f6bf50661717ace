"""Four devices: layers are replicated and moved at run time, and with them sequences' KV caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.hardware import load_node, load_platform, slices
from c2c.models import kv_bytes_per_token, load_spec
from c2c.serving import Copy, Cost, Curve, Lane, Plan, StepLayout, Way, Work, prepare
from c2c.serving.tables.port import DeviceLost
from tests.rooms.laws import Anything, served, served_while_lost
from tests.simulator.lanes import SPEC, over
from tests.simulator.worlds import random_requests, requests

TOKEN_BYTES = kv_bytes_per_token(load_spec(SPEC))
LAYER_BYTES = 200e6
NODE = load_node("a100_40_pcie_x4")

# A sequence's homes: all on the first device; or the middle layers' part on a copy of these, on the
# second or third device; or the last layers' part on the fourth.
HOMES = (
    {"gpu0": 1.0},
    {"gpu0": 0.5, "gpu1": 0.5},
    {"gpu0": 0.5, "gpu2": 0.5},
    {"gpu0": 0.75, "gpu3": 0.25},
)
MIDDLE_1, MIDDLE_2 = (Copy("gpu0", f"gpu{k}", 10 * LAYER_BYTES) for k in (1, 2))
LAST_3 = Copy("gpu0", "gpu3", 5 * LAYER_BYTES)


def cost(fixed_s: float, row_s: float, token_s: float) -> Cost:
    """Prompts cost as many rows; reads of caches are added."""
    sizes = np.array([1.0, 4096.0])
    by_size = Curve((1, 4096), fixed_s + row_s * sizes)
    return Cost(by_size, by_size, cached=token_s)


def layers(name: str, gpu: int, part: float, home: int | None, *after: str) -> list[Work]:
    """A part of the layers on a device, with ways there and back, for the sequences of a home."""
    seconds, sent = cost(2e-3 * part, 1e-4 * part, 1e-8 * part), cost(1e-5, 1e-6, 0.0)
    if gpu == 0:
        return [Work(name=name, seconds=seconds, draws={"gpu0": seconds}, home=home, after=after)]
    there, back = f"{name}-there", f"{name}-back"
    return [
        Work(
            name=there, seconds=sent, draws=dict.fromkeys(NODE.ways(0, gpu), sent), home=home,
            after=after,
        ),
        Work(name=name, seconds=seconds, draws={f"gpu{gpu}": seconds}, home=home, after=(there,)),
        Work(
            name=back, seconds=sent, draws=dict.fromkeys(NODE.ways(gpu, 0), sent), home=home,
            after=(name,),
        ),
    ]  # fmt: skip


def step(*copies: int) -> Plan:  # fmt: skip
    """The middle half of the layers at home and on its copies, each for its own sequences."""
    first = layers("first", 0, 0.25, None)
    middle = [layers(f"middle{gpu}", gpu, 0.5, gpu if copies else None, "first")
              for gpu in (0, *copies)]  # fmt: skip
    last = layers("last", 0, 0.25, None, *(works[-1].name for works in middle))
    return (*first, *(work for works in middle for work in works), *last)


def moved() -> Plan:
    """The last layers on the fourth device."""
    both = [*layers("first", 0, 0.25, None), *layers("middle", 0, 0.5, None, "first")]
    return (*both, *layers("last", 3, 0.25, None, "middle"))


def node(*, room_tokens: int, by_age: bool = True) -> StepLayout:
    """One batch over four devices, whose memory holds so many tokens, or copies instead."""
    (place, *_) = slices(load_platform("gh200"), "1x96gb")
    room = {f"gpu{k}": room_tokens * TOKEN_BYTES + 12 * LAYER_BYTES * (k > 0) for k in range(4)}
    pairs = [(j, k) for j in range(4) for k in range(4) if j != k]
    names = dict.fromkeys(name for pair in pairs for name in NODE.ways(*pair))
    lane = Lane(
        place=place,
        steps={SPEC: (step(), step(1), step(1, 2), moved())},
        kv_homes=HOMES,
        open_homes=((0,), (0, 1), (0, 1, 2), (3,)),
        copies=((), (MIDDLE_1,), (MIDDLE_1, MIDDLE_2), (LAST_3,)),
    )
    return StepLayout(
        name="node",
        resources=(*room, *names),
        lanes=(lane,),
        by_age=by_age,
        memories=room,
        ways=tuple(
            Way(f"gpu{j}", f"gpu{k}", NODE.ways(j, k), link.gbps, link.latency_s)
            for j, k in pairs
            if (link := NODE.link(j, k))
        ),
    )


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 30), st.sampled_from([5.0, 50.0, 1000.0]), st.sampled_from([1500, 6000]),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_layers_and_caches_move_while_requests_come(
    n: int, rate: float, room_tokens: int, by_age: bool, seed: int
) -> None:
    controller = Anything(period_s=0.07, variants=4, seed=seed)
    what = over(node(room_tokens=room_tokens, by_age=by_age), vary=controller, max_batch=8)
    served(what, random_requests(n, 1, rate, seed))


def test_a_replica_takes_half_of_the_sequences_and_their_caches() -> None:
    """Four sequences of 1,000 tokens of prompt: two go, with half of their layers' caches each."""
    what = over(node(room_tokens=100_000), vary=Anything(period_s=0.5, variants=2, seed=1))
    block = requests([0.0] * 4, prompt=1000, output=600)
    _, stats, books = served(what, block)
    assert stats.relayouts >= 1
    assert books.moved >= 2
    weights = 10 * LAYER_BYTES
    assert stats.relayout_bytes > weights
    caches = stats.relayout_bytes % weights
    assert caches > 2 * 0.5 * 1000 * TOKEN_BYTES


def test_a_change_that_finds_no_room_waits_until_requests_end() -> None:
    """The first device is full of what is to move there and back: nobody is thrown out."""
    small = over(node(room_tokens=1700), vary=Anything(period_s=0.05, variants=4, seed=3))
    served(small, requests(np.arange(12) * 0.02, prompt=700, output=100))


@settings(max_examples=6, deadline=None)
@given(st.floats(0.05, 1.0), st.integers(0, 10**6))
def test_a_lane_is_lost_while_layers_move(at_s: float, seed: int) -> None:
    what = over(node(room_tokens=3000), vary=Anything(0.05, 4, seed), max_batch=8)
    block = random_requests(20, 1, 30.0, seed)
    served_while_lost(what, block, DeviceLost(at_s=at_s, device=0))


def test_what_cannot_be_is_refused_before_the_start() -> None:
    made = node(room_tokens=1000)
    lane = made.lanes[0]
    for changed, said in (
        ({"kv_homes": ({"gpu9": 1.0}, *HOMES[1:])}, r"kv_homes=\{'gpu9': 1.0\}: expected shares"),
        ({"kv_homes": ({"gpu0": 0.5}, *HOMES[1:])}, r"shares that add up to 1"),
        ({"kv_homes": HOMES[:1]}, r"home=1: expected a number below 1"),
        ({"open_homes": ((0,),)}, r"open_homes=1: expected one for each of 4 variants"),
        ({"copies": ((),)}, r"copies=1: expected one for each of 4 variants"),
        ({"kv_bytes": 1.0}, r"kv_bytes=1.0: expected 0 with kv_homes"),
    ):
        with pytest.raises(SettingError, match=said):
            replace(made, lanes=(replace(lane, **changed),))
    with pytest.raises(SettingError, match=r"layout\.ways=.*: expected one from gpu0 to gpu1"):
        prepare(over(replace(made, ways=made.ways[1:]), vary=Anything()))
    with pytest.raises(SettingError, match=r"reserve\.gpu0=1000000000000000\.0: expected at most"):
        prepare(over(replace(made, lanes=(replace(lane, reserve={"gpu0": 1e15}),))))
