"""Pure step of the serving loop."""

from __future__ import annotations

from c2c.policies import apart, inlined, jitable
from c2c.serving.arrivals import new_request, why_unservable
from c2c.serving.batches.handover import carry, goes_directly
from c2c.serving.batches.queues import append_pending, append_waiting
from c2c.serving.batches.records import fail, leave
from c2c.serving.batches.turns import start_asked, wake
from c2c.serving.placement import open_lanes, try_place
from c2c.serving.rebalance import route_waiting
from c2c.serving.request_routing import is_too_busy, routed
from c2c.serving.step_end import account_step, end_step
from c2c.serving.step_report import leave_late
from c2c.serving.tables.pools import arrived, entry_of
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import FAIL_CONTEXT, FAIL_NONE, Loop
from c2c.serving.vacancy import after_leaving, clear_slice, go_on, serve_pending

__all__ = ["on_arrival", "on_carried", "on_ready", "on_step_end", "start_asked"]


@inlined
def on_arrival(
    w: Loop,
    now_s: float,
    request_id: int,
    m: int,
    prompt: int,
    output: int,
    priority: int,
    ends_by_s: float,
) -> None:
    """Handle an arrival: route it to an active instance, place its model, or queue it.

    `ends_by_s` is its deadline; inf: none.

    Source: C2CServe section 6.1, steps 1 and 2.
    """
    slot = new_request(w, now_s, request_id, m, prompt, output, priority, ends_by_s)
    tokens = prompt + output
    if tokens > w.fleet.deployment[m].max_context:
        fail(w.s, slot, now_s, FAIL_CONTEXT)
        return
    i = routed(w, m, slot, False)
    if i >= 0:
        if is_too_busy(w, i, slot):
            placed = try_place(w, m, tokens, -1, now_s)
            if placed >= 0:
                i = placed
        append_waiting(w.s, i, slot)
        wake(w, i)
        return
    reason = why_unservable(w, m, tokens)
    if reason != FAIL_NONE:
        fail(w.s, slot, now_s, reason)
        return
    append_pending(w.fleet, w.s, m, slot)
    # Later requests do not overtake: only the first in line asks for a slice.
    is_first = w.s.model[m].wait_head == slot
    if is_first and try_place(w, m, tokens, -1, now_s) < 0 and not serve_pending(w, m):
        clear_slice(w, m, now_s)


@jitable
def on_ready(w: Loop, d: int, now_s: float) -> None:
    """Handle the end of a load on device `d`."""
    i = int(w.s.plan[d].instance)
    m, c = w.s.instance[i].model, w.s.instance[i].chip
    arrived(w.s, entry_of(w.fleet, m, c))
    if w.fleet.opens_all:
        open_lanes(w, m, c, w.s.device[d].kind)  # lanes of a kind share their weights
        route_waiting(w, i)
    go_on(w, i, now_s)
    if w.fleet.hands_directly and w.fleet.role[d] == DECODES:
        carry(w, d, now_s)


@inlined
def on_step_end(w: Loop, d: int, now_s: float) -> None:
    """Handle the end of reported steps on device `d`."""
    account_step(w, d)
    if w.fleet.gives_up:
        leave_late(w, d, now_s)
    end_step(w, d, now_s)


@apart("carried", needed=goes_directly)
def on_carried(w: Loop, slot: int, now_s: float) -> None:
    """Handle a KV cache's arrival at its decode instance."""
    req = w.s.request[slot]
    i = int(req.held_by)
    req.held_by = -1
    req.handed_s = now_s
    w.s.inbound[req.instance].come += 1
    leave(w, i, slot)
    wake(w, req.instance)
    after_leaving(w, i, now_s)
