"""Starts of engines and hand-overs of requests by polls."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.errors import SettingError
from c2c.policies import (
    BatchTraits,
    PlaceTraits,
    fill,
    jitable,
    joins,
    on_request,
    on_steps,
    on_timer,
    place,
    route,
)
from c2c.ranges import AboveZero, Count, FromZero
from c2c.serving.batches.instances import evict
from c2c.serving.batches.queues import append_waiting, end_waiting, return_waiting, unlink
from c2c.serving.batches.scheduling import compute_prompts, join
from c2c.serving.batches.turns import begin_load, wake
from c2c.serving.memory.hbm import request_bytes, room_bytes
from c2c.serving.placement import drop_claim, make_active
from c2c.serving.tables.batch import batch_size, outstanding
from c2c.serving.tables.pools import could_hold_weights, homes_of
from c2c.serving.tables.state import (
    ASSIGNED,
    COLD,
    FREE,
    HELD,
    IDLE,
    IN_SERVICE,
    LOADING,
    READY,
    RUNNING,
    SWITCH,
    WARM,
    Loop,
)

__all__ = ["AtLook", "NoEngine", "NoSlice", "PolledRouter"]

_MOST: Final = 10  # engines of a model, the public default
_ROUNDING: Final = 1e-6  # of a period: a tick is never twice at the same time
_GOLDEN: Final = 0.6180339887498949


def _check_beside(system: Any) -> None:
    kinds = tuple(map(type, (system.option, system.route, system.place, system.batch)))
    if kinds == (PolledRouter, NoEngine, NoSlice, AtLook) and system.engines.residents == 1:
        return
    raise SettingError(
        "system.option", [kind.__name__ for kind in kinds],
        "polled_router with system/route=no_engine, system/place=no_slice, system/batch=at_look "
        "and system.engines.residents=1",
    )  # fmt: skip


class NoSlice(NamedTuple):
    """No slice for a request: the option `polled_router` starts engines."""

    def check_beside(self, system: Any) -> None:
        """Raise SettingError unless the router's policies stand together."""
        _check_beside(system)

    @property
    def traits(self) -> PlaceTraits:
        """Constant traits."""
        return PlaceTraits(reads_promises=False)


@place.by(NoSlice)
def _none(
    policy: NoSlice, own: Any, table: Any, count: int, tokens: int, demand_gbps: float, key: int
) -> int:
    return -1


class NoEngine(NamedTuple):
    """No engine for a request: the option `polled_router` hands it over."""

    def check_beside(self, system: Any) -> None:
        """Raise SettingError unless the router's policies stand together."""
        _check_beside(system)


@route.by(NoEngine)
def _nowhere(policy: NoEngine, own: Any, table: Any, count: int, tokens: int) -> int:
    return -1


class AtLook(NamedTuple):
    """Requests join by `polled_router`; prompts are whole."""

    def check_beside(self, system: Any) -> None:
        """Raise SettingError unless the router's policies stand together."""
        _check_beside(system)

    @property
    def traits(self) -> BatchTraits:
        """Constant traits."""
        return BatchTraits(grows=False)


@jitable
def _head_joins(w: Loop, i: int) -> bool:
    inst = w.s.instance[i]
    if inst.n_wait == 0 or inst.draining != 0 or batch_size(w.s, i) >= w.fleet.max_batch:
        return False
    head = w.s.request[inst.wait_head]
    need = request_bytes(w.fleet, w.s, i, head.prompt + head.output)
    return bool(head.rank == -math.inf and need <= room_bytes(w.s, inst.on_device))


@joins.by(AtLook)
def _joins(policy: AtLook, w: Loop, i: int) -> bool:
    return _head_joins(w, i)


@fill.by(AtLook)
def _fill(policy: AtLook, w: Loop, i: int, now_s: float) -> int:
    inst = w.s.instance[i]
    while _head_joins(w, i):
        head = w.s.request[inst.wait_head]
        join(w, i, head.prompt + head.output, 0, now_s)
    compute_prompts(w, i, 1 << 60)
    w.s.plan[inst.on_device].decodes = inst.n_decode
    return 1 << 60


