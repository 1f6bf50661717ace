"""Engines of a slice whose HBM has no room for the weights of all take each other's room."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from c2c.config import build, load
from c2c.hardware import MigConfig
from c2c.policies import (
    AtBacklog,
    ByPriority,
    Fixed,
    GateAndTriage,
    LeastLoaded,
    Priced,
    WhereWorkIs,
    WhileRoom,
)
from c2c.serving import ServingSetup, prepare
from c2c.serving.decode_target import _most_waiting
from c2c.serving.memory.hbm import request_bytes
from c2c.serving.tables.state import ASSIGNED, FREE
from tests.simulator.worlds import random_requests, requests, setup, simulate
from tests.tiers import tiered

ONE_SLICE = MigConfig(name="1x12gb", parts=("1g",))
SHARED: dict[str, Any] = {  # as c2cserve_plus
    "route": WhereWorkIs(),
    "scale": AtBacklog(),
    "preempt": ByPriority(),
    "mig": ONE_SLICE,
    "engines__residents": 3,
    "place": LeastLoaded(),
    "chunk": Fixed(512),
    "alpha": Priced(),
    "engines__turn_s": 0.001,
    "check_slo": False,
    "tpot": 0.15,
}
TWO = ("llama-3-3b", "llama-3-3b")
FOR_GOOD = math.inf  # layers never give way to another engine's


def shared(
    *models: str, displace: float = 0.75, stay: float = 5.0, spare_bytes: float = 0.5e9,
    **changes: Any,
) -> ServingSetup:  # fmt: skip
    """Return a slice of 12 GB: the weights of one 3B model (6.4 GB) fit, those of two do not."""
    keep = WhileRoom(spare_bytes=spare_bytes, displace=displace)
    policies = {"keep": keep, "turn": GateAndTriage(stay=stay)}
    return setup(*models, **SHARED | policies | changes)


def two_that_decode(output: int = 300) -> Any:
    return requests([0.0, 0.1], [0, 1], prompt=100, output=output)


def test_one_after_the_other_decodes_from_hbm() -> None:
    """If layers stay for good, the second engine reads a part of its weights at every step."""
    took_s, moved = {}, {}
    for displace in (FOR_GOOD, 0.75):
        what = shared(*TWO, displace=displace)
        records, stats, _ = simulate(what, two_that_decode(), compiled=True)
        took_s[displace] = float(records.finished_s.max())
        moved[displace] = float(stats.chip_link_bytes[0])
    assert moved[0.75] < 0.5 * moved[FOR_GOOD]
    assert took_s[0.75] < took_s[FOR_GOOD]  # a little: the link is all its own


def test_who_decodes_alone_does_so_in_one_run_and_two_take_turns() -> None:
    _, alone, _ = simulate(shared("llama-3-3b"), requests([0.0], prompt=100, output=20))
    _, both, _ = simulate(shared(*TWO), two_that_decode(20))
    assert alone.runs.sum() <= 3
    assert both.runs.sum() > 20


def test_both_get_tokens_in_time() -> None:
    """An engine that stays does not stay for long: both keep their line."""
    records, _, _ = simulate(shared(*TWO), two_that_decode(), compiled=True)
    tpot_s = (records.finished_s - records.first_token_s) / (records.output_tokens - 1)
    assert (tpot_s < 0.15).all()
    assert abs(tpot_s[0] - tpot_s[1]) < 0.3 * tpot_s.max()


def test_copies_are_as_many_as_stays_allow() -> None:
    """An engine that just took the room keeps it: at most one copy in the time of a stay."""
    moved, took_s = {}, {}
    for stay in (0.0, 5.0, 20.0):
        what = prepare(shared(*TWO, stay=stay))
        records, stats, _ = simulate(what, two_that_decode(), compiled=True)
        moved[stay] = float(stats.chip_link_bytes[0])
        took_s[stay] = float(records.finished_s.max())
        if stay > 0.0:
            copies = 2 + took_s[stay] / (stay * float(what.fleet.switch_s[0, 0]))
            assert moved[stay] <= (copies + 1) * what.fleet.weight_bytes[0]
    assert moved[20.0] < moved[5.0] < 0.5 * moved[0.0]
    assert took_s[5.0] < took_s[0.0]


def test_a_prompt_runs_meanwhile_and_takes_no_room() -> None:
    """TTFT does not wait for the end of a stay, and the one that stays goes on from HBM."""
    block = requests([0.0, 0.1, 3.0], [0, 1, 2], prompt=100, output=[400, 400, 1])
    what = prepare(shared(*TWO, "llama-3-3b", stay=60.0))
    records, _, _ = simulate(what, block, compiled=True)
    stay_s = 60.0 * float(what.fleet.switch_s[0, 0])
    assert stay_s > 1.0
    assert records.first_token_s[2] - 3.0 < 0.4
    _, stats, _ = simulate(
        what, requests([0.0, 0.1], [0, 1], prompt=100, output=400), compiled=True
    )
    _, more, _ = simulate(what, block, compiled=True)
    extra = more.chip_link_bytes[0] - stats.chip_link_bytes[0]
    assert extra < 2.5 * what.fleet.weight_bytes[2]


def test_what_would_not_fit_takes_no_room() -> None:
    """Half an 8B model fits a slice of 12 GB: it leaves the smaller model's layers alone."""
    block = requests([0.0, 0.5], [0, 1], prompt=100, output=[200, 60])
    both = {}
    for displace in (FOR_GOOD, 0.75, 0.4):
        _, stats, _ = simulate(
            shared("llama-3-3b", "llama-3-8b", displace=displace), block, compiled=True
        )
        both[displace] = float(stats.chip_link_bytes[0])
    assert both[0.75] == both[FOR_GOOD]
    assert both[0.4] != both[FOR_GOOD]


