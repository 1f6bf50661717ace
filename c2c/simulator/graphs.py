"""Phases that are made of works: starts and steps as graphs; compiled if a fleet has any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart
from c2c.serving.state import Fleet, Rules, Serving
from c2c.simulator.chains import (
    CHAIN,
    begin_lane,
    end_lane,
    follow_lane,
    gather_lane,
    in_use_beside,
    spread_lane,
    stop_lane,
)
from c2c.simulator.phases import advance, remaining_s
from c2c.simulator.resources import DRAWS, share
from c2c.simulator.works import DISK, LINK, gather_works, next_works, spread_works
from c2c.simulator.world import Machine, World, account, note_ends

__all__ = ["begin_chain", "end_chain", "follow_works", "share_among_works", "stop_chain"]


def _has_chains(values: Mapping[type, Any]) -> bool:
    return len(values[Machine].chains.prefill_s) > 0


def _has_works(values: Mapping[type, Any]) -> bool:
    return len(values[Machine].starts.after) > 0 or _has_chains(values)


@apart("share_works", needed=_has_works)
def share_among_works(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    c: int,
    now_s: float,
) -> None:
    """Share what is on chip `c` and re-time its phases, some of which are made of works.

    These use the link, the disk or what a layout lies over, beside phases that use the link alone.
    """
    r, starts = world.resources, machine.starts
    r.capacity[LINK] = machine.capacity
    r.capacity[DISK] = machine.disk
    n = 0
    for i in range(state.chip[c].first, state.chip[c].last):
        p = world.phase[i]
        if p.is_graph == CHAIN:
            others = in_use_beside(world.lanes, world.phase, state.chip[c], i)
            n = gather_lane(machine.chains, world.lanes, i, others, now_s, r, n)
        elif p.is_graph != 0:
            m = state.instance[state.plan[i].instance].model
            n = gather_works(starts, world.works, i, m, state.device[i].kind, now_s, r, n)
        elif world.busy[i] != 0:
            r.demand[n] = p.demand
            r.rank[n] = 0
            r.on[n, 0] = LINK
            r.per[n, 0] = 1.0
            for u in range(1, DRAWS):
                r.on[n, u] = -1
            n += 1
    share(r, n)
    n = 0
    total = 0.0
    for i in range(state.chip[c].first, state.chip[c].last):
        p = world.phase[i]
        if p.is_graph == CHAIN:
            world.end_s[i] = spread_lane(world.lanes, i, r, n)
            n += 1
        elif p.is_graph != 0:
            m = state.instance[state.plan[i].instance].model
            n, end_s, p.rate = spread_works(
                starts, world.works, i, m, state.device[i].kind, now_s, r, n
            )
            p.demand = p.rate
            world.end_s[i] = end_s
        elif world.busy[i] != 0:
            advance(p, now_s)
            p.rate = r.flow[n]
            # Steps that a higher rank leaves nothing stand still until shares are found again.
            p.limit_s = 0.0 if p.rate >= p.demand else p.link_bytes / max(p.rate, 1.0)
            world.end_s[i] = p.at_s + remaining_s(p)
            n += 1
        if world.busy[i] != 0:
            total += p.rate
    link = world.link[c]
    link.rate = total
    link.peak = max(link.peak, total)
    note_ends(state, world, c)


@apart("follow_works", needed=_has_works)
def follow_works(
    rules: Rules, machine: Machine, state: Serving, world: World, d: int, now_s: float
) -> bool:
    """Take the end of a work on device `d`; False if its phase has ended with it."""
    if world.phase[d].is_graph == CHAIN:
        if not follow_lane(world.lanes, d, now_s):
            return False
    elif next_works(machine.starts, world.works, d, now_s) == 0:
        return False
    account(world, state.device[d].chip, now_s)
    share_among_works(rules, machine, state, world, state.device[d].chip, now_s)
    return True


@apart("begin_chain", needed=_has_chains)
def begin_chain(
    fleet: Fleet,
    rules: Rules,  # noqa: ARG001 (among which the address is)
    machine: Machine,
    state: Serving,
    world: World,
    d: int,
    now_s: float,
) -> None:
    """Begin the steps that device `d` is told to run, as chains of works."""
    begin_lane(machine.chains, world.lanes, fleet, state, d, world.phase[d], now_s)


@apart("stop_chain", needed=_has_chains)
def stop_chain(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    world: World,
    d: int,
    now_s: float,
) -> float:
    """Let the run of device `d` end with the step under way; returns when, as things are."""
    world.phase[d].steps, end_s = stop_lane(world.lanes, d, now_s)
    return end_s


@apart("end_chain", needed=_has_chains)
def end_chain(
    rules: Rules,  # noqa: ARG001 (among which the address is)
    world: World,
    c: int,
    d: int,
    now_s: float,
) -> None:
    """Account what the run of device `d` on chip `c` used; it ends now."""
    end_lane(world.lanes, c, d, now_s >= world.end_s[d], now_s)
