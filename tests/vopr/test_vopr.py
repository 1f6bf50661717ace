"""The engine in a simulated world: seeds, faults that were found by them, and the world itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.engine.backend import LiveBackend
from c2c.engine.models import Models
from c2c.transformer import OnDevice
from tests.tiers import tiered
from tests.vopr.plan import Plan, plan_from, plan_of
from tests.vopr.runs import outcome_of, outcomes, shrunk

PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


@pytest.mark.parametrize("first", tiered(range(0, 200, 20)))
def test_nothing_is_wrong_with_a_seed(first: int) -> None:
    wrong = {found.seed: found.wrong for found in outcomes(first, 20, 1) if found.wrong}
    assert not wrong, "again: python -m tests.vopr seed=... lines=40"


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_fault_that_was_found_stays_mended(path: Path) -> None:
    found = outcome_of(plan_from(path.read_text("utf-8")))
    assert not found.wrong


@pytest.mark.slow
def test_a_seed_is_the_same_to_the_byte_in_another_process() -> None:
    here = outcome_of(plan_of(7), keeps_lines=True)
    again = outcome_of(plan_of(7))
    there = subprocess.run(
        [sys.executable, "-m", "tests.vopr", "seed=7", "lines=3"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *lines, verdict, last = there.stdout.splitlines()
    assert here.trace == again.trace == last.split()[0]
    assert re.fullmatch("[0-9a-f]{64}", here.trace)
    assert tuple(lines) == here.lines[-3:]
    assert verdict == "no law is broken"
    assert outcome_of(plan_of(8)).trace != here.trace


def test_a_plan_is_read_as_it_was_written() -> None:
    for seed in range(50):
        assert plan_from(plan_of(seed).as_json()) == plan_of(seed)


def test_plans_draw_all_kinds_of_engines_and_faults() -> None:
    plans = [plan_of(seed) for seed in range(200)]
    for name in ("caches", "adds", "http", "roomy", "has_spare", "busy_poll", "spins"):
        assert {getattr(plan, name) for plan in plans} == {False, True}
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert len(kinds) == 10, kinds
    assert {wish.what for plan in plans for wish in plan.wishes} >= {"add", "remove", "pin"}


def test_the_shortest_plan_has_what_a_fault_needs_and_no_more() -> None:
    plan = replace(plan_of(4), poison=())
    wanted, fault = plan.asks[2], plan.faults[-1]

    def fails(other: Plan) -> bool:
        return wanted in other.asks and fault in other.faults and other.slow_link == plan.slow_link

    short = shrunk(plan, fails)
    assert short.asks == (wanted,)
    assert short.faults == (fault,)
    assert (short.wishes, short.workers, short.cuts) == ((), 1, 0.0)
    assert short.slow_link == plan.slow_link


def _keeps_blocks(self: OnDevice, stay: Any) -> None:
    del self, stay


def _forgets_losses(self: LiveBackend, place: Any, **more: Any) -> None:
    del self, more
    place.link = None


def _answers_nobody(self: Models, model: str, failed: str) -> None:
    del self, model, failed


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (OnDevice, "give", _keeps_blocks),
        (LiveBackend, "lost", _forgets_losses),
        (Models, "_answer", _answers_nobody),
    ],
)
def test_laws_see_an_engine_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert any(outcome_of(plan_of(seed)).wrong for seed in range(12))


@pytest.mark.soak
def test_ten_thousand_seeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.vopr", "seeds=10000"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
