"""The loop as a state machine: allowed events in any order (docs/evidence/laws.md)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from c2c.serving import Prepared, Serving, prepare
from c2c.serving.batches.schedulers.prompts_alone import PromptsAlone
from c2c.serving.loop import Step, step
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.tables.port import (
    Action,
    Arrival,
    BlocksLost,
    Cancelled,
    DeviceBack,
    DeviceLost,
    DropWeights,
    Event,
    HandedOver,
    KeepWeights,
    Load,
    Ready,
    Relaid,
    ReleaseWeights,
    RunSteps,
    SetTimer,
    StepEnd,
    Timer,
    Weights,
    WeightsHere,
    new_report,
)
from c2c.serving.tables.state import Loop
from tests.contracts.systems import FLEETS, ON_FLEETS, SYSTEMS, prepared
from tests.contracts.test_serving import AS_DRAWN
from tests.contracts.watching import Watch
from tests.simulator.test_prefix_cache import BLOCK, check_state
from tests.simulator.test_prefix_cache import SYSTEMS as CACHED
from tests.simulator.test_prefix_cache import prepared as caching
from tests.tiers import tiered

MOST_EVENTS = 5000  # that answer what was asked, until nothing is left

# Sets of the mechanisms that need no node, but for prefixes: turns and kept layers are streamed.
_ALONE, _STREAMED = ("restored", "apart"), ("kept", "turns")
MIXES = [
    ",".join(names)
    for n in range(5)
    for names in itertools.combinations(("streamed", *_STREAMED, *_ALONE), n + 1)
    if "streamed" in names or not {*names} & {*_STREAMED}
]

# What passes until an event; below 0 its clock goes back by as much.
delays = st.sampled_from([0.0, 0.0, 1e-3, 0.05, 0.7, 20.0, -3.0])
picks, parts = st.integers(0, 63), st.integers(0, 7)
ends = st.sampled_from([0, 0, 1, 63])
requests = st.fixed_dictionaries(
    {
        "model": picks,
        "prompt_tokens": st.sampled_from([1, 9, 127, 512, 700, 6000]),
        "max_output_tokens": st.sampled_from([1, 2, 5, 40, 300]),
        "deadline_s": st.sampled_from([math.inf, math.inf, 0.01, 1.0, 25.0]),
        "priority": st.sampled_from([None, None, 0, 1, 2]),
        "calls_tool": st.booleans(),
    }
)


def _asked(actions: Sequence[Action]) -> list[Any]:
    """Return actions in a form that compares by value."""
    return [
        (a.device, a.instance, a.model, a.prefills, a.decodes, a.kv_homes, *a.plan)
        if isinstance(a, RunSteps)
        else a
        for a in actions
    ]


def _bytes(state: Serving) -> dict[str, bytes]:
    """Return the tables but those that only serve while an event is taken in."""
    scratch = Serving._fields[Serving._fields.index("asked") :]
    tables = {
        name: table
        for name, table in state._asdict().items()
        if name not in (*scratch, "actions", "adapters", "blocks")
    }
    tables |= {f"adapters.{name}": array for name, array in state.adapters._asdict().items()}
    tables["records"] = state.records[: state.count[0].out]
    blocks = state.blocks
    tables |= {"pool": blocks.pool, "table": blocks.table, "keys": blocks.keys, "rows": blocks.rows}
    tables["entry"] = blocks.entry[: blocks.table[0].begun]
    return {name: np.ascontiguousarray(table).tobytes() for name, table in tables.items()}


class AnyOrder(RuleBasedStateMachine):
    """A fleet, the loop that serves on it in both forms, and what a backend owes them.

    After each event both forms have the same tables and have asked the same. At the end all that
    was asked is answered, and nothing may be left.
    """

    def __init__(self, what: Prepared) -> None:
        super().__init__()
        self.what = what
        self.rules, theirs = what.new_rules(), what.new_rules()
        self.state, self.other = (
            self._blocks_of(what.new_serving(slots=2, buffer=1, rules=rules))
            for rules in (self.rules, theirs)
        )
        self.compiled = Step(Loop(what.fleet, theirs, self.other), compiled=True)
        self.watch = Watch(what, self.state)
        self.now_s = 0.0
        self.due_s = {n: float(t) for n, t in enumerate(self.state.timer_s) if t < math.inf}
        self.is_whole = True

    def _blocks_of(self, state: Serving) -> Serving:
        if not self.what.fleet.caches_prefixes:
            return state
        return with_blocks(self.what, state, BLOCK, 1, tells=True)

    def _at(self, delay_s: float) -> float:
        self.now_s += max(0.0, delay_s)
        return self.now_s + min(0.0, delay_s)

    def _take(self, event: Event) -> None:
        self.is_whole = False  # until the laws held
        before = _bytes(self.state)
        self.watch.event(event)
        state, actions = step(self.what.fleet, self.rules, self.state, event)
        assert _bytes(self.state) == before, "the step changes what it is given"
        self.state = state
        self.other, also = self.compiled(self.other, event)
        assert _asked(actions) == _asked(also)
        ours, theirs = _bytes(self.state), _bytes(self.other)
        assert [n for n in ours if ours[n] != theirs[n]] == []
        self.watch.actions(actions)
        self.watch.tables(self.rules, self.state)
        if self.what.fleet.caches_prefixes:
            check_state(self.what.fleet, self.state)
        assert self.state.count[0].now_s >= self.now_s - 3.0
        self.due_s |= {a.number: a.at_s for a in actions if isinstance(a, SetTimer)}
        self.is_whole = True

    # Rules. Hypothesis draws any of them as likely, or leaves some out of an order: so few disturb,
    # and orders begin with requests.

    @initialize(requests=st.lists(requests, min_size=1, max_size=6))
    def begin(self, requests: list[dict[str, Any]]) -> None:
        self.arrive(requests, 0.0)

    @rule(requests=st.lists(requests, min_size=1, max_size=4), delay_s=delays)
    def arrive(self, requests: list[dict[str, Any]], delay_s: float) -> None:
        for given in requests:
            model = given["model"] % len(self.what.fleet.deployment)
            # The first blocks of all prompts of a model are alike, and then there are four kinds.
            whole = given["prompt_tokens"] // BLOCK if self.what.fleet.caches_prefixes else 0
            kind = given["model"] // 16
            keys = [1 + 1000 * model + j + 200 * kind * (j > 2) for j in range(whole)]
            self._take(
                Arrival(
                    at_s=self._at(delay_s),
                    request_id=len(self.watch.asked),
                    blocks=tuple(keys),
                    **given | {"model": model},
                )
            )

    @rule(delay_s=delays, pick=picks)
    def cancel(self, delay_s: float, pick: int) -> None:  # also one that never came, or is over
        request = pick % (len(self.watch.asked) + 1)
        self._take(Cancelled(at_s=self._at(delay_s), request_id=request))

    @rule(delay_s=delays, pick=picks, part=parts, ended=ends)
    def answer(self, delay_s: float, pick: int, part: int, ended: int) -> None:
        if owed := self._owed():
            self._take(self._answer(owed[pick % len(owed)], self._at(delay_s), part, ended))

    @rule(delay_s=delays, pick=picks, part=parts, times=st.integers(2, 20))
    def answer_many(self, delay_s: float, pick: int, part: int, times: int) -> None:
        for k in range(times):
            self.answer(delay_s, pick + k, part, 0)

    @precondition(lambda self: self.due_s)
    @rule(pick=picks, late_s=st.sampled_from([0.0, 0.3, -1.0]))
    def go_off(self, pick: int, late_s: float) -> None:
        number = sorted(self.due_s)[pick % len(self.due_s)]
        self.now_s = max(self.now_s, self.due_s.pop(number) + late_s)
        self._take(Timer(at_s=self.now_s, number=number))

    @rule(delay_s=delays, pick=picks, what=st.sampled_from(["lost", "back", "back", "blocks"]))
    def devices(self, delay_s: float, pick: int, what: str) -> None:
        device, at_s = pick % len(self.what.kind_of), self._at(delay_s)
        if what == "lost":
            self._take(DeviceLost(at_s=at_s, device=device))
            self._take(StepEnd(at_s=at_s, device=device, report=new_report(steps=1)))  # late
        elif what == "blocks":
            self._take(BlocksLost(at_s=at_s, device=device))
        elif lost := sorted(self.watch.lost):
            self._take(DeviceBack(at_s=at_s, device=lost[pick % len(lost)]))

    @rule(pick=picks, wish=st.sampled_from([KeepWeights, DropWeights, WeightsHere, ReleaseWeights]))
    def wish(self, pick: int, wish: type[Weights]) -> None:
        is_new = wish in (KeepWeights, DropWeights)
        homes = range(len(self.what.fleet.home_model)) if is_new else sorted(+self.watch.kept)
        if homes:
            self._take(wish(at_s=self.now_s, **self._home(homes[pick % len(homes)])))

    def _home(self, k: int) -> dict[str, int]:
        fleet = self.what.fleet
        return {"model": int(fleet.home_model[k]), "chip": int(fleet.home_chip[k])}

    # Answers

    def _owed(self) -> list[tuple[str, int]]:
        """Return what a backend owes: of which kind, and for which device or request."""
        watch = self.watch
        kinds: dict[str, Collection[int]] = {
            "work": watch.busy, "sent": watch.on_wires, "relaid": watch.relaying,
        }  # fmt: skip
        return [(kind, k) for kind, those in kinds.items() for k in sorted(those)]

    def _answer(self, owed: tuple[str, int], at_s: float, part: int, ended: int) -> Event:
        """Return an answer.

        Args:
          owed: to what.
          at_s: its time.
          part: of the steps that are done, and of what is measured, in sevenths.
          ended: bits of the requests whose last token came.
        """
        kind, k = owed
        if kind == "sent":
            return HandedOver(at_s=at_s, request_id=k)
        if kind == "relaid":
            return Relaid(at_s=at_s, device=k)
        doing, gbps = self.watch.busy[k], 1.0 + 40.0 * part
        if isinstance(doing, Load):
            return Ready(at_s=at_s, device=k, available_gbps=gbps)
        got = [*doing.decodes, *self.watch.prompts_done(doing)]
        report = new_report(
            steps=1 + part * (int(doing.plan.steps) - 1) // 7,
            latency_s=0.01 * part, hbm=part / 7, c2c=1 - part / 7, available_gbps=gbps,
        )  # fmt: skip
        over = tuple(r for bit, r in enumerate(got) if ended >> (bit % 6) & 1)
        return StepEnd(at_s=at_s, device=k, report=report, finished=over)

    # The end

    def _next(self) -> Event | None:
        """Return the next answer, or what else is to come; None: there is nothing."""
        for owed in self._owed():
            return self._answer(owed, self.now_s, 7, 0)
        for k in sorted(+self.watch.kept):  # what is kept may leave no room for others
            return ReleaseWeights(at_s=self.now_s, **self._home(k))
        count = self.state.count[0]
        if count.arrived > count.out and self.due_s:
            at_s, number = min((at_s, number) for number, at_s in self.due_s.items())
            self.now_s = max(self.now_s, at_s)
            del self.due_s[number]
            return Timer(at_s=self.now_s, number=number)
        return None

    def teardown(self) -> None:
        """Answer all that is owed: every request ends, and nothing is left."""
        for _ in range(MOST_EVENTS):
            if not self.is_whole:  # a law was broken before
                return
            self.now_s += 0.01
            if (event := self._next()) is None:
                break
            self._take(event)
        else:
            raise AssertionError(f"no rest after {MOST_EVENTS} answers")
        self.watch.end(self.state)


def _hold(what: Prepared, examples: int) -> None:
    run_state_machine_as_test(
        functools.partial(AnyOrder, what),
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, phases=AS_DRAWN
        ),
    )


def _requests(models: Sequence[int], late: Sequence[int] = ()) -> list[dict[str, Any]]:
    return [
        {
            "model": model, "prompt_tokens": 1, "max_output_tokens": 1 + (k == 0), "priority": None,
            "deadline_s": 0.01 if model in late else math.inf, "calls_tool": False,
        }
        for k, model in enumerate(models)
    ]  # fmt: skip


def test_a_lost_device_begins_no_relayout() -> None:
    order = AnyOrder(prepared("cocoserve", "roomy"))
    order.begin(requests=_requests([58]))
    order.go_off(pick=23, late_s=0.0)
    order.devices(delay_s=0.0, pick=19, what="lost")
    order.go_off(pick=41, late_s=0.0)
    order.teardown()


def test_a_device_may_be_asked_again_while_devices_start() -> None:
    order = AnyOrder(prepared("pd", "tight"))
    order.begin(requests=_requests([61, 21, 23, 12, 43, 39], late=[23, 39]))
    order.answer_many(delay_s=0.05, pick=6, part=0, times=2)
    order.teardown()


@pytest.mark.parametrize(("system", "fleet"), ON_FLEETS)
def test_any_order_of_events_holds_the_laws(system: str, fleet: str) -> None:
    _hold(prepared(system, fleet), 3)


@pytest.mark.parametrize(
    "system", tiered(sorted({*SYSTEMS} - {"serverlessllm_public"}), "triage_3", slow=11)
)
def test_any_order_holds_the_laws_where_decodes_wait_for_prompts(system: str) -> None:
    made = prepared(system, "tight").setup
    _hold(prepare(replace(made, system=replace(made.system, batch=PromptsAlone()))), 3)


@pytest.mark.parametrize("system", tiered(CACHED, "kept"))
def test_any_order_holds_the_laws_where_prompts_begin_with_blocks(system: str) -> None:
    _hold(caching(system), 3)


@pytest.mark.parametrize(("names", "fleet"), tiered(itertools.product(MIXES, FLEETS), slow=19))
def test_any_order_holds_the_laws_in_any_mix_of_mechanisms(names: str, fleet: str) -> None:
    _hold(prepared(f"composed=[{names}]", fleet), 3)


@pytest.mark.soak
@pytest.mark.parametrize(("system", "fleet"), [*itertools.product(SYSTEMS, FLEETS)])
def test_many_orders_hold_the_laws(system: str, fleet: str) -> None:
    _hold(prepared(system, fleet), 40)
