"""Models that are active before the first request comes (C2CServe section 6.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.policies import place
from c2c.serving import prepare
from tests.simulator.worlds import requests, setup, simulate

SPECS = ("llama-3-8b", "llama-3-3b") * 6


class Noted(NamedTuple):
    """Memory of `Noting`: number of placements."""

    placed: Any


class Noting(NamedTuple):
    """The first candidate, which is noted."""

    def memory(self, fleet: Any) -> Noted:
        """Return the initial memory."""
        return Noted(np.zeros(1))


@place.by(Noting)
def _first(
    policy: Noting, own: Noted, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> int:
    own.placed[0] += 1
    return 0


@pytest.mark.parametrize("tpot", [0.05, 0.1, 0.25, 2.0])
@pytest.mark.parametrize(("mig", "superchips"), [("7x12gb", 1), ("4x24gb", 2), ("1x96gb", 1)])
def test_it_keeps_the_promise_of_the_link(mig: str, superchips: int, tpot: float) -> None:
    made = setup(*SPECS, mig=mig, superchips=superchips, tpot=tpot, starts_active=True,
                 check_slo=False)  # fmt: skip
    what = prepare(made)
    state = what.new_serving()
    there = state.instance[state.instance.model >= 0]
    demand = np.asarray(what.fleet.deployment)["demand_gbps"]
    promised = np.bincount(there.chip, demand[there.model], minlength=superchips)
    budget = np.asarray(state.chip.budget_gbps)
    assert (promised <= budget).all()
    # and no model was left out for which there was a slice and link rate
    full = np.bincount(there.chip, minlength=superchips) == len(state.device) // superchips
    out = [m for m in range(len(SPECS)) if m not in set(there.model.tolist())]
    for m in out:
        assert (full | (promised + demand[m] > budget)).all()


def test_a_placement_that_remembers_begins_each_run_anew() -> None:
    """And a run whose rules are given goes on from what the initial set noted."""
    what = prepare(setup(*SPECS[:3], mig="4x24gb", starts_active=True, place=Noting()))
    states = [what.new_serving() for _ in range(3)]
    assert not what.rules.own.place.placed.any()
    assert {s.instance.model.tobytes() for s in states} == {states[0].instance.model.tobytes()}
    rules = what.new_rules()
    what.new_serving(rules=rules)
    assert rules.own.place.placed.any()
    assert not what.new_rules().own.place.placed.any()


def test_its_models_answer_without_a_start() -> None:
    block = requests(np.arange(3) * 5.0, [0, 1, 2])
    first = {}
    for starts in (False, True):
        what = prepare(setup(*["llama-3-3b"] * 3, starts_active=starts))
        records, stats, _ = simulate(what, block)
        first[starts] = records.first_token_s - records.arrival_s
        assert stats.switches == (0 if starts else 3)
    assert (first[True] < first[False]).all()
