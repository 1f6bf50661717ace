"""Bounds of each model's KV caches on a device that several share: none starves the others."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import LeastLoaded, ReserveAll, RoundRobin, WhereWorkIs, WithinQuota, make_policy
from c2c.serving import Prepared, Serving, prepare
from c2c.serving.loop import step
from c2c.serving.tables.port import Action, Arrival, Event, Ready, RunSteps, StepEnd, new_report
from tests.simulator.worlds import setup

PARTS = 10  # of the device's room that a request takes: so many fit, less what does not divide
PROMPT = 100  # tokens


@functools.cache
def served(models: int, admit: Any = ReserveAll()) -> Prepared:  # noqa: B008 (a tuple)
    policies = {"turn": RoundRobin(), "route": WhereWorkIs(), "place": LeastLoaded()}
    sizes = {"mig": "1x96gb", "engines__bytes": 0.0, "hbm_reserve_bytes": 85e9}
    names = ["llama-3-3b"] * models
    more = {"admit": admit, "engines__residents": models, "check_slo": False}
    return prepare(setup(*names, **policies, **sizes, **more))


class Device:
    """One device whose plans take a second each."""

    def __init__(self, admit: Any, *, models: int = 2) -> None:
        self.prepared = served(models)
        rules = self.prepared.new_rules()
        system = rules.system._replace(admit=admit)
        self.rules = rules._replace(system=system, traits=system.traits)
        self.state: Serving = self.prepared.new_serving(rules=self.rules)
        self.tokens = int(self.prepared.fleet.kv_capacity.max()) // PARTS
        self.doing: Action | None = None
        self.now_s = 0.0

    def take(self, event: Event) -> None:
        what = self.prepared
        self.state, actions = step(what.fleet, self.rules, self.state, event, donate=True)
        for action in actions:
            if hasattr(action, "instance") and hasattr(action, "model"):
                self.doing = action

    def ask(self, name: int, model: int, parts: float = 1.0) -> None:
        tokens = int(parts * self.tokens)
        self.take(Arrival(at_s=self.now_s, request_id=name, model=model, prompt_tokens=PROMPT,
                          max_output_tokens=tokens - PROMPT))  # fmt: skip

    def go_on(self, finished: tuple[int, ...] = ()) -> None:
        """End what the device does, if it does anything."""
        if self.doing is None:
            return
        self.now_s += 1.0
        doing, self.doing = self.doing, None
        if isinstance(doing, RunSteps):
            report = new_report(steps=1, latency_s=1.0, available_gbps=100.0)
            who = {r for r, first, n in doing.prefills if first + n == PROMPT} | set(doing.decodes)
            over = tuple(r for r in finished if r in who)
            self.take(StepEnd(at_s=self.now_s, device=0, report=report, finished=over))
        else:
            self.take(Ready(at_s=self.now_s, device=0, available_gbps=100.0))

    def held(self) -> list[int]:
        """Requests of each model that have their KV cache reserved."""
        return [
            sum(int(i.n_prefill + i.n_decode) for i in self.state.instance if i.model == m)
            for m in range(len(self.prepared.setup.deployments))
        ]


def after_a_flood(admit: Any) -> Device:
    """Model 1 has had a request; then 0 asks for twice what there is, and 1 once more."""
    device = Device(admit)
    device.ask(100, 1)
    for _ in range(3):
        device.go_on(finished=(100,))
    for name in range(2 * PARTS):
        device.ask(name, 0)
    for _ in range(5):
        device.go_on()
    return device


@pytest.mark.parametrize(
    ("admit", "taken", "left"), [(ReserveAll(), PARTS, 0), (WithinQuota(floor=0.25), PARTS - 3, 1)]
)
def test_a_floor_is_left_to_a_model_without_requests(admit: Any, taken: int, left: int) -> None:
    device = after_a_flood(admit)
    assert device.held() == [taken, 0]
    device.ask(101, 1)
    for _ in range(5):
        device.go_on()
    assert device.held() == [taken, left]


def test_a_ceiling_bounds_the_only_busy_model() -> None:
    assert after_a_flood(WithinQuota(floor=0.0, ceiling=0.5)).held() == [PARTS // 2, 0]


def test_bounds_never_keep_out_the_only_request_of_a_model() -> None:
    device = Device(WithinQuota(floor=0.2, ceiling=0.3))
    device.ask(0, 0, parts=9.0)
    device.ask(1, 1)
    for _ in range(8):
        device.go_on()
    assert device.held() == [1, 1]


@settings(max_examples=10, deadline=None)
@given(
    floor=st.floats(0.0, 0.3),
    ceiling=st.floats(0.35, 1.0),
    asked=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0.2, 9.0), st.integers(0, 3)), min_size=1,
        max_size=12,
    ),
)  # fmt: skip
def test_bounds_hold_and_all_is_served(
    floor: float, ceiling: float, asked: list[tuple[int, float, int]]
) -> None:
    device = Device(WithinQuota(floor=floor, ceiling=ceiling), models=3)
    instances = device.state.instance
    for name, (model, parts, ends) in enumerate(asked):
        before = instances["kv_used"].copy()
        device.ask(name, model, parts)
        for _ in range(ends):
            device.go_on(finished=tuple(range(0, name, 2)))
        instances = device.state.instance
        _check_bounds(device, before, floor, ceiling)
    for _ in range(4 * len(asked) + 4):
        before = device.state.instance["kv_used"].copy()
        device.go_on(finished=tuple(range(len(asked))))
        _check_bounds(device, before, floor, ceiling)
    assert device.doing is None
    assert sum(device.held()) == 0
    assert device.state.count[0].finished == len(asked)


def _check_bounds(device: Device, before: np.ndarray, floor: float, ceiling: float) -> None:
    """Whoever has come in beside another request of its model is within its bounds."""
    room = int(device.prepared.fleet.kv_capacity.max())
    now = device.state.instance["kv_used"]
    there = device.state.instance["state"] != 0
    for i in np.flatnonzero(now > np.where(before > 0, before, np.inf)):
        if device.state.instance[i].n_prefill + device.state.instance[i].n_decode < 2:
            continue
        assert now[i] <= ceiling * room + 1
        others = np.maximum(now, floor * room) * (there & (np.arange(len(now)) != i))
        assert now[i] + others.sum() <= room + 3


def test_floors_of_all_residents_have_room() -> None:
    with pytest.raises(SettingError, match=r"system\.admit\.floor"):
        served(2, WithinQuota(floor=0.6))
    with pytest.raises(SettingError, match=r"system\.admit\.floor"):
        make_policy("admit", {"policy": "within_quota", "floor": 0.6, "ceiling": 0.5})
