"""Batches over the same devices change the variant of their steps together."""

from __future__ import annotations

from c2c.policies import jitable
from c2c.serving.actions import ACT_INTERRUPT, emit
from c2c.serving.state import RUNNING, Serving

__all__ = ["change_together", "waiting_on"]


@jitable
def waiting_on(s: Serving, i: int) -> int:
    """Return the requests on the chip of instance `i` whose prompts are not computed yet."""
    chip = s.chip[s.instance[i].chip]
    waiting = 0
    for d in range(chip.first, chip.last):
        inst = s.instance[s.device[d].first]
        waiting += inst.n_wait + inst.n_prefill
    return int(waiting)


@jitable
def change_together(s: Serving, i: int, alpha: float) -> None:
    """Note the variant of the step that instance `i` begins, on all batches that share its devices.

    Where it is another than before, they end their runs at the next step boundary and are dealt out
    anew there (`dealing`): one variant may be for one large batch, another for several small ones.
    """
    inst = s.instance[i]
    if inst.alpha == alpha:
        return
    chip = s.chip[inst.chip]
    for d in range(chip.first, chip.last):
        if s.device[d].kind != inst.kind:
            continue
        j = s.device[d].first
        other = s.instance[j]
        other.alpha = alpha
        other.deals = 1 if other.n_prefill + other.n_decode > 0 else 0
        if j != i and other.state == RUNNING and s.plan[d].steps > 1:
            emit(s, ACT_INTERRUPT, d)
