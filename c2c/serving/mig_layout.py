"""Changes of a chip's MIG layout while it serves: some devices leave, others join.

Such changes are rare, so nothing here is compiled.
"""

from __future__ import annotations

from math import inf

from c2c.serving.actions import ACT_INTERRUPT, emit
from c2c.serving.batch import batch_size
from c2c.serving.device_exit import ask_for_the_layout, go_out, take_out
from c2c.serving.device_loss import queue_again
from c2c.serving.early_end import place_again
from c2c.serving.instances import take_back_start
from c2c.serving.placement import place_pending
from c2c.serving.port import ChangeLayout, LayoutChanged
from c2c.serving.preemption import set_aside
from c2c.serving.queues import return_waiting
from c2c.serving.state import (
    ASSIGNED,
    COMES,
    FREE,
    IDLE,
    IN_SERVICE,
    LEAVES,
    LOADING,
    NOWHERE,
    OUT,
    READY,
    RUNNING,
    SLOT,
    Fleet,
    Rules,
    Serving,
)
from c2c.serving.step import largest_kv

__all__ = ["change_layout"]


def change_layout(
    fleet: Fleet, rules: Rules, s: Serving, event: ChangeLayout | LayoutChanged, now_s: float
) -> None:
    """Begin or finish a change of a chip's layout.

    Leaving devices get no new requests, and their queues are sent elsewhere at once. Their batches
    end there; without `drain` requests that fit elsewhere are set aside at the next step boundary.
    Waiting requests that fit no device of the new layout fail. The backend is asked for the layout
    once the leaving devices are empty.
    """
    if isinstance(event, LayoutChanged):
        _finish(fleet, rules, s, event.chip, now_s)
    else:
        _begin(fleet, rules, s, event, now_s)


def _begin(fleet: Fleet, rules: Rules, s: Serving, event: ChangeLayout, now_s: float) -> None:
    c = event.chip
    chip = s.chip[c]
    going = [d for d in sorted(set(event.leaves)) if s.device[d].service == IN_SERVICE]  # or lost
    chip.change, chip.leaving = 1, len(going)
    for d in event.comes:
        if s.device[d].service == OUT:
            s.device[d].service = COMES
    for d in going:
        s.device[d].service = LEAVES
    waiting = {m for m in range(len(s.model)) if s.model[m].n_wait > 0}
    for d in going:
        for i in range(s.device[d].first, s.device[d].first + fleet.residents):
            if s.instance[i].model >= 0:
                waiting.add(int(s.instance[i].model))
            _send_off(fleet, rules, s, i, event.drain, now_s)
    if not going:
        ask_for_the_layout(s, c)
    for m in sorted(waiting):
        queue_again(fleet, s, m, [], now_s)
    for m in sorted(waiting):
        place_again(fleet, rules, s, m, now_s)


def _finish(fleet: Fleet, rules: Rules, s: Serving, c: int, now_s: float) -> None:
    chip = s.chip[c]
    chip.change = 0
    for d in range(chip.first, chip.last):
        dev = s.device[d]
        if dev.service == COMES:
            # of one that was there before the time in service stays what lies between them
            dev.since_s = now_s if dev.until_s == inf else dev.since_s + now_s - dev.until_s
            dev.service, dev.until_s = IN_SERVICE, inf
            for i in range(dev.first, dev.first + fleet.residents):
                s.instance[i].state = FREE
    place_pending(fleet, rules, s, c, now_s)


def _send_off(fleet: Fleet, rules: Rules, s: Serving, i: int, drain: bool, now_s: float) -> None:
    inst = s.instance[i]
    d = int(inst.on_device)
    if inst.state == FREE:
        inst.state = NOWHERE
        go_out(fleet, s, d, now_s)
        return
    return_waiting(fleet, s, i)
    inst.draining = 1
    if inst.state == ASSIGNED:
        take_back_start(fleet, s, i, now_s)
        inst.state = NOWHERE
        go_out(fleet, s, d, now_s)
        return
    has_batch = batch_size(s, i) > 0
    if has_batch and not drain and _fits_elsewhere(fleet, s, i):
        if inst.state == RUNNING:
            inst.aside = 1
            if s.plan[d].steps > 1:
                emit(s, ACT_INTERRUPT, d)
        else:
            set_aside(fleet, rules, s, i)
            has_batch = False
    if inst.state == IDLE or (inst.state == READY and not has_batch):
        take_out(fleet, s, i, now_s)
    else:
        assert has_batch or inst.state == LOADING


def _fits_elsewhere(fleet: Fleet, s: Serving, i: int) -> bool:
    inst = s.instance[i]
    slots = [*s.decoding[i, : inst.n_decode, SLOT], *s.prefilling[i, : inst.n_prefill]]
    most = max(int(s.request[k].prompt + s.request[k].output) for k in slots)
    return bool(most <= largest_kv(fleet, s, int(inst.model), int(most)))
