"""Runs of many seeds, and the shortest plan that still fails."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import batched
from typing import Any, Final

from tests.vopr.plan import Plan, plan_of
from tests.vopr.world import Shared, World, shared_parts

__all__ = ["Outcome", "outcome_of", "outcomes", "shrunk"]

_AT_ONCE: Final = 20  # seeds of a task; a process collects garbage after each task
_TASKS: Final = 20  # tasks after which a process is replaced
_KIND: Final = 40  # characters of a failure that identify its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run.

    Attributes:
      seed: seed of its plan.
      wrong: broken laws.
      trace: SHA-256 of all events with their times.
      lines: the events of `trace` as text, if they were kept.
      turns: turns of the loop.
      seconds: last time of the world's clock.
      counts: number of events by kind.
    """

    seed: int
    wrong: tuple[str, ...]
    trace: str
    lines: tuple[str, ...]
    turns: int
    seconds: float
    counts: Mapping[str, int]

    @property
    def kind(self) -> str:
        """First broken law, without numbers; "" if there is none."""
        if not self.wrong:
            return ""
        lines = [line for line in self.wrong[0].splitlines() if line.strip()]
        return re.sub(r"[0-9]+(\.[0-9]+)?", "#", lines[-1] if len(lines) > 2 else lines[0])


@cache
def _shared() -> Shared:
    return shared_parts()


def outcome_of(plan: Plan, *, keeps_lines: bool = False) -> Outcome:
    """Run a plan and return its outcome."""
    world = World(plan, _shared(), keeps_lines=keeps_lines)
    world.run()
    loop = world.loop
    return Outcome(
        seed=plan.seed, wrong=tuple(world.wrong), trace=loop.trace.hexdigest(),
        lines=tuple(loop.lines or ()), turns=loop.turns, seconds=loop.now_s,
        counts=dict(world.counts),
    )  # fmt: skip


def _some(first: int, past: int) -> list[Outcome]:
    """Run seeds and collect garbage once after them, since a world is one large cycle."""
    gc.disable()
    try:
        return [outcome_of(plan_of(seed)) for seed in range(first, past)]
    finally:
        gc.enable()
        gc.collect()


def outcomes(first: int, seeds: int, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of consecutive seeds in order.

    Args:
      first: first seed.
      seeds: number of seeds.
      jobs: number of processes.
    """
    past = first + seeds
    pieces = [(at, min(at + _AT_ONCE, past)) for at in range(first, past, _AT_ONCE)]
    if len(pieces) == 1:
        yield from _some(first, past)
        return
    context = multiprocessing.get_context("spawn")
    # The front's library keeps memory of each application, so processes are replaced: by a new
    # pool, since `max_tasks_per_child` hangs in Python 3.12 (python/cpython#115634).
    for some in batched(pieces, jobs * _TASKS):
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            for found in pool.map(_some, *zip(*some, strict=True)):
                yield from found


def shrunk(plan: Plan, fails: Callable[[Plan], bool] | None = None) -> Plan:
    """Return the shortest plan found that fails as `plan` does.

    Args:
      plan: plan that fails.
      fails: returns True if another plan fails likewise; None compares the kind of failure.
    """
    if fails is None:
        wanted = outcome_of(plan).kind[:_KIND]

        def fails(other: Plan) -> bool:
            return outcome_of(other).kind[:_KIND] == wanted

    before: Plan | None = None
    while before != plan:
        before = plan
        for name in ("asks", "faults", "wishes"):
            plan = _with_fewer(plan, name, fails)
        for name, simple in _SIMPLE.items():
            other = replace(plan, **{name: simple})
            if other != plan and fails(other):
                plan = other
    return plan


_SIMPLE: Final[Mapping[str, Any]] = {
    name: getattr(Plan(seed=0), name)
    for name in (
        "poison", "workers", "cuts", "crash_a_step", "dies_at_hello", "slow_link", "read_fails",
        "disk_full", "busy_poll", "spins", "ahead", "boot_hangs", "fork_fails", "has_spare",
        "roomy", "most_waiting", "max_open",
    )
}  # fmt: skip


def _with_fewer(plan: Plan, name: str, fails: Callable[[Plan], bool]) -> Plan:
    """Leave out pieces of a list: halves first, then ever smaller ones."""
    size = max(1, len(getattr(plan, name)) // 2)
    while size:
        at = 0
        while at < len(getattr(plan, name)):
            other = _without(plan, name, at, at + size)
            if fails(other):
                plan = other
            else:
                at += size
        size //= 2
    return plan


def _without(plan: Plan, name: str, at: int, past: int) -> Plan:
    """Leave out items `at` to `past` of a list; `poison` has indices of requests."""
    items = getattr(plan, name)
    shorter = replace(plan, **{name: items[:at] + items[past:]})
    if name != "asks":
        return shorter
    poison = (k if k < at else k - past + at for k in plan.poison if not at <= k < past)
    return replace(shorter, poison=tuple(poison))
