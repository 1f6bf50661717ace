"""Engines that move to another slice for a model that can run only on theirs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.hardware import MigConfig
from c2c.policies import (
    AfterWaiting,
    Fixed,
    GateAndTriage,
    LeastStartTime,
    MovesAway,
    Resident,
    Static,
    move_s,
)
from c2c.serving import Prepared, prepare
from c2c.serving.engine_move import move_for
from c2c.serving.placement import make_active
from c2c.serving.state import ABSENT, HELD, RUNNING
from tests.contracts.stubborn import StubbornBackend
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests, requests, setup, simulate
from tests.tiers import tiered

MODELS = ("llama-3-8b",) * 4


def on_two_gpus(preempt: Any, **system: Any) -> Prepared:
    """Return two GPUs: models 0 and 1 may run on either, model 2 on the first, 3 on the second."""
    made = setup(
        *MODELS,
        **{"mig": "1x96gb", "superchips": 2, "load": Resident(start_s=0.5), "preempt": preempt,
           "place": LeastStartTime(), "chunk": Fixed(512), "alpha": Static(0.0)} | system,
    )  # fmt: skip
    host = replace(made.platform.host, memory_bytes=int(50e9))  # three models
    what = prepare(replace(made, platform=replace(made.platform, host=host)))
    homes = what.fleet.home_first
    chips = [what.fleet.home_chip[homes[m] : homes[m + 1]].tolist() for m in range(4)]
    assert chips == [[0, 1], [0, 1], [0], [1]]
    return what


# Model 0 decodes for long on the first GPU when model 2 comes, which can run nowhere else.
BLOCK = requests([0.0, 2.0], [0, 2], prompt=400, output=[2000, 10])


def test_an_engine_goes_on_elsewhere_and_loses_no_token() -> None:
    stays, none, _ = simulate(on_two_gpus(AfterWaiting(after_s=1000.0)), BLOCK)
    moved, stats, simulation = simulate(on_two_gpus(MovesAway(after_s=1000.0)), BLOCK)
    assert (none.moves, stats.moves) == (0, 1)
    assert moved.slice.tolist() == [1, 0]
    assert moved.first_token_s[0] == stays.first_token_s[0]
    assert moved.output_tokens.tolist() == [2000, 10]
    # Model 2 waits for the load of model 0 elsewhere and for its own, not for 2000 tokens.
    load_s = float(simulation.machine.load_s[0, 0] + 16.06e9 / simulation.machine.link_cap[0])
    assert moved.started_s[1] - 2.0 == pytest.approx(2 * load_s, abs=0.02)
    assert stays.started_s[1] >= stays.finished_s[0]
    # What moves computes its KV cache anew: it ends later by that, and by nothing else.
    made_before = stats.prefill_tokens[1] - 400
    assert 0 < made_before < 2000
    assert moved.finished_s[0] - stays.finished_s[0] == pytest.approx(0.1, abs=0.1)
    assert stats.switches == 3


def test_nothing_moves_where_no_slice_is_free() -> None:
    block = requests([0.0, 0.0, 2.0], [0, 3, 2], prompt=400, output=[800, 800, 10])
    _, stats, _ = simulate(on_two_gpus(MovesAway()), block)
    assert stats.moves == 0


@pytest.mark.parametrize("short", [0, 1])
def test_the_engine_that_costs_least_moves(short: int) -> None:
    """Both slices of the first GPU are busy, one with a tenth of the tokens."""
    prompt = [3000, 3000, 20]
    prompt[short] = 300
    block = requests([0.0, 2.0, 4.0], [0, 1, 2], prompt=prompt, output=[1500, 1500, 5])
    what = on_two_gpus(MovesAway(after_s=1000.0), mig="2x48gb")
    records, stats, _ = simulate(what, block)
    assert stats.moves == 1
    assert records.chip[[short, 1 - short, 2]].tolist() == [1, 0, 0]


@pytest.mark.parametrize("seed", range(6))
def test_of_eight_engines_those_move_that_brute_force_finds(seed: int) -> None:
    """The knapsack of ServerlessLLM's scheduler: an engine leaves one slice, and one is needed."""
    made = setup(
        *("llama-3-8b", "llama-3-3b") * 6, mig="4x24gb", superchips=3, load=Resident(start_s=0.5),
        preempt=MovesAway(), place=LeastStartTime(), chunk=Fixed(512), alpha=Static(0.0),
    )  # fmt: skip
    host = replace(made.platform.host, memory_bytes=int(130e9))
    what = prepare(replace(made, platform=replace(made.platform, host=host)))
    fleet, rules, state = what.fleet, what.new_rules(), what.new_serving(active=False)
    homes = [
        fleet.home_chip[fleet.home_first[m] : fleet.home_first[m + 1]].tolist() for m in range(12)
    ]
    waits, engines = 11, (0, 1, 2, 3, 4, 5, 7, 8)
    assert homes[waits] == [0, 1]
    assert all(homes[m] == [0, 1, 2] for m in engines)
    generator = np.random.default_rng(seed)
    draining = generator.random(8) < 0.2
    prompt, made_tokens = generator.integers(1, 2000, 8), generator.integers(1, 400, 8)
    for i, m in enumerate(engines):
        make_active(fleet, rules, state, m, i, 0.0)
        inst = state.instance[i]
        inst.state, inst.draining = RUNNING, int(draining[i])
        inst.n_decode, inst.decode_clock = 1, made_tokens[i]
        state.decoding[i, 0] = i, 500, prompt[i] + 500
        k = fleet.home_first[m] + 2  # on the third GPU, whose slices are free
        state.hold[k].state = HELD if generator.random() < 0.5 else ABSENT
    state.chip.free_bytes[2] = 200e9
    state.request.prompt[20], state.request.output[20] = 100, 100
    state.model.wait_head[waits] = 20

    def takes_s(i: int) -> float:
        held = state.hold[fleet.home_first[engines[i]] + 2].state == HELD
        if draining[i]:
            return float("inf")
        size = float(fleet.weight_bytes[engines[i]])
        return move_s(MovesAway(), int(prompt[i] + made_tokens[i]), size, held)

    subsets = [s for n in range(1, 5) for s in itertools.combinations(range(8), n)]
    best = min(subsets, key=lambda s: sum(takes_s(i) for i in s))
    assert move_for(fleet, rules, state, waits, 1.0)
    assert tuple(np.flatnonzero(state.instance.goes_to >= 0)) == best
    assert state.instance.chip[state.instance.goes_to[best[0]]] == 2
    assert state.chip.claim[best[0] // 4] == waits


def test_a_slice_that_is_too_small_hides_no_larger_one_behind_it() -> None:
    parts = ("1g", "1g", "1g", "1g", "3g")
    made = setup(
        *("llama-3-3b",) * 4, mig=MigConfig(name="small_first", parts=parts),
        superchips=2, load=Resident(start_s=0.5), preempt=MovesAway(), place=LeastStartTime(),
        chunk=Fixed(512), alpha=Static(0.0),
    )  # fmt: skip
    host = replace(made.platform.host, memory_bytes=int(20e9))
    what = prepare(replace(made, platform=replace(made.platform, host=host)))
    state = what.new_serving(active=False)
    small, large = what.fleet.kv_capacity[0]
    for m, i in ((0, 0), (1, 4)):  # on the first GPU: of a small slice and of the large one
        make_active(what.fleet, what.new_rules(), state, m, i, 0.0)
        state.instance[i].state, state.instance[i].n_decode = RUNNING, 1
        state.decoding[i, 0] = i, 500, 600
    state.request.prompt[20], state.request.output[20] = small, 100
    assert small + 100 < large
    state.model.wait_head[2] = 20
    assert move_for(what.fleet, what.new_rules(), state, 2, 1.0)
    assert np.flatnonzero(state.instance.goes_to >= 0).tolist() == [4]


def test_a_move_is_estimated_by_tokens_and_by_the_tier_of_the_weights() -> None:
    policy = MovesAway(token_s=0.01, fixed_s=0.1, disk_gbps=5.0, link_gbps=50.0)
    assert move_s(policy, 100, 10e9, True) == pytest.approx(0.1 + 1.0 + 0.2)
    assert move_s(policy, 100, 10e9, False) == pytest.approx(0.1 + 1.0 + 2.0)
    assert move_s(AfterWaiting(), 100, 10e9, True) == float("inf")


@pytest.mark.parametrize("stubborn", tiered([False, True], True))
def test_whatever_happens_while_engines_move_nothing_is_lost(stubborn: bool) -> None:
    """Cancels, deadlines, lost devices and a bad clock are included."""
    what = on_two_gpus(MovesAway(after_s=3.0), max_batch=4)
    moves = 0
    for seed in range(10):
        block = random_requests(40, 4, 0.5, seed)
        if not stubborn:
            records, _, simulation = simulate(what, block)
            assert not records.failure.any()
            state = simulation.state
        else:
            backend = StubbornBackend(
                block, seed=seed, cancel=0.3, lose=[seed] if seed < 2 else [], deadline=0.3,
                jump_s=0.5, tell=0.5,
            )  # fmt: skip
            _, state, _ = serve(what, backend)
        assert (state.instance.goes_to == -1).all()
        assert (state.instance.comes_from == -1).all()
        moves += int(state.count[0].moves)
    assert moves > 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_s": -1.0}, "token_s"),
        ({"fixed_s": float("inf")}, "fixed_s"),
        ({"disk_gbps": 0.0}, "disk_gbps"),
        ({"after_s": 0.0}, "after_s"),
    ],
)
def test_a_move_that_cannot_be_is_refused(changes: dict[str, float], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        setup("llama-3-3b", preempt=MovesAway(**changes))


def test_engines_that_take_turns_do_not_move() -> None:
    with pytest.raises(SettingError, match=r"system\.preempt\.policy"):
        setup("llama-3-3b", preempt=MovesAway(), turn=GateAndTriage())
