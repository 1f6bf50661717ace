"""Requests whose prompts one device computes and which another one decodes.

The KV cache goes with them, through host memory, where it lies until the request joins a batch:
as that of an engine that waits for its turn. The loop says how many bytes; the backend carries
them, and holds the step that they join until they have come.
"""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.actions import ACT_PASS, emit
from c2c.serving.handing import charge, keep_charge
from c2c.serving.hbm import request_bytes
from c2c.serving.preempting import start_over
from c2c.serving.queues import append_waiting
from c2c.serving.records import release_kv
from c2c.serving.state import ENDS_AT, LENGTH, SLOT, Fleet, Serving

__all__ = ["forget_passed", "is_passed", "join", "send", "take_back"]


@inlined
def is_passed(s: Serving, slot: int) -> bool:
    """Return whether a waiting request comes from another device, with its KV cache."""
    return bool(s.request[slot].made > 0)


@jitable
def send(fleet: Fleet, s: Serving, i: int, slot: int, made: int, j: int, now_s: float) -> None:
    """Send a request of instance `i`, which stands in its batch no more, to `j` of its model.

    Args:
      made: tokens that it has generated.
    """
    inst, req = s.instance[i], s.request[slot]
    release_kv(fleet, s, i, req.prompt + req.output)
    charge(s, slot, True)
    start_kind = req.start_kind
    append_waiting(s, j, slot)
    s.instance[j].backlog -= req.prompt  # which is computed
    req.start_kind = start_kind
    req.made = made
    req.source = inst.on_device
    req.passed_s = now_s
    req.passed_bytes = request_bytes(fleet, s, j, req.prompt + made)
    s.instance[j].coming_bytes += req.passed_bytes
    s.chip[s.instance[j].chip].kv_room_bytes -= req.passed_bytes
    s.count[0].passed += 1
    emit(s, ACT_PASS, slot)


@jitable
def forget_passed(s: Serving, slot: int) -> None:
    """Free the host memory of a request that waits with its KV cache there."""
    req = s.request[slot]
    inst = s.instance[req.instance]
    inst.coming_bytes -= req.passed_bytes
    s.chip[inst.chip].kv_room_bytes += req.passed_bytes


@jitable
def join(s: Serving, i: int, slot: int) -> None:
    """Let a request that came with its KV cache, and has room in HBM now, decode in a batch."""
    inst, req, plan = s.instance[i], s.request[slot], s.plan[s.instance[i].on_device]
    forget_passed(s, slot)
    keep_charge(s, slot)
    plan.kv_in_bytes += req.passed_bytes
    if inst.n_prefill + inst.n_decode == 0:
        inst.last_step_s = req.passed_s  # since then there has been work
    s.decoding[i, inst.n_decode, SLOT] = slot
    s.decoding[i, inst.n_decode, ENDS_AT] = inst.decode_clock + req.output - req.made
    s.decoding[i, inst.n_decode, LENGTH] = req.prompt + req.output
    inst.n_decode += 1
    req.made = 0


@jitable
def take_back(s: Serving, slot: int) -> None:
    """Let a request that waits with its KV cache begin again without it."""
    forget_passed(s, slot)
    keep_charge(s, slot)
    made = s.request[slot].made
    s.request[slot].made = 0
    start_over(s, slot, made)
