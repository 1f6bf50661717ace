"""Timers of chips: a controller looks at its instances, and what it says is in force at a step."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.errors import PolicyError, SettingError
from c2c.policies import VaryTraits, answer, variant
from c2c.serving import StepLayout, prepare
from c2c.serving.loop import step
from c2c.serving.tables.port import SetTimer, Timer
from tests.simulator.controllers import Load
from tests.simulator.lanes import layout, on, over
from tests.simulator.worlds import requests, setup, simulate

SLOW, FAST = [on(0, 0.010)], [on(1, 0.005)]


def lanes(kinds: int = 1) -> StepLayout:
    """A lane of each kind: in the second variant a step takes half as long, on another device."""
    return layout(*[[SLOW, SLOW, FAST, [on(1, 0.005 + 1e-6 * k)]] for k in range(kinds)],
                  resources=2)  # fmt: skip


def test_a_variant_is_in_force_from_the_next_step_boundary() -> None:
    """Steps of 10 ms until 3.333 s, of 5 ms from 3.34 s on: one of 1,000 is the prompt's."""
    records, stats, done = simulate(
        over(lanes(), vary=Load(period_s=3.333, up=0)), requests([0.0], output=1000)
    )
    assert records.finished_s[0] == pytest.approx(3.34 + (1000 - 334) * 0.005, rel=1e-12)
    assert stats.runs.sum() == 3  # the prompt, steps before and after
    looked = done.rules.own.vary
    assert list(looked.at_s[: looked.looked[0]]) == pytest.approx([3.333, 6.666])


def test_timers_are_answered_while_something_is_under_way_or_to_come() -> None:
    arrival_s = [1.0, 30.0]
    records, _, done = simulate(
        over(lanes(), vary=Load(period_s=0.25, up=9)), requests(arrival_s, output=100)
    )
    looked = done.rules.own.vary
    assert records.finished_s.max() == pytest.approx(31.0)
    assert looked.looked[0] == 123  # at 31 s nothing is under way any more
    assert list(looked.at_s[:123]) == pytest.approx(0.25 * np.arange(1, 124))


def test_each_instance_has_a_variant_of_its_own() -> None:
    """Two lanes of unlike kinds, of which one has work: the other one keeps its variant."""
    made = over(lanes(2), vary=Load(period_s=0.1, up=0))
    _, _, done = simulate(made, requests([0.0], output=100))
    assert sorted(done.rules.own.vary.chosen) == [0, 1]


def test_a_cool_down_and_a_window_of_latencies() -> None:
    """Requests that end late call for the second variant; it is kept for the cool-down."""
    late = Load(period_s=0.1, up=9, late_s=0.2)
    arrival_s = np.arange(40) * 0.05
    _, _, done = simulate(over(lanes(), vary=late), requests(arrival_s, output=30))
    assert done.rules.own.vary.changed_s.max() > 0.0
    for cool_down_s, changes in ((0.0, 2), (100.0, 1)):
        busy = Load(period_s=0.1, up=1, cool_down_s=cool_down_s)
        _, _, done = simulate(over(lanes(), vary=busy), requests([0.0, 0.0, 9.0], output=100))
        assert done.rules.own.vary.changes[0] == changes


class Alone(NamedTuple):
    """Has a timer and chooses no variant."""

    @property
    def traits(self) -> VaryTraits:
        """Facts of this policy that hold at any time."""
        return VaryTraits(timer_s=0.1)


@variant.by(Alone)
def _nowhere(policy: Alone, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    return 0


class Backwards(NamedTuple):
    """Wants its timer in the past."""

    @property
    def traits(self) -> VaryTraits:
        """Facts of this policy that hold at any time."""
        return VaryTraits(follows_waits=True, timer_s=0.1)


@variant.by(Backwards)
def _first(
    policy: Backwards, own: Any, chip: int, instance: int, waiting: int, now_s: float
) -> int:
    return 0


@answer.by(Backwards)
def _back(policy: Backwards, own: Any, table: Any, count: int, chip: int, now_s: float) -> float:
    return now_s - 1.0


def test_a_timer_in_the_past_is_a_mistake_of_the_policy() -> None:
    with pytest.raises(PolicyError, match=r"Backwards.*a time after `now_s`, or inf"):
        simulate(over(lanes(), vary=Backwards()), requests([0.0], output=100))


def test_a_timer_that_goes_off_early_is_set_again() -> None:
    made = prepare(over(lanes(), vary=Load(period_s=0.5)))
    rules, state = made.new_rules(), made.new_serving()
    assert list(state.timer_s) == [math.inf, 0.5]
    early, late = (Timer(at_s=at_s, number=1) for at_s in (0.4, 0.6))
    state, actions = step(made.fleet, rules, state, early)
    assert actions == (SetTimer(at_s=0.5, number=1),)
    _, actions = step(made.fleet, rules, state, late)
    assert actions == (SetTimer(at_s=pytest.approx(1.1), number=1),)


def test_a_policy_that_chooses_no_variants_has_no_timers() -> None:
    where = r"system\.vary\.policy='alone': expected"
    with pytest.raises(SettingError, match=f"{where} a policy that chooses variants"):
        over(layout([SLOW, SLOW], resources=2), vary=Alone())
    with pytest.raises(SettingError, match=f"{where} as_alpha where no system.layout"):
        setup(vary=Alone())


def test_without_timers_none_is_due() -> None:
    _, _, done = simulate(over(lanes()), requests([0.0], output=100))
    assert (done.state.timer_s == math.inf).all()
