"""Steps as chains of works over several devices: where each stands, and what it draws on.

A work takes its seconds alone while its resources give it what it asks, longer otherwise; the next
begins when it ends. A run of equal steps is one event where nobody else uses its resources, or
where a step is one work; else every work is walked. Without a layout nothing here is called.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving import DRAWS
from c2c.serving.state import Fleet, Serving
from c2c.simulator.resources import Resources

__all__ = [
    "CHAIN",
    "LANE_DTYPE",
    "Chains",
    "Lanes",
    "begin_lane",
    "end_lane",
    "follow_lane",
    "gather_lane",
    "in_use_beside",
    "new_lanes",
    "no_chains",
    "spread_lane",
    "stop_lane",
]

CHAIN: Final = 2  # `phase.is_graph` of a run of chained steps; a start made of works has 1

# This close to its end, as a share of it, a work or a step has ended: rounding.
_ENDED: Final = 1e-9

LANE_DTYPE = np.dtype(
    [
        ("at_s", "f8"),  # `left_s` holds at this time; before it, the lane stands still
        ("left_s", "f8"),  # of the work under way, alone
        ("speed", "f8"),  # 1: as alone
        ("step_s", "f8"),  # of all works of a step, alone
        ("work", "i8"),
        ("done", "i8"),  # whole steps
        ("steps", "i8"),
        ("is_run", "i8"),  # 1: all its steps are one event
        ("uses", "i8"),  # bits of the resources of its step
        ("variant", "i8"),  # of its last step, one more than its number; 0: it has taken none
        ("ended_s", "f8"),  # its last run
        ("order", "i8"),  # the lower, the longer it has been busy
    ],
    align=True,
)


class Chains(NamedTuple):
    """The works of each model's step on each kind of lane; no pair: steps are one work each."""

    prefill_s: Any  # f8[pairs, variants, works, T+1] seconds alone, by prompt tokens
    decode_s: Any  # f8[pairs, variants, works, T+1] on top, by decoding rows
    prefill_use: Any  # f8[pairs, variants, works, resources, T+1] seconds of each resource
    decode_use: Any
    first: int  # where they stand among the resources of a chip
    by_age: bool
    switch_s: float  # of the variant


class Lanes(NamedTuple):
    """The changing part, a row a device; none without a layout."""

    row: Any  # LANE_DTYPE [devices]
    work_s: Any  # f8[devices, works] of the step under way
    use_s: Any  # f8[devices, works, resources]
    used_s: Any  # f8[chips, resources] seconds of each that runs which have ended took
    begun: Any  # i8[1] times that a lane began after it had nothing to do


def no_chains() -> Chains:
    """Return the table of systems whose step is one work."""
    steps, uses = np.zeros((0, 0, 0, 0)), np.zeros((0, 0, 0, 0, 0))
    return Chains(steps, steps, uses, uses, 0, True, 0.0)


def new_lanes(chains: Chains, devices: int, chips: int) -> Lanes:
    """Return the lanes before the first event."""
    pairs, _, works, resources, _ = chains.prefill_use.shape
    rows = devices if pairs > 0 else 0
    row = np.zeros(rows, LANE_DTYPE).view(np.recarray)
    row.ended_s = -1.0
    return Lanes(
        row=row,
        work_s=np.zeros((rows, works)),
        use_s=np.zeros((rows, works, resources)),
        used_s=np.zeros((chips, resources)),
        begun=np.zeros(1, np.int64),
    )


@jitable
def _next_work(lanes: Lanes, d: int) -> None:
    # The next work that takes any time; none after the last step.
    lane = lanes.row[d]
    lane.left_s = 0.0
    while lane.done < lane.steps and lane.left_s <= 0.0:
        lane.work += 1
        if lane.work == lanes.work_s.shape[1]:
            lane.work = 0
            lane.done += 1
        if lane.done < lane.steps:
            lane.left_s = lanes.work_s[d, lane.work]


@jitable
def begin_lane(
    chains: Chains, lanes: Lanes, fleet: Fleet, state: Serving, d: int, p: Any, now_s: float
) -> None:
    """Begin the run of steps that device `d` is told to take; `p` is the row of its phase."""
    lane, plan = lanes.row[d], state.plan[d]
    arch = fleet.deployment[state.instance[plan.instance].model].arch
    pair = arch * fleet.costs.kinds + state.device[d].kind
    variant = plan.alpha
    lane.step_s = 0.0
    lane.uses = 0
    for w in range(lanes.work_s.shape[1]):
        seconds = chains.prefill_s[pair, variant, w, plan.prefill]
        seconds += chains.decode_s[pair, variant, w, plan.decodes]
        lanes.work_s[d, w] = seconds
        lane.step_s += seconds
        for k in range(lanes.use_s.shape[2]):
            use = chains.prefill_use[pair, variant, w, k, plan.prefill]
            use += chains.decode_use[pair, variant, w, k, plan.decodes]
            lanes.use_s[d, w, k] = use
            if use > 0.0:
                lane.uses |= 1 << k
    # A batch that goes on is as old as it was; one that hands its prompts on begins anew, and so
    # does one whose steps change: steps of the variant before end first, and their batch with them.
    changes = lane.variant > 0 and lane.variant != variant + 1
    if lane.ended_s < now_s or fleet.hands_to[state.device[d].kind] >= 0 or changes:
        lanes.begun[0] += 1
        lane.order = lanes.begun[0]
    lane.at_s = now_s
    if changes:
        lane.at_s += chains.switch_s
    lane.variant = variant + 1
    lane.speed = 0.0
    lane.steps = plan.steps
    lane.done = 0
    lane.work = -1
    _next_work(lanes, d)
    p.is_load = 0
    p.is_graph = CHAIN
    p.steps = plan.steps
    p.base_s = lane.step_s
    p.slope_s = 0.0
    p.link_bytes = 0.0
    p.hbm_bytes = 0.0
    p.hbm_growth = 0.0