class Polls(NamedTuple):
    """Memory of the router; times are inf where nothing is due.

    Attributes:
      look_s: f8[models] next look of a balancer.
      tick_s: f8[models] next tick of a scaler.
      idle_s: f8[models] with an engine too many.
      must_stop: i8[models] 1: the scaler waits for an engine to stop.
      turn: i8[models] looks so far.
      starts: i8[models] starts that wait for a slice.
      asked: i8[models] place of the first of them among all.
      stops: i8[instances] 1: goes when its batch is empty.
      grant_s: f8[1] next tick of the scheduler.
      count: i8[1] places so far.
    """

    look_s: Any
    tick_s: Any
    idle_s: Any
    must_stop: Any
    turn: Any
    starts: Any
    asked: Any
    stops: Any
    grant_s: Any
    count: Any


class PolledRouter(NamedTuple):
    """Starts of engines and hand-overs of requests by polls.

    Source: the files of `conf/system` that use it. Ours: ticks are spread evenly.

    Attributes:
      poll_s: wait before each look, and period of scaler and scheduler.
      target: concurrent requests of an engine.
      keep_alive_s: stay of an engine without requests.
    """

    poll_s: AboveZero = 1.0
    target: Count = 1
    keep_alive_s: FromZero = 0.0

    def check_beside(self, system: Any) -> None:
        """Raise SettingError unless the router's policies stand together."""
        _check_beside(system)

    def memory(self, fleet: Any) -> Polls:
        """Return the initial memory."""
        models = len(fleet.deployment)
        never, none = np.full(models, np.inf), np.zeros(models, np.int64)
        return Polls(
            never, never.copy(), np.zeros(models), none, none.copy(), none.copy(),
            none.copy(), np.zeros(fleet.instances, np.int64),
            np.full(1, np.inf), np.zeros(1, np.int64),
        )  # fmt: skip


@jitable
def _tick_s(policy: PolledRouter, number: int, now_s: float) -> float:
    # The first tick after now of the scaler of model `number`; -1: of the scheduler.
    phase_s = policy.poll_s * (_GOLDEN * (number + 2) % 1.0)
    periods = math.floor((now_s - phase_s) / policy.poll_s + _ROUNDING) + 1
    return float(phase_s + periods * policy.poll_s)


@jitable
def _takes(w: Loop, own: Polls, i: int) -> bool:
    # Whether instance i has started and does not stop.
    inst = w.s.instance[i]
    is_there = inst.state == IDLE or inst.state == READY or inst.state == RUNNING
    return bool(is_there and own.stops[i] == 0 and inst.draining == 0)


@jitable
def _engines(w: Loop, own: Polls, m: int) -> tuple[int, int, int]:
    # Engines of model m that take requests, those that load, and the requests of all.
    ready, loading, requests = 0, 0, w.s.model[m].n_wait
    i = w.s.model[m].active
    while i >= 0:
        requests += outstanding(w.s, i)
        ready += _takes(w, own, i)
        loading += w.s.instance[i].state == LOADING
        i = w.s.instance[i].next_same
    return ready, loading, requests


@jitable
def _first_waiting(w: Loop, i: int) -> tuple[int, int, int]:
    # The first request at instance i that has not been handed over, the one before it, and how many
    # have; -1: there is none.
    slot, before, n = int(w.s.instance[i].wait_head), -1, 0
    while slot >= 0 and w.s.request[slot].rank == -math.inf:
        before, slot, n = slot, int(w.s.request[slot].next), n + 1
    return slot, before, n


@jitable
def _waiting(w: Loop, m: int) -> int:
    # Requests of model m that are not handed over.
    n, i = w.s.model[m].n_wait, w.s.model[m].active
    while i >= 0:
        n += w.s.instance[i].n_wait - _first_waiting(w, i)[2]
        i = w.s.instance[i].next_same
    return int(n)


@jitable
def _goes_before(w: Loop, a: int, b: int) -> bool:
    # Whether the request in slot a is handed over before that in slot b, which may be none.
    if b < 0:
        return True
    above = w.s.request[a].priority - w.s.request[b].priority
    return bool(above > 0 or (above == 0 and w.s.request[a].arrival_s < w.s.request[b].arrival_s))


@jitable
def _pop_pending(w: Loop, m: int) -> None:
    # Remove the first request of model m that waits for a slice.
    model = w.s.model[m]
    model.wait_head = w.s.request[model.wait_head].next
    model.n_wait -= 1
    w.s.count[0].pending -= 1
    if model.wait_head < 0:
        model.wait_tail = -1
        end_waiting(w.fleet, w.s, m)
    else:
        model.oldest_s = w.s.request[model.wait_head].arrival_s


