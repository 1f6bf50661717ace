"""Compiled code calls policies by address, and reads their fields and arrays there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.compiling.addresses import FIELDS, LOOP
from c2c.compiling.builder import OPTIONS, decision
from c2c.compiling.decision import POINTS, DecisionPoint, place_in_tables
from c2c.compiling.entries import link
from c2c.compiling.packing import pack
from c2c.errors import PolicyError
from c2c.policies import (
    DECISIONS,
    AlphaObservation,
    AlphaState,
    FirstIdle,
    Own,
    System,
    adjust_alpha,
    check_policy,
    draw,
    may_join,
    should_drain,
    urgency,
    wants_another,
)
from c2c.policies.turn import ENGINE_DTYPE


def address_of(point: DecisionPoint, policy: Any, memory: Any) -> int:
    if LOOP in point.signature.takes:  # the type of the loop is known in the loop only
        return 0
    return decision(point, policy, memory).address


class Inner(NamedTuple):
    grid: Any
    share: float


class Outer(NamedTuple):
    count: int
    is_on: bool
    inner: Inner
    row: Any
    share: float


@numba.njit
def unpacked(o: Any) -> tuple[Any, ...]:
    o.row[0] += 1
    inner = o.inner
    return o.count, o.is_on, inner.grid[1, 2], inner.share, o.row[0], o.share, o.inner.grid.sum()


numbers = st.floats(allow_nan=False, width=64)


@given(st.integers(-(2**63), 2**63 - 1), st.booleans(), numbers, numbers)
@settings(max_examples=30, deadline=None)
def test_a_packed_tuple_has_the_fields_of_the_original(
    count: int, is_on: bool, share: float, other: float
) -> None:
    grid = np.random.default_rng(count % 2**32).normal(size=(6, 5))
    whole = Outer(count, is_on, Inner(grid[::2], share), np.arange(4.0), other)
    packed = pack(whole)
    assert unpacked(packed) == (
        count, is_on, grid[2, 2], share, 1.0, other, pytest.approx(grid[::2].sum(), rel=1e-13),
    )  # fmt: skip
    assert whole.row[0] == 1.0  # one memory
    with pytest.raises(TypeError, match="str is neither a number nor an array"):
        pack(whole._replace(count="many"))


@pytest.fixture(scope="module")
def ask() -> Callable[..., Any]:
    """Return a function of compiled code that asks policies of any type, compiled once."""

    @numba.njit(**OPTIONS)
    def decide(system: Any, own: Any, x: Any, state: Any, seen: Any, row: Any) -> Any:
        return (
            may_join(system.admit, x, 10.0, 3, 8),
            should_drain(system.preempt, x),
            adjust_alpha(system.alpha, state, seen),
            urgency(system.turn, own.turn, row, x),
        )

    return decide


@pytest.mark.slow
def test_every_policy_answers_by_address_as_interpreted(ask: Callable[..., Any]) -> None:
    state = AlphaState(0.5, 0.02, 0.7, 0.9)
    seen = AlphaObservation(0.1, 0.05, 0.5, 1.0)
    row = np.zeros(1, ENGINE_DTYPE).view(np.recarray)
    row[0].prompt_due_s, row[0].token_due_s, row[0].order = 3.0, 5.0, 2
    asked = 0
    for setting in ("admit", "preempt", "alpha", "turn"):
        for policy_type in DECISIONS[setting].policies.values():
            if not policy_type.__module__.startswith("c2c."):
                continue
            policy: Any = policy_type()
            system, own = System(**{setting: policy}), Own()
            if hasattr(policy, "memory"):
                own = Own(**{setting: policy.memory(SimpleNamespace(instances=1))})
            tables = link(system, own, address_of)
            for x in (0.5, 20.0):
                expected = ask.py_func(system, own, x, state, seen, row[0])  # type: ignore[attr-defined]
                assert ask(tables.system, tables.own, x, state, seen, row[0]) == expected
                asked += 1
    assert asked >= 2 * 10
    assert len(ask.signatures) == 1, "one machine code for all of them"  # type: ignore[attr-defined]


def test_decisions_have_one_place_each() -> None:
    assert sorted(place_in_tables(p) for p in POINTS.values()) == list(range(len(POINTS)))
    assert {"place", "route", "urgency", "may_join"} <= POINTS.keys()


class Lazy(NamedTuple):
    """Drains, and does not say how often to look."""


@should_drain.by(Lazy)
def _lazy(policy: Lazy, oldest_wait_s: float) -> bool:
    return True


class Named(NamedTuple):
    name: str = "mine"


@should_drain.by(Named)
def _named(policy: Named, oldest_wait_s: float) -> bool:
    return True


def test_what_cannot_be_linked_is_said_before_the_start() -> None:
    where = r"policy Lazy: test_linked.py, line \d+"
    with pytest.raises(PolicyError, match=rf"{where}: .* traits = PreemptTraits\(look_every_s="):
        check_policy("preempt", Lazy())
    with pytest.raises(PolicyError, match=r"policy Named: .*str is neither a number nor an array"):
        link(System(preempt=Named()), Own(), address_of)


def test_a_decision_that_is_not_in_the_table_is_an_error_and_no_crash(
    ask: Callable[..., Any],
) -> None:
    tables = link(System(place=FirstIdle()), Own(), address_of)
    empty = np.zeros(FIELDS + len(POINTS), np.int64)
    system = tables.system._replace(admit=tables.system.admit._replace(at=empty.ctypes.data))
    row = np.zeros(1, ENGINE_DTYPE).view(np.recarray)
    nothing = AlphaState(0.0, 0.0, 0.0, 0.0), AlphaObservation(0.0, 0.0, 0.0, 0.0)
    with pytest.raises(RuntimeError, match="the policy that was asked has no may_join"):
        ask(system, tables.own, 1.0, *nothing, row[0])


class Coin(NamedTuple):
    """Wants another instance for half of all numbers of outstanding requests."""

    seed: int = 3


@wants_another.by(Coin)
def _tossed(policy: Coin, outstanding: int, backlog_s: float, is_full: bool) -> bool:
    return draw(policy.seed, outstanding, 0, 1, 0) < 0.5


def test_a_policy_draws_the_same_by_address_as_interpreted() -> None:
    @numba.njit(**OPTIONS)
    def decide(system: Any, outstanding: int) -> bool:
        return wants_another(system.scale, outstanding, 0.0, False)

    tables = link(System(scale=Coin()), Own(), address_of)
    wanted = [wants_another(Coin(), n, 0.0, False) for n in range(200)]
    assert [decide(tables.system, n) for n in range(200)] == wanted
    assert 70 < sum(wanted) < 130