@jitable
def _advance(lanes: Lanes, d: int, now_s: float) -> None:
    # Bring a lane up to now at the speed it had until now.
    lane = lanes.row[d]
    passed = (now_s - lane.at_s) * lane.speed
    lane.at_s = max(lane.at_s, now_s)
    if passed <= 0.0 or lane.done >= lane.steps:
        return
    if lane.is_run == 0 or passed < lane.left_s:  # the end of a work that is walked is an event
        left = lane.left_s - passed
        lane.left_s = left if left > _ENDED * lanes.work_s[d, lane.work] else 0.0
        return
    passed -= lane.left_s
    _next_work(lanes, d)
    if lane.done < lane.steps - 1:
        whole = min(int(passed / lane.step_s), lane.steps - 1 - lane.done)
        lane.done += whole
        passed -= whole * lane.step_s
    while lane.done < lane.steps and passed >= lane.left_s:
        passed -= lane.left_s
        _next_work(lanes, d)
    if lane.done < lane.steps:
        lane.left_s -= max(0.0, passed)


@jitable
def _rest_of_step_s(lanes: Lanes, d: int) -> float:
    lane = lanes.row[d]
    rest = lane.left_s
    for w in range(lane.work + 1, lanes.work_s.shape[1]):
        rest += lanes.work_s[d, w]
    return float(rest)


@jitable
def _ends_s(lanes: Lanes, d: int) -> float:
    # When the work under way ends, or the whole run where it is one event.
    lane = lanes.row[d]
    if lane.done >= lane.steps:
        return float(lane.at_s)
    if lane.speed <= 0.0:
        return np.inf
    left = lane.left_s
    if lane.is_run != 0:
        left = _rest_of_step_s(lanes, d) + (lane.steps - 1 - lane.done) * lane.step_s
    return float(lane.at_s + left / lane.speed)


@jitable
def stop_lane(lanes: Lanes, d: int, now_s: float) -> tuple[int, float]:
    """End a run at its next step boundary; returns its steps, at least one, and when it ends."""
    _advance(lanes, d, now_s)
    lane = lanes.row[d]
    if lane.done < lane.steps:
        begun = _rest_of_step_s(lanes, d) < lane.step_s * (1.0 - _ENDED)
        lane.steps = min(lane.steps, max(1, lane.done + (1 if begun else 0)))
    return int(lane.steps), _ends_s(lanes, d)


@jitable
def follow_lane(lanes: Lanes, d: int, now_s: float) -> bool:
    """Take the end of a work of device `d`; False if its run has ended with it."""
    lane = lanes.row[d]
    if lane.is_run != 0 or lane.done >= lane.steps:
        return False
    lane.at_s = now_s
    _next_work(lanes, d)
    return bool(lane.done < lane.steps)


@jitable
def end_lane(lanes: Lanes, c: int, d: int, is_whole: bool, now_s: float) -> None:
    """End the run of device `d` and account what it took; not whole: its device is lost."""
    lane = lanes.row[d]
    steps = float(lane.steps)
    if not is_whole:
        _advance(lanes, d, now_s)
        if lane.done < lane.steps and lane.step_s > 0.0:
            steps = lane.done + 1.0 - _rest_of_step_s(lanes, d) / lane.step_s
    for w in range(lanes.use_s.shape[1]):
        for k in range(lanes.use_s.shape[2]):
            lanes.used_s[c, k] += steps * lanes.use_s[d, w, k]
    lane.ended_s = now_s


@jitable
def in_use_beside(lanes: Lanes, phases: Any, chip: Any, d: int) -> int:
    """Return bits of the resources that runs of other devices of a chip than `d` use."""
    used = 0
    for i in range(chip.first, chip.last):
        if i != d and phases[i].is_graph == CHAIN:
            used |= lanes.row[i].uses
    return used


@jitable
def gather_lane(
    chains: Chains, lanes: Lanes, d: int, others: int, now_s: float, r: Resources, n: int
) -> int:
    """Bring the run of device `d` up to now and write its work under way as user `n`.

    Args:
      others: bits of the resources that other lanes of the chip use.
    """
    lane = lanes.row[d]
    _advance(lanes, d, now_s)
    lane.is_run = 1 if lanes.work_s.shape[1] == 1 or (lane.uses & others) == 0 else 0
    for u in range(DRAWS):
        r.on[n, u] = -1
    r.demand[n] = 0.0
    r.rank[n] = -lane.order if chains.by_age else 0
    if lane.done < lane.steps and lane.left_s > 0.0:
        r.demand[n] = 1.0 / lanes.work_s[d, lane.work]
        u = 0
        for k in range(lanes.use_s.shape[2]):
            use = lanes.use_s[d, lane.work, k]
            if use > 0.0 and (lane.is_run == 0 or lanes.work_s.shape[1] == 1):
                r.on[n, u] = chains.first + k
                r.per[n, u] = use
                u += 1
    return n + 1


@jitable
def spread_lane(lanes: Lanes, d: int, r: Resources, n: int) -> float:
    """Take the flow of the user that `gather_lane` wrote; returns when the device's event is."""
    lane = lanes.row[d]
    lane.speed = r.flow[n] / r.demand[n] if r.demand[n] > 0.0 else 1.0
    return _ends_s(lanes, d)
