"""Starts, steps and relayouts as graphs of works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from c2c.policies import apart, jitable
from c2c.serving.tables.plans import DRAWS
from c2c.serving.tables.state import Fleet, Rules, Serving
from c2c.simulator.works.sharing import share_rows
from c2c.simulator.works.works import (
    DISK,
    LINK,
    begin_run,
    end_run,
    follow_run,
    link_amount,
    stop_run,
    write_plan,
)
from c2c.simulator.works.world import SHARES, Machine, World, account, note_ends, relayouts_at

__all__ = [
    "begin_relayout",
    "begin_start",
    "begin_steps",
    "end_relayout",
    "end_works",
    "follow_works",
    "share_among_works",
    "stop_works",
]


def _has_works(values: Mapping[type, Any]) -> bool:
    return len(values[Machine].plans.count) > 0


@apart("share_works", needed=_has_works)
def share_among_works(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    c: int,
    now_s: float,
) -> None:
    """Share chip `c`'s resources, and re-time its phases."""
    chip, link = state.chip[c], world.link[c]
    world.resources.capacity[LINK] = machine.capacity[c]
    world.resources.capacity[DISK] = machine.disk[c]
    link.rate = share_rows(
        world.works, world.phase, world.busy, world.end_s, chip.first, chip.last,
        relayouts_at(state, world), LINK, machine.by_age, now_s, world.resources,
    )  # fmt: skip
    link.peak = max(link.peak, link.rate)
    note_ends(state, world, c)


@apart("follow_works", needed=_has_works)
def follow_works(
    rules: Rules, machine: Machine, state: Serving, world: World, d: int, now_s: float
) -> bool:
    """Handle the end of a work in row `d`; False: the phase has ended."""
    if not follow_run(world.works, d, world.phase[d], now_s):
        return False
    c = state.device[d % len(state.device)].chip
    account(world, c, now_s)
    share_among_works(rules, machine, state, world, c, now_s)
    return True


@apart("begin_start", needed=_has_works)
def begin_start(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    d: int,
    now_s: float,
) -> None:
    """Begin a start on device `d`; without works it ends."""
    inst = state.instance[state.plan[d].instance]
    number = machine.start_plan[inst.model, state.device[d].kind, inst.cold]
    state.split[d] = 0
    write_plan(machine.plans, world.works, d, number, state.split[d])
    _begin(state, world, d, now_s, 0.0, True)


@apart("begin_steps", needed=_has_works)
def begin_steps(
    fleet: Fleet,
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    d: int,
    now_s: float,
) -> None:
    """Begin a run of steps on device `d`."""
    plan, kind, step = state.plan[d], state.device[d].kind, world.works.step[d]
    pair = fleet.deployment[state.instance[plan.instance].model].arch * fleet.costs.kinds + kind
    # A batch that goes on is as old as it was; one that hands its prompts on begins anew, and so
    # does one whose steps change: steps of the variant before end first, and their batch with them.
    changes = step.variant > 0 and step.variant != plan.alpha + 1
    step.variant = plan.alpha + 1
    number = machine.step_plan[pair, plan.alpha]
    write_plan(machine.plans, world.works, d, number, state.split[d])
    stands_s = machine.switch_s if changes else 0.0
    goes_on = not changes and fleet.hands_to[kind] < 0 and not fleet.by_turns
    _begin(state, world, d, now_s, stands_s, goes_on)


@jitable
def _begin(
    state: Serving, world: World, d: int, now_s: float, stands_s: float, is_old: bool
) -> None:
    p = world.phase[d]
    begin_run(world.works, d, p, now_s, stands_s, is_old)
    p.link_bytes = link_amount(world.works, d, LINK)
    p.hbm_bytes = p.link_bytes
    p.hbm_growth = 0.0
    world.link[state.device[d % len(state.device)].chip].graphs += 1 if p.works > 0 else 0


@apart("stop_works", needed=_has_works)
def stop_works(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    world: World,
    d: int,
    now_s: float,
) -> float:
    """Shorten device `d`'s run to the present step; return its next event."""
    return stop_run(world.works, d, world.phase[d], world.end_s[d], now_s)


@apart("end_works", needed=_has_works)
def end_works(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    world: World,
    c: int,
    d: int,
    now_s: float,
) -> None:
    """End device `d`'s run on chip `c` and account its resources."""
    end_run(world.works, c, d, world.phase[d], now_s >= world.end_s[d], now_s)


def _has_ways(values: Mapping[type, Any]) -> bool:
    return len(values[Machine].way_on) > 0


@apart("begin_relayout", needed=_has_ways)
def begin_relayout(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    d: int,
    now_s: float,
) -> None:
    """Begin the transfers of device `d`'s relayout."""
    row = len(state.device) + d
    works, step, c = world.works, world.works.step[row], state.device[d].chip
    account(world, c, now_s)
    step.works, step.uses, step.inside, step.grows = 0, 0, 1, 0
    for w in range(len(machine.way_on)):
        if state.sent_bytes[d, w] <= 0.0:
            continue
        n = step.works
        work, seconds = works.work[row, n], state.sent_bytes[d, w] / machine.way_rate[w]
        work.after, work.rank, work.slope_s = 0, machine.way_rank[w], 0.0
        work.beside = 0
        work.alone_s = machine.way_latency_s[w] + seconds
        for u in range(DRAWS):
            works.on[row, n, u] = machine.way_on[w, u]
            is_link = machine.way_on[w, u] == LINK
            works.amount[row, n, u] = state.sent_bytes[d, w] if is_link else seconds
            works.growth[row, n, u] = 0.0
            if machine.way_on[w, u] >= 0:
                step.uses |= 1 << machine.way_on[w, u]
        step.works = n + 1
        world.phase[row].total_link += state.sent_bytes[d, w]
    p = world.phase[row]
    p.is_load, p.steps, p.start_s = 0, 1, now_s
    world.busy[row] = 1
    world.end_s[row] = np.inf
    world.link[c].dirty = SHARES
    _begin(state, world, row, now_s, 0.0, False)


@apart("end_relayout", needed=_has_ways)
def end_relayout(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    state: Serving,
    world: World,
    row: int,
    now_s: float,
) -> int:
    """End a row's relayout; return its device."""
    d = row - len(state.device)
    p, c = world.phase[row], state.device[d].chip
    account(world, c, now_s)
    p.busy_s += now_s - p.start_s
    end_run(world.works, c, row, p, now_s >= world.end_s[row], now_s)
    world.busy[row] = 0
    world.end_s[row] = np.inf
    world.link[c].graphs -= 1
    world.link[c].dirty = SHARES
    return d