@jitable
def _hand(w: Loop, m: int, i: int) -> None:
    # Hand the first request of model m that waits, and that instance i can hold, to it.
    drop_claim(w.s, m)
    slot, engine = int(w.s.model[m].wait_head), -1
    j = w.s.model[m].active
    while j >= 0:
        first = _first_waiting(w, j)[0]
        if first >= 0 and _goes_before(w, first, slot):
            slot, engine = first, j
        j = w.s.instance[j].next_same
    if slot < 0:
        return
    req = w.s.request[slot]
    if req.prompt + req.output > w.s.instance[i].kv_capacity:
        return
    kind = req.start_kind
    if engine < 0:
        _pop_pending(w, m)
    else:
        unlink(w.s, engine, _first_waiting(w, engine)[1], slot)
        w.s.instance[engine].backlog -= req.prompt
    req.rank = -math.inf
    append_waiting(w.s, i, slot)
    req.start_kind = COLD if kind == SWITCH and w.s.instance[i].cold != 0 else kind
    wake(w, i)


@jitable
def _nth_ready(w: Loop, own: Polls, m: int, n: int) -> int:
    i = w.s.model[m].active
    while i >= 0:
        if _takes(w, own, i):
            if n == 0:
                return int(i)
            n -= 1
        i = w.s.instance[i].next_same
    return -1


@jitable
def _look(policy: PolledRouter, own: Polls, w: Loop, m: int, now_s: float) -> None:
    # The balancer of model m looks for an engine with a place for its first request.
    wait_s, (ready, _, _) = policy.poll_s, _engines(w, own, m)
    if ready > 0:
        i = _nth_ready(w, own, m, own.turn[m] % ready)
        own.turn[m] += 1
        if batch_size(w.s, i) + _first_waiting(w, i)[2] >= policy.target:
            wait_s *= 2.0
        else:
            _hand(w, m, i)
    own.look_s[m] = now_s + wait_s if _waiting(w, m) > 0 else math.inf


@jitable
def _line_up(own: Polls, m: int) -> None:
    # Put the first start of model m that waits behind those of other models.
    own.asked[m] = own.count[0]
    own.count[0] += 1


@jitable
def _free(w: Loop, own: Polls, i: int, now_s: float) -> None:
    # Instance i, which has no batch, goes; what waits there waits for another one.
    own.stops[i] = 0
    return_waiting(w.fleet, w.s, i)
    evict(w.fleet, w.s, i, now_s)


@jitable
def _reduce(policy: PolledRouter, own: Polls, w: Loop, m: int, now_s: float) -> None:
    # The scaler of model m has an engine too many.
    if own.must_stop[m] == 0 and own.idle_s[m] < policy.keep_alive_s:
        own.idle_s[m] += policy.poll_s
        return
    i = _nth_ready(w, own, m, 0)
    own.must_stop[m] = 1 if i < 0 else 0
    if i < 0:
        return
    own.idle_s[m] = 0.0
    own.stops[i] = 1
    return_waiting(w.fleet, w.s, i)
    if batch_size(w.s, i) == 0:
        _free(w, own, i, now_s)