def test_room_for_all_changes_nothing() -> None:
    block = random_requests(12, 2, 3.0, 1)
    runs = [
        simulate(shared(*TWO, displace=d, mig="1x96gb"), block, compiled=True)[0]
        for d in (FOR_GOOD, 0.75)
    ]
    assert runs[0].tobytes() == runs[1].tobytes()


@pytest.mark.parametrize(
    ("mig", "share", "engines"),
    [("7x12gb", 0.125, 2), ("4x24gb", 0.125, 6), ("1x96gb", 0.125, 24), ("7x12gb", 0.01, 1),
     ("1x96gb", math.inf, 30), ("7x12gb", 1.0, 23)],
)  # fmt: skip
def test_a_slice_holds_as_many_engines_as_have_room(mig: str, share: float, engines: int) -> None:
    what = prepare(shared("llama-3-3b", mig=mig, engines__residents=30, engines__share=share))
    assert what.fleet.residents == engines
    assert what.fleet.most_engines.tolist() == [engines]


@pytest.mark.parametrize("table", tiered(["driver", "paper"]))
@pytest.mark.parametrize(("mig", "engines"), [("7x12gb", 3), ("4x24gb", 6), ("1x96gb", 24)])
def test_plus_keeps_as_many_engines_in_either_table(table: str, mig: str, engines: int) -> None:
    wanted = ["system=c2cserve_plus", f"mig={mig}", f"hardware.mig_table={table}"]
    assert build(load([*wanted, "workload=poisson"])).prepared.fleet.residents == engines


def test_unlike_slices_hold_unlike_numbers() -> None:
    models = ["llama-3-3b"] * 40
    what = prepare(shared(*models, mig="3g_4x1g", engines__residents=24, engines__share=0.125))
    _, _, simulation = simulate(what, random_requests(50, 40, 40.0, 0), compiled=True)
    there = np.asarray(simulation.state.instance)["state"] != FREE
    counts = there.reshape(-1, what.fleet.residents).sum(axis=1)
    most = what.fleet.most_engines[what.kind_of]
    assert len(set(most.tolist())) == 2
    assert (counts <= most).all()
    assert counts.sum() > len(most)


def test_what_waits_on_a_device_is_found_behind_a_place_without_an_engine() -> None:
    what = prepare(shared(*TWO))
    state = what.new_serving(active=False)
    state.instance[1].state, state.instance[1].model, state.instance[1].wait_head = ASSIGNED, 1, 7
    state.request.prompt[7], state.request.output[7], state.request.next[7] = 100, 50, -1
    assert state.instance[0].state == FREE
    assert _most_waiting(what.fleet, state, 0) == request_bytes(what.fleet, state, 1, 150) > 0
