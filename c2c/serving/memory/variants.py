"""Simultaneous changes of variant over the same devices."""

from __future__ import annotations

from c2c.policies import jitable, variant
from c2c.serving.memory.kv_homes import want_version
from c2c.serving.tables.actions import ACT_INTERRUPT, emit
from c2c.serving.tables.batch import batch_size
from c2c.serving.tables.state import RUNNING, Loop, Serving

__all__ = ["vary_now"]


@jitable
def _waiting_on(s: Serving, i: int) -> int:
    # The requests on the chip of instance i whose prompts are not computed yet.
    chip = s.chip[s.instance[i].chip]
    waiting = 0
    for d in range(chip.first, chip.last):
        inst = s.instance[s.device[d].first]
        waiting += inst.n_wait + inst.n_prefill
    return int(waiting)


@jitable
def vary_now(w: Loop, i: int, now_s: float) -> int:
    """Return the variant for instance `i`'s steps."""
    inst, variants = w.s.instance[i], len(w.s.alone_s)
    policy, memory = w.rules.system.vary, w.rules.own.vary
    chosen = min(variant(policy, memory, inst.chip, i, _waiting_on(w.s, i), now_s), variants - 1)
    if len(w.fleet.kv.room_bytes) > 0:
        return int(want_version(w, i, chosen))
    alpha = chosen / max(1, variants - 1)
    if inst.alpha == alpha:
        return int(chosen)
    w.s.count[0].variant_changes += 1
    chip = w.s.chip[inst.chip]
    for d in range(chip.first, chip.last):
        if w.s.device[d].kind != inst.kind:
            continue
        j = w.s.device[d].first
        other = w.s.instance[j]
        other.alpha = alpha
        other.deals = 1 if batch_size(w.s, j) > 0 else 0
        if other.state == RUNNING and w.s.plan[d].steps > 1:
            emit(w.s, ACT_INTERRUPT, d)
    return int(chosen)
