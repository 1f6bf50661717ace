"""Loss and return of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from c2c.serving.arrivals import largest_kv
from c2c.serving.batches.handover import begin_again, has_prompt_done, let_go
from c2c.serving.batches.instances import vacate
from c2c.serving.batches.moments import on_device_lost, on_host_lost, on_leave
from c2c.serving.batches.preemption import start_over
from c2c.serving.batches.queues import append_pending, end_waiting, unlink
from c2c.serving.batches.records import release_kv
from c2c.serving.early_end import fail_unserved, place_again
from c2c.serving.memory.hbm import request_places
from c2c.serving.placement import drop_claim, place_pending
from c2c.serving.tables.actions import ACT_ASIDE, emit
from c2c.serving.tables.batch import batch_size, generated, member
from c2c.serving.tables.pools import entry_of, never_came
from c2c.serving.tables.state import (
    ABSENT,
    ASSIGNED,
    FAIL_DEVICE,
    FAIL_NONE,
    FREE,
    GONE,
    IN_SERVICE,
    LOADING,
    NOWHERE,
    Fleet,
    Loop,
    Serving,
)
from c2c.serving.vacancy import after_leaving

__all__ = ["bring_back", "lose_devices", "lose_memory"]


def lose_devices(w: Loop, devices: Sequence[int], now_s: float) -> None:
    """Remove devices and their instances from service."""
    chips = sorted({int(w.s.device[d].chip) for d in devices})
    homeless: dict[int, list[int]] = {
        m: [] for m in range(len(w.s.model)) if w.s.model[m].n_wait > 0
    }
    others: set[int] = set()  # instances that held KV caches for those that go, or took them
    going = [
        i
        for d in devices
        for i in range(w.s.device[d].first, w.s.device[d].first + w.fleet.residents)
    ]
    for i in going:
        if w.s.instance[i].state != FREE and w.s.instance[i].state != NOWHERE:
            m = int(w.s.instance[i].model)
            homeless.setdefault(m, []).extend(_clear(w, i, others, now_s))
    for i in going:
        w.s.instance[i].state = NOWHERE
    for d in devices:
        _go(w.s, d, now_s)
    for c in chips:
        if w.s.chip[c].claim >= 0:
            drop_claim(w.s, int(w.s.chip[c].claim))
    for m, slots in sorted(homeless.items()):
        _queue_again(w.fleet, w.s, m, slots, now_s)
    for m in sorted(homeless):
        place_again(w, m, now_s)
    for i in sorted(others - set(going)):
        after_leaving(w, i, now_s)
    for c in chips:
        place_pending(w, c, now_s)


def lose_memory(fleet: Fleet, s: Serving, chips: Sequence[int]) -> None:
    """Clear the host memory of wholly lost chips."""
    for c in chips:
        for j in range(fleet.chip_first[c], fleet.chip_first[c + 1]):
            s.hold[fleet.chip_home[j]].state = ABSENT
        s.chip[c].free_bytes = s.chip[c].host_bytes
        on_host_lost(s, c)


def _go(s: Serving, d: int, now_s: float) -> None:
    dev = s.device[d]
    dev.service, dev.until_s = GONE, now_s
    dev.running, dev.last, dev.holder, dev.residents = -1, -1, -1, 0
    dev.kv_bytes, dev.weight_bytes, dev.capacity_bytes = 0.0, 0.0, 0.0
    on_device_lost(s, d)
    if dev.is_held != 0:
        dev.is_held = 0
        s.chip[dev.chip].n_held -= 1


def bring_back(w: Loop, d: int, now_s: float) -> None:
    """Return lost device `d` to service with empty HBM."""
    dev = w.s.device[d]
    dev.since_s += now_s - dev.until_s  # so that the time in service stays what lies between them
    dev.service, dev.until_s = IN_SERVICE, math.inf
    for i in range(dev.first, dev.first + w.fleet.residents):
        w.s.instance[i].state = FREE
    place_pending(w, int(dev.chip), now_s)


def _clear(w: Loop, i: int, others: set[int], now_s: float) -> list[int]:
    # Empties instance i and returns the slots of its requests.
    inst = w.s.instance[i]
    slots = []
    for k in range(batch_size(w.s, i)):
        slot = member(w.s, i, k)
        on_leave(w, i, slot, False, True)
        start_over(w.s, slot, generated(w.s, i, k) if k < inst.n_decode else 0)
        req = w.s.request[slot]
        if req.ending != FAIL_NONE:
            fail_unserved(w.s, slot, now_s, int(req.ending))
        else:
            slots.append(slot)
    slot = int(inst.wait_head)
    while slot >= 0:
        if has_prompt_done(w.s, slot):
            others |= {int(w.s.request[slot].held_by)} - {-1}
            let_go(w, slot)
            emit(w.s, ACT_ASIDE, w.s.request[slot].id)
            begin_again(w.s, slot)
        slots.append(slot)
        slot = int(w.s.request[slot].next)
    slots += _held_elsewhere(w, i, others)
    if inst.state == ASSIGNED or inst.state == LOADING:
        never_came(w.fleet, w.s, entry_of(w.fleet, inst.model, inst.chip), int(inst.model))
    inst.wait_head, inst.wait_tail = -1, -1
    inst.n_wait, inst.n_prefill, inst.n_decode = 0, 0, 0
    w.s.inbound[i].sent, w.s.inbound[i].come = 0, 0
    w.s.chip[inst.chip].kv_room_bytes += inst.parked_bytes
    inst.backlog, inst.kv_used, inst.parked_bytes = 0, 0, 0.0
    vacate(w.fleet, w.s, i, now_s)
    return slots


def _held_elsewhere(w: Loop, i: int, others: set[int]) -> list[int]:
    # Takes the requests whose KV cache instance i has out of the queues they wait in.
    result = []
    for j, inst in enumerate(w.s.instance):
        before, slot = -1, int(inst.wait_head) if j != i else -1
        while slot >= 0:
            req = w.s.request[slot]
            following = int(req.next)
            if req.held_by != i:
                before, slot = slot, following
                continue
            unlink(w.s, j, before, slot)
            if req.handed_bytes > 0.0:  # on its way: there is room for it
                w.s.inbound[j].sent -= 1
                places = request_places(w.fleet, w.s, j, req.prompt + req.output)
                release_kv(w.fleet, w.s, j, slot, places)
            others.add(j)
            on_leave(w, i, slot, False, True)
            begin_again(w.s, slot)
            result.append(slot)
            slot = following
    return result


def _queue_again(fleet: Fleet, s: Serving, m: int, slots: list[int], now_s: float) -> None:
    # Adds requests to those that wait for model m; those that fit no device fail.
    model = s.model[m]
    slot = int(model.wait_head)
    while slot >= 0:
        slots.append(slot)
        slot = int(s.request[slot].next)
    if model.n_wait > 0:
        end_waiting(fleet, s, m)
    s.count[0].pending -= model.n_wait
    model.wait_head, model.wait_tail, model.n_wait = -1, -1, 0
    most = largest_kv(fleet, s, m, 1 << 60)
    for slot in sorted(slots, key=lambda k: (s.request[k].arrival_s, s.request[k].id)):
        if s.request[slot].prompt + s.request[slot].output > most:
            fail_unserved(s, slot, now_s, FAIL_DEVICE)
        else:
            append_pending(fleet, s, m, slot)
