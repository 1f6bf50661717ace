"""The event loop: arrivals and phase ends in time order, the same code interpreted and compiled."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from c2c.serving.state import Fleet, Rules, Serving
from c2c.serving.step import on_arrival, on_ready, on_step_end
from c2c.simulator.backend import Machine, World, end_phase, rebalance, submit
from c2c.simulator.events import next_instance

__all__ = ["BLOCK_DONE", "DRAINED", "NEED_SLOTS", "RECORDS_FULL", "drive"]

# Why `drive` returned.
BLOCK_DONE: Final = 0  # all arrivals of the block are taken; later events wait for the next block
DRAINED: Final = 1  # no more events
RECORDS_FULL: Final = 2  # take the records out, then call again
NEED_SLOTS: Final = 3  # grow the request slots, then call again


@register_jitable
def drive(
    fleet: Fleet,
    rules: Rules,
    machine: Machine,
    state: Serving,
    world: World,
    arrival_s: Any,
    model: Any,
    prompt: Any,
    output: Any,
    cursor: Any,
    first_id: int,
    is_last: bool,
) -> int:
    """Run until the block of arrivals is used up (and, after the last one, all work is done).

    Order: by time; at equal times phase ends come before arrivals, phase ends by instance number,
    arrivals as in the block.

    Args:
      arrival_s, model, prompt, output: the block, [n] each, ascending in time.
      cursor: i8[1], the next arrival of the block; kept between calls.
      first_id: request id of the block's first arrival.
      is_last: no block follows, so run on until nothing is left to do.

    Returns:
      BLOCK_DONE, DRAINED, RECORDS_FULL or NEED_SLOTS.
    """
    n = len(arrival_s)
    room = len(state.records) - fleet.max_batch - 2
    while True:
        if state.count[0].out > room:
            return RECORDS_FULL
        i = next_instance(world.tree)
        ends_s = world.end_s[i]
        k = cursor[0]
        if k < n:
            if arrival_s[k] < ends_s:
                if state.count[0].free_slots == 0:
                    return NEED_SLOTS
                on_arrival(
                    fleet, rules, state, arrival_s[k], first_id + k, model[k], prompt[k], output[k]
                )
                submit(fleet, machine, state, world, arrival_s[k])
                cursor[0] = k + 1
                continue
        elif not is_last:
            return BLOCK_DONE
        if ends_s == np.inf:
            return DRAINED
        was_load = end_phase(machine, state, world, i, ends_s)
        if was_load:
            on_ready(fleet, rules, state, i, ends_s)
        else:
            on_step_end(fleet, rules, state, i, ends_s)
        submit(fleet, machine, state, world, ends_s)
        c = state.instance[i].chip
        if world.link[c].dirty != 0:
            rebalance(machine, state, world, c, ends_s)
