"""Event loop: arrivals and phase ends in time order."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import inlined, jitable
from c2c.serving.batches.moments import after_arrival, after_steps, before_arrival
from c2c.serving.batches.timers import answer_timer, set_timer
from c2c.serving.early_end import on_due
from c2c.serving.memory.kv_homes import on_relaid
from c2c.serving.placement import start_active
from c2c.serving.step import on_arrival, on_carried, on_ready, on_step_end, start_asked
from c2c.serving.tables.state import FAIL_CANCELLED, FAIL_DEADLINE, Loop, Rules, Serving
from c2c.simulator.arrivals.clients import Clients, give_back, next_free_s, take_client
from c2c.simulator.arrivals.sessions import (
    Sessions,
    next_turn_s,
    skip_turns,
    take_turn,
    turn_sent,
    turns_ended,
)
from c2c.simulator.backend import end_phase, submit
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.lengths import end_by_length
from c2c.simulator.works.events import FLEET, next_end
from c2c.simulator.works.graphs import end_relayout, follow_works
from c2c.simulator.works.kv_transfers import has_come
from c2c.simulator.works.world import Machine, World
from c2c.workloads import OF_MODEL

__all__ = [
    "BLOCK_DONE",
    "DRAINED",
    "NEED_SLOTS",
    "OUTSIDE_DUE",
    "RECORDS_FULL",
    "Arrivals",
    "drive",
]

# Why `drive` returned.
BLOCK_DONE: Final = 0  # all arrivals of the block are taken; later events wait for the next block
DRAINED: Final = 1  # no more events
RECORDS_FULL: Final = 2  # take the records out, then call again
NEED_SLOTS: Final = 3  # grow the request slots, then call again
OUTSIDE_DUE: Final = 4  # something happens at `World.outside_s`: apply it, then call again

_OUTSIDE: Final = -2


class Arrivals(NamedTuple):
    """Requests of a block by group and time; arrays of n or 0 entries.

    Attributes:
      arrival_s, model, prompt, output, ids: [n].
      limit: i8[n] most tokens of an answer; empty: as many as it has.
      priority: i8[n]; empty: the models'.
      deadline_s, cancel_s: f8[n] from the arrival until given up, and until its client leaves; inf:
        never; empty: the models'.
      calls_tool: i8[n] 1: its answer ends in a call; empty: none.
      block_at, block_count: [n] first block in `block_keys`, and number; empty without a prefix
        cache.
      prompt_blocks: [n] blocks of its prompt.
      block_keys: i8[blocks], see `c2c.workloads.RequestBlock`.
      until: i8[groups] end of each group's arrivals.
    """

    arrival_s: Any
    model: Any
    prompt: Any
    output: Any
    ids: Any
    limit: Any
    priority: Any
    deadline_s: Any
    cancel_s: Any
    calls_tool: Any
    block_at: Any
    block_count: Any
    prompt_blocks: Any
    block_keys: Any
    until: Any


@inlined
def _due_timer(
    rules: Rules, state: Serving, world: World, ends_s: float, arrives_s: float
) -> int:  # fmt: skip
    # The timer that is due before the next phase ends or request arrives, _OUTSIDE or -1.
    timer = state.count[0].first_timer
    due_s = state.timer_s[timer]
    outside_s = world.outside_s[0]
    if outside_s < ends_s and outside_s <= min(due_s, arrives_s):
        return _OUTSIDE
    is_next = due_s < ends_s and due_s <= arrives_s
    runs_on = min(ends_s, arrives_s) < np.inf
    if timer == 0 and not rules.traits.option.acts_when_idle:
        runs_on = True  # requests are open, whose deadlines or option it serves
    return int(timer) if is_next and runs_on else -1


@inlined
def _end(w: Loop, machine: Machine, world: World, d: int, now_s: float) -> int:
    # What row d does ends; its device.
    rules, state = w.rules, w.s
    if d >= len(world.phase):
        d -= len(state.device)
        on_carried(w, has_come(state, world, d), now_s)
    elif d >= len(state.device):
        d = end_relayout(rules, state, world, d, now_s)
        on_relaid(w, d)
    elif end_phase(rules, machine, state, world, d, now_s):
        on_ready(w, d, now_s)
    else:
        if machine.cuts_runs:
            end_by_length(w, machine, d)
        on_step_end(w, d, now_s)
        after_steps(w, d, now_s)
    return d


@inlined
def _next_arrival(
    arrival_s: Any, cursor: Any, n: int, clients: Clients, sessions: Sessions
) -> tuple[float, bool]:
    # When the next request comes, inf: none does, and whether it is a turn that is due.
    if len(sessions.ids) > 0:
        skip_turns(sessions, cursor, n)
    arrives_s = np.inf
    if cursor[0] < n:
        is_closed = len(clients.free_s) > 0
        arrives_s = next_free_s(clients) if is_closed else arrival_s[cursor[0]]
    due_s = next_turn_s(sessions)
    return min(arrives_s, due_s), due_s < arrives_s


@inlined
def _taken(cursor: Any, is_turn: bool, clients: Clients, sessions: Sessions) -> int:
    # The row of the request that comes next.
    if is_turn:
        return take_turn(sessions)
    if len(clients.free_s) > 0:
        take_client(clients)
    cursor[0] += 1
    return int(cursor[0] - 1)


@inlined
def _arrive(w: Loop, a: Arrivals, k: int, now_s: float) -> None:
    # Request k of the block comes.
    state = w.s
    m, limit = a.model[k], a.output[k]
    model = w.fleet.deployment[m]
    urgent, gives_up_s = model.priority, model.deadline_s
    slot = state.free_slots[state.count[0].free_slots - 1]  # that it gets
    req = state.request[slot]
    req.length = limit
    req.entry = m
    req.late_as = FAIL_DEADLINE
    req.calls_tool = a.calls_tool[k] if len(a.calls_tool) > 0 else 0
    if len(a.block_at) > 0:
        before_arrival(w, slot, a.block_keys, a.block_at[k], a.block_count[k], a.prompt_blocks[k])
    if len(a.limit) > 0:
        limit = a.limit[k]
    if len(a.priority) > 0:
        if a.priority[k] != OF_MODEL:
            urgent = a.priority[k]
        gives_up_s = min(gives_up_s, a.deadline_s[k])
        if a.cancel_s[k] < gives_up_s:
            gives_up_s = a.cancel_s[k]
            req.late_as = FAIL_CANCELLED
    ends_by_s = now_s + gives_up_s
    m = w.fleet.adapters.base[m]
    on_arrival(w, now_s, a.ids[k], m, a.prompt[k], limit, urgent, ends_by_s)
    after_arrival(w, slot, now_s)
    if ends_by_s < state.timer_s[0]:
        set_timer(state, 0, ends_by_s)


@jitable
def drive(
    w: Loop,
    machine: Machine,
    world: World,
    experts: Experts,
    a: Arrivals,
    cursor: Any,
    last_s: float,
    is_last: bool,
    clients: Clients,
    sessions: Sessions,
) -> int:
    """Run to the end of the block of arrivals (of the last: of all work).

    Order: by time, then phase ends by device, wires, failures and timers, arrivals as in the block.
    """
    fleet, rules, state = w.fleet, w.rules, w.s
    arrival_s = a.arrival_s
    is_open = not is_last and (len(arrival_s) == 0 or last_s > arrival_s[len(arrival_s) - 1])
    n = a.until[cursor[1]]
    root = FLEET if len(a.until) == 1 else world.tournament.roots[cursor[1]]
    room = len(state.records) - fleet.max_batch - 2
    ended = state.count[0].out
    if state.count[0].to_start != 0:
        start_active(w)
    while True:
        if state.count[0].out > room:
            return RECORDS_FULL
        d, now_s = next_end(world.tournament, root)
        arrives_s, is_turn = _next_arrival(arrival_s, cursor, n, clients, sessions)
        k = cursor[0]
        timer = (
            _due_timer(rules, state, world, now_s, arrives_s) if k < n or is_last or is_open else -1
        )
        if timer != -1 and k >= n and not is_last:
            due_s = world.outside_s[0] if timer == _OUTSIDE else state.timer_s[timer]
            if due_s >= last_s:
                timer = -1
        if timer == _OUTSIDE:
            return OUTSIDE_DUE
        if timer >= 0:
            d = -1
            now_s = state.timer_s[timer]
            if timer == 0:
                on_due(w, now_s)
            else:
                answer_timer(w, timer, now_s)
        elif arrives_s < now_s:
            if state.count[0].free_slots == 0:
                return NEED_SLOTS
            d = -1
            now_s = arrives_s
            row = _taken(cursor, is_turn, clients, sessions)
            turn_sent(sessions, row, now_s)
            _arrive(w, a, row, now_s)
        elif (k >= n and not is_last and now_s >= last_s) or now_s == np.inf:
            if cursor[1] + 1 == len(a.until):
                return DRAINED if is_last else BLOCK_DONE
            cursor[1] += 1
            n = a.until[cursor[1]]
            root = world.tournament.roots[cursor[1]]
            continue
        elif (
            d < len(world.phase)
            and world.phase[d].works > 1
            and follow_works(rules, machine, state, world, d, now_s)
        ):
            continue
        else:
            d = _end(w, machine, world, d, now_s)
        start_asked(w, now_s)
        submit(w, machine, world, experts, d, now_s)
        if state.count[0].out > ended:
            give_back(clients, turns_ended(state, sessions, ended, now_s), now_s)
            ended = state.count[0].out