@jitable
def _scale(policy: PolledRouter, own: Polls, w: Loop, m: int, now_s: float, new: int) -> None:
    # The scaler of model m looks; `new` of its requests have come since.
    ready, loading, requests = _engines(w, own, m)
    requests -= new
    target = min(_MOST, (requests + policy.target - 1) // policy.target)
    running = ready + loading + own.starts[m]
    if running == 0:
        own.must_stop[m] = 0  # its device was lost
    if own.must_stop[m] != 0 or target < running:
        _reduce(policy, own, w, m, now_s)
    elif target > running:
        if own.starts[m] == 0:
            _line_up(own, m)
        own.starts[m] += 1
        if own.grant_s[0] == math.inf:
            own.grant_s[0] = _tick_s(policy, -1, now_s)
    ready, loading, _ = _engines(w, own, m)
    goes_on = requests > 0 or own.must_stop[m] != 0 or ready + loading + own.starts[m] != target
    own.tick_s[m] = _tick_s(policy, m, now_s) if goes_on else math.inf


@jitable
def _free_slice(w: Loop, m: int, tokens: int) -> int:
    # A free instance for so many tokens of model m, first where host memory has its weights; or -1.
    best, is_best_held = -1, False
    for k in homes_of(w.fleet, m):
        chip = w.s.chip[w.fleet.home_chip[k]]
        is_held = w.s.hold[k].state == HELD
        if (best >= 0 and (is_best_held or not is_held)) or not could_hold_weights(
            w.fleet, w.s, k, m
        ):
            continue
        for d in range(chip.last - 1, chip.first - 1, -1):
            i, kind = w.s.device[d].first, w.s.device[d].kind
            holds = w.fleet.kv_capacity[w.fleet.deployment[m].arch, kind] >= tokens
            is_free = w.s.device[d].service == IN_SERVICE and w.s.instance[i].state == FREE
            if holds and is_free:
                best, is_best_held = i, is_held
    return int(best)


@jitable
def _start(own: Polls, w: Loop, m: int, now_s: float) -> bool:
    # Start an engine of model m, even if no request waits any more; False: there is no slice.
    slot = w.s.model[m].wait_head
    tokens = w.s.request[slot].prompt + w.s.request[slot].output if slot >= 0 else 1
    i = _free_slice(w, m, tokens)
    if i < 0:
        return False
    own.stops[i] = 0
    make_active(w, m, i, now_s)
    drop_claim(w.s, m)
    return True


@jitable
def _launch(w: Loop) -> None:
    # Load the models of all engines that have just got a slice: after the last eviction, and though
    # no request may wait for them any more.
    for i in range(len(w.s.instance)):
        if w.s.instance[i].state == ASSIGNED:
            plan = w.s.plan[w.s.instance[i].on_device]
            plan.kv_in_bytes, plan.kv_out_bytes = 0.0, 0.0
            begin_load(w, i)


@jitable
def _grant(policy: PolledRouter, own: Polls, w: Loop, now_s: float) -> None:
    # The scheduler gives free slices to starts, a model's second one behind all first ones.
    last, full = -1, False
    while True:
        m = -1
        for k in range(len(own.starts)):
            is_next = own.starts[k] > 0 and own.asked[k] > last
            if is_next and (m < 0 or own.asked[k] < own.asked[m]):
                m = k
        if m < 0:
            break
        if _start(own, w, m, now_s):
            own.starts[m] -= 1
            _line_up(own, m)
        else:
            last, full = own.asked[m], True
    _launch(w)
    own.grant_s[0] = _tick_s(policy, -1, now_s) if full else math.inf


@jitable
def _act(policy: PolledRouter, own: Polls, w: Loop, now_s: float, slot: int) -> float:
    # Do what is due; return when something is due next. `slot` has just come, or is -1.
    next_s = math.inf
    for m in range(len(own.look_s)):
        new = 1 if slot >= 0 and w.s.request[slot].model == m else 0
        while own.tick_s[m] <= now_s:
            at_s = own.tick_s[m]
            _scale(policy, own, w, m, at_s, new)
        if own.look_s[m] <= now_s:
            _look(policy, own, w, m, now_s)
        next_s = min(next_s, own.tick_s[m], own.look_s[m])
    if own.grant_s[0] <= now_s:
        _grant(policy, own, w, now_s)
    return float(min(next_s, own.grant_s[0]))


@on_request.by(PolledRouter)
def _on_request(policy: PolledRouter, own: Polls, w: Loop, slot: int, now_s: float) -> float:
    m, count = w.s.request[slot].model, w.s.count[0]
    w.s.request[slot].start_kind = WARM if _engines(w, own, m)[0] > 0 else SWITCH
    if count.arrived - count.finished - count.failed == 1:  # starts that waited are long over
        own.starts[:] = 0
        own.grant_s[0] = math.inf
    _act(policy, own, w, now_s, slot)
    own.idle_s[m] = 0.0
    own.look_s[m] = min(own.look_s[m], now_s + policy.poll_s)
    own.tick_s[m] = min(own.tick_s[m], _tick_s(policy, m, now_s))
    return _act(policy, own, w, now_s, -1)


@on_steps.by(PolledRouter)
def _on_steps(policy: PolledRouter, own: Polls, w: Loop, device: int, now_s: float) -> float:
    i = w.s.device[device].first
    if own.stops[i] != 0 and w.s.instance[i].state != FREE and batch_size(w.s, i) == 0:
        _free(w, own, i, now_s)
    return math.inf


@on_timer.by(PolledRouter)
def _on_timer(
    policy: PolledRouter, own: Polls, w: Loop, open_requests: int, now_s: float
) -> float:  # fmt: skip
    return _act(policy, own, w, now_s, -1)
