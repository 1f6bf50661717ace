"""A request decodes on another instance than the one that computed its prompt: it is handed over.

It waits there in the queue like any other, with the tokens that it has. Its KV cache lies meanwhile

- in host memory, as that of an engine that waits for its turn: the backend carries it, and holds
  the step that the request joins until it has come; or
- where it was computed, if the prompt's own step sends it (lanes of a layout): until the other
  instance has room it takes up room there, so that prompts wait where decoding does not keep up.

Which instance takes it is decided in `c2c.serving.decoders`.
"""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.actions import ACT_HAND, ask, emit
from c2c.serving.charging import charge, keep_charge
from c2c.serving.hbm import request_bytes
from c2c.serving.preempting import start_over
from c2c.serving.queues import append_waiting
from c2c.serving.records import release_kv
from c2c.serving.state import ENDS_AT, LENGTH, SLOT, Fleet, Serving

__all__ = ["append_decode", "begin_again", "has_prompt_done", "join_decodes", "let_go", "send"]


@inlined
def has_prompt_done(s: Serving, slot: int) -> bool:
    """Return whether a waiting request comes from another instance, with its KV cache."""
    return bool(s.request[slot].made > 0)


@inlined
def append_decode(s: Serving, i: int, slot: int, left: int) -> None:
    """Let a request with `left` tokens to go take part in the decode steps of instance `i`."""
    inst, req = s.instance[i], s.request[slot]
    s.decoding[i, inst.n_decode, SLOT] = slot
    s.decoding[i, inst.n_decode, ENDS_AT] = inst.decode_clock + left
    s.decoding[i, inst.n_decode, LENGTH] = req.prompt + req.output
    inst.n_decode += 1
    inst.looked_at = -1


@jitable
def send(
    fleet: Fleet, s: Serving, i: int, slot: int, made: int, j: int, through_host: bool, now_s: float
) -> None:
    """Hand a request of instance `i`, which stands in its batch no more, over to `j` of its model.

    Args:
      fleet, s: what there is.
      i: the instance that computed its prompt.
      slot: of the request.
      made: tokens that it has generated.
      j: the instance that is to decode it.
      through_host: its KV cache goes to host memory now; else it stays until it is taken.
      now_s: the time.
    """
    inst, req = s.instance[i], s.request[slot]
    charge(s, slot, True)
    start_kind = req.start_kind
    append_waiting(s, j, slot)
    s.instance[j].backlog -= req.prompt  # which is computed
    req.start_kind = start_kind
    req.made = made
    req.source = inst.on_device
    req.handed_s = now_s
    req.handed_bytes = 0.0
    req.held_by = i
    s.count[0].handed += 1
    if through_host:
        req.held_by = -1
        req.handed_bytes = request_bytes(fleet, s, j, req.prompt + made)
        release_kv(fleet, s, i, slot, req.prompt + req.output)
        s.instance[j].coming_bytes += req.handed_bytes
        s.chip[s.instance[j].chip].kv_room_bytes -= req.handed_bytes
        emit(s, ACT_HAND, slot)


@jitable
def let_go(fleet: Fleet, s: Serving, slot: int) -> None:
    """Free the memory that the KV cache of a waiting request takes up outside its instance."""
    req = s.request[slot]
    inst, i = s.instance[req.instance], req.held_by
    inst.coming_bytes -= req.handed_bytes
    s.chip[inst.chip].kv_room_bytes += req.handed_bytes
    if i >= 0:
        req.held_by = -1
        release_kv(fleet, s, i, slot, req.prompt + req.output)
        ask(s, s.instance[i].on_device)  # which may have waited for the room


@jitable
def join_decodes(fleet: Fleet, s: Serving, i: int, slot: int) -> None:
    """Let a request that was handed over, and has room in HBM now, decode on instance `i`."""
    inst, req = s.instance[i], s.request[slot]
    if req.held_by >= 0:
        emit(s, ACT_HAND, slot)
    let_go(fleet, s, slot)
    keep_charge(s, slot)
    s.plan[inst.on_device].kv_in_bytes += req.handed_bytes
    if inst.n_prefill + inst.n_decode == 0:
        inst.last_step_s = req.handed_s  # since then there has been work
    append_decode(s, i, slot, req.output - req.made)
    req.made = 0


@jitable
def begin_again(s: Serving, slot: int) -> None:
    """Let a request that was handed over begin again without its KV cache, which is gone."""
    keep_charge(s, slot)
    made = s.request[slot].made
    s.request[slot].made = 0
    s.request[slot].held_by = -1
    start_over(s, slot, made)
