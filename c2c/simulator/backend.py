"""Backend of the serving loop on a virtual clock."""

from __future__ import annotations

import numpy as np

from c2c.cost import max_min_rates
from c2c.policies import inlined, jitable
from c2c.serving.tables.actions import (
    ACT_ASIDE,
    ACT_FORGET,
    ACT_HAND,
    ACT_INTERRUPT,
    ACT_LOAD,
    ACT_RELAYOUT,
    ACT_RUN,
)
from c2c.serving.tables.costs import step_alone_s, step_bytes, step_growth_s
from c2c.serving.tables.state import Loop, Rules, Serving
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.expert_cache.fetching import experts_of_start, experts_of_step
from c2c.simulator.lengths import run_steps
from c2c.simulator.works.graphs import (
    begin_relayout,
    begin_start,
    begin_steps,
    end_works,
    share_among_works,
    stop_works,
)
from c2c.simulator.works.kv_transfers import drop_sent, move_kv, send_kv
from c2c.simulator.works.phases import advance, remaining_s, stop_at_boundary
from c2c.simulator.works.world import CLEAN, ENDS, SHARES, Machine, World, account, note_ends

__all__ = ["end_phase", "submit"]


@inlined
def rebalance(
    rules: Rules, machine: Machine, state: Serving, world: World, c: int, now_s: float
) -> None:
    """Share chip `c`'s link max-min fairly; re-time changed phases."""
    account(world, c, now_s)
    if world.link[c].graphs > 0:
        share_among_works(rules, machine, state, world, c, now_s)
        return
    n = 0
    for i in range(state.chip[c].first, state.chip[c].last):
        if world.busy[i] != 0:
            world.demands[n] = world.phase[i].demand
            world.active[n] = i
            n += 1
    max_min_rates(world.demands, n, machine.capacity[c], world.rates)
    total = 0.0
    for k in range(n):
        i = world.active[k]
        p = world.phase[i]
        rate = world.rates[k]
        total += min(rate, p.demand)
        limit = 0.0 if rate >= p.demand else p.link_bytes / rate
        if limit == p.limit_s and world.end_s[i] != np.inf:
            continue
        advance(p, now_s)
        p.rate = rate
        p.limit_s = limit
        world.end_s[i] = p.at_s + remaining_s(p)
    link = world.link[c]
    link.rate = total
    link.peak = max(link.peak, total)
    note_ends(state, world, c)


@inlined
def _begin(world: World, state: Serving, d: int, now_s: float) -> None:
    p = world.phase[d]
    c = state.device[d].chip
    account(world, c, now_s)
    world.busy[d] = 1
    p.start_s = now_s
    p.at_s = now_s
    p.done = 0
    p.part = 0.0
    p.limit_s = 0.0
    p.lead_link = 0.0
    p.lead_hbm = 0.0
    p.moved_at_start = world.link[c].moved
    p.demand = p.link_bytes / p.base_s if p.base_s > 0.0 else 0.0
    world.end_s[d] = np.inf  # marks it as not yet timed
    world.link[c].dirty = SHARES


@jitable
def _begin_load(
    rules: Rules, machine: Machine, state: Serving, world: World, d: int, now_s: float
) -> None:
    dev, p = state.device[d], world.phase[d]
    inst = state.instance[state.plan[d].instance]
    m = inst.model
    p.is_load = 1
    p.ahead = 0.0
    p.steps = 1
    p.slope_s = 0.0
    p.hbm_growth = 0.0
    if len(machine.start_plan) > 0:
        p.base_s = 0.0
        p.link_bytes = 0.0
        _begin(world, state, d, now_s)
        begin_start(rules, machine, state, world, d, now_s)
        return
    p.hbm_bytes = machine.load_link_bytes[m, dev.kind]
    p.link_bytes = machine.load_link_bytes[m, dev.kind]
    p.base_s = machine.load_s[m, dev.kind] + p.link_bytes / machine.link_cap[dev.kind]
    p.turned_s = now_s
    if inst.cold != 0:
        # Checkpoints are read from a chip's disk one after another, in order of request.
        link = world.link[dev.chip]
        read_s = machine.weight_bytes[m] / machine.disk[dev.chip]
        link.disk_free_s = max(link.disk_free_s, now_s) + read_s
        p.base_s += link.disk_free_s - now_s + machine.cold_init_s[dev.kind]
    move_kv(machine, state, world, d, p.base_s, now_s)
    _begin(world, state, d, now_s)


@jitable
def _known_s(state: Serving, i: int) -> float:
    # Since when there is the work of the step that instance i begins.
    inst = state.instance[i]
    since_s = np.inf
    if state.plan[inst.on_device].decodes > 0:
        since_s = inst.last_step_s
    for k in range(inst.n_prefill):
        req = state.request[state.prefilling[i, k]]
        if req.step_tokens > 0:
            since_s = min(since_s, req.arrival_s)
    return since_s


@jitable
def _swap(
    machine: Machine, state: Serving, world: World, d: int, i: int, kind: int, now_s: float
) -> None:
    # The step is the first of another engine, whose weights come over the link. They may come ahead
    # from when there was work for it, but not before those of the engine before have come; what has
    # come ahead is part of the link's bytes, not of this step's.
    p, m = world.phase[d], state.instance[i].model
    copy_s = machine.turn_bytes[m] / machine.link_cap[kind]
    left_s = copy_s
    if machine.is_ahead[m, kind]:
        left_s = max(0.0, copy_s - (now_s - min(now_s, max(p.turned_s, _known_s(state, i)))))
    ahead = machine.turn_bytes[m] * (1.0 - left_s / copy_s)
    p.base_s += left_s
    p.link_bytes += machine.turn_bytes[m] - ahead
    p.hbm_bytes += machine.turn_bytes[m] - ahead
    p.turned_s = now_s + left_s
    p.ahead = ahead
    link = world.link[state.device[d].chip]
    account(world, state.device[d].chip, now_s)
    link.moved += ahead


@inlined
def _begin_run(
    w: Loop, machine: Machine, world: World, experts: Experts, d: int, now_s: float
) -> None:
    fleet, rules, state = w.fleet, w.rules, w.s
    plan, p = state.plan[d], world.phase[d]
    p.steps = plan.steps
    if machine.cuts_runs:
        p.steps = run_steps(w, machine, d)
    if len(machine.step_plan) > 0:
        p.is_load = 0
        _begin(world, state, d, now_s)
        begin_steps(fleet, rules, machine, state, world, d, now_s)
        return
    costs = fleet.costs
    arch = fleet.deployment[state.instance[plan.instance].model].arch
    pair = arch * costs.kinds + state.device[d].kind
    layers = fleet.layers[arch]
    p.is_load = 0
    p.ahead = 0.0
    p.base_s = step_alone_s(costs, pair, plan, layers, plan.alpha)
    p.slope_s = step_growth_s(costs, pair, plan)
    p.link_bytes, p.hbm_bytes, p.hbm_growth = step_bytes(costs, pair, plan, layers, plan.alpha)
    if rules.traits.experts.caches_experts:
        waits_s, fetched = experts_of_step(
            fleet, rules, machine.misses, experts, state, d, p.steps, p.base_s
        )
        p.base_s += waits_s
        p.link_bytes += fetched
    computed_s, streamed, read = p.base_s, p.link_bytes, p.hbm_bytes
    if plan.is_turn != 0:
        p.base_s += machine.turn_s
        if machine.turn_bytes[state.instance[plan.instance].model] > 0.0:
            _swap(machine, state, world, d, plan.instance, state.device[d].kind, now_s)
    if plan.kv_in_bytes + plan.kv_out_bytes > 0.0:
        move_kv(machine, state, world, d, p.base_s - computed_s, now_s)
    lead_s, lead_link, lead_hbm = p.base_s - computed_s, p.link_bytes - streamed, p.hbm_bytes - read
    if p.steps > 1 and lead_s > 0.0:
        p.base_s, p.link_bytes, p.hbm_bytes = computed_s, streamed, read
        _begin(world, state, d, now_s)
        _lead(world, state, d, lead_s, lead_link, lead_hbm)
        return
    _begin(world, state, d, now_s)


@jitable
def _lead(
    world: World, state: Serving, d: int, seconds: float, link_bytes: float, hbm_bytes: float
) -> None:
    # Several steps begin after what is paid once, on a chip whose link nobody else uses.
    p, link = world.phase[d], world.link[state.device[d].chip]
    p.lead_link = link_bytes
    p.lead_hbm = hbm_bytes
    p.at_s += seconds
    link.moved += link_bytes
    link.peak = max(link.peak, link_bytes / seconds)


@inlined
def _interrupt(rules: Rules, state: Serving, world: World, d: int, now_s: float) -> None:
    p, link = world.phase[d], world.link[state.device[d].chip]
    link.dirty = max(link.dirty, ENDS)
    if p.works != 0:
        world.end_s[d] = stop_works(rules, world, d, now_s)
    else:
        stop_at_boundary(p, now_s)
        world.end_s[d] = p.at_s + remaining_s(p)


@inlined
def _touched(state: Serving, k: int) -> int:
    # The device whose phase or wire the k-th action changed, or -1.
    code, where = state.actions[k, 0], state.actions[k, 1]
    if code == ACT_HAND:
        return int(state.request[where].source)
    return int(where) if code <= ACT_RELAYOUT else -1


@inlined
def submit(
    w: Loop, machine: Machine, world: World, experts: Experts, ended: int, now_s: float
) -> None:
    """Carry out the last step's actions; share the touched chips' links.

    Args:
      ended: device of an ended phase, relayout or transfer; or -1.
    """
    fleet, rules, state = w.fleet, w.rules, w.s
    for k in range(state.count[0].actions):
        code, d = state.actions[k, 0], state.actions[k, 1]
        if code == ACT_INTERRUPT:
            _interrupt(rules, state, world, d, now_s)
        elif code == ACT_LOAD:
            _begin_load(rules, machine, state, world, d, now_s)
            m, kind = state.instance[state.plan[d].instance].model, state.device[d].kind
            if rules.traits.experts.caches_experts:
                experts_of_start(fleet, rules, machine.misses, experts, m, kind, d)
        elif code == ACT_HAND and state.request[d].handed_bytes > 0.0:
            send_kv(machine, state, world, d, now_s)
        elif code == ACT_RUN:  # freeing memory takes no time
            _begin_run(w, machine, world, experts, d, now_s)
        elif code == ACT_RELAYOUT:
            begin_relayout(rules, machine, state, world, d, now_s)
        elif fleet.hands_directly and (ACT_FORGET <= code <= ACT_ASIDE):
            drop_sent(w, world, d)
    for k in range(state.count[0].actions + 1):
        d = ended if k == state.count[0].actions else _touched(state, k)
        if d < 0:
            continue
        c = state.device[d].chip
        if world.link[c].dirty == SHARES:
            rebalance(rules, machine, state, world, c, now_s)
        elif world.link[c].dirty != CLEAN:
            note_ends(state, world, c)
    state.count[0].actions = 0


@jitable
def _write_timeline(state: Serving, world: World, d: int, now_s: float, chip_rate: float) -> None:
    n = world.n_timeline[0]
    plan, p = state.plan[d], world.phase[d]
    inst = state.instance[plan.instance]
    row = world.timeline[n]
    row.chip = inst.chip
    row.instance = d
    row.model = inst.model
    row.is_load = p.is_load
    row.start_s = p.start_s
    row.end_s = now_s
    row.prefill_tokens = 0 if p.is_load != 0 else plan.prefill
    row.decode_seqs = 0 if p.is_load != 0 else plan.decodes
    row.steps = p.steps
    row.alpha = inst.alpha if p.is_load != 0 else plan.alpha / max(1, len(state.alone_s) - 1)
    seconds = now_s - p.start_s
    row.link_gbps = (p.link_bytes * p.steps + p.lead_link) / seconds / 1e9 if seconds > 0.0 else 0.0
    row.chip_link_gbps = chip_rate / 1e9
    world.n_timeline[0] = n + 1


@inlined
def end_phase(
    rules: Rules, machine: Machine, state: Serving, world: World, d: int, now_s: float
) -> bool:
    """End device `d`'s phase; return whether it was a load."""
    p, plan, report = world.phase[d], state.plan[d], state.report[d]
    c, kind = state.device[d].chip, state.device[d].kind
    account(world, c, now_s)
    link = world.link[c]
    seconds = now_s - p.start_s
    steps = float(p.steps)
    hbm = steps * p.hbm_bytes + p.hbm_growth * steps * (steps - 1.0) / 2.0 + p.lead_hbm
    report.steps = p.steps
    report.latency_s = seconds / steps
    report.link_bytes = p.link_bytes * steps + p.lead_link + p.ahead
    report.hbm_bytes = hbm + p.ahead
    report.alone_s = p.base_s
    chip_rate = (link.moved - p.moved_at_start) / seconds if seconds > 0.0 else 0.0
    if p.is_load == 0:  # a `Ready` says nothing of it
        report.c2c = min(1.0, chip_rate / machine.capacity[c])
    report.hbm = min(1.0, hbm / seconds / machine.hbm[kind]) if seconds > 0.0 else 0.0
    busy = 0
    for j in range(state.chip[c].first, state.chip[c].last):
        busy += world.busy[j]
    others = link.rate - min(p.rate, p.demand)
    share = max(machine.capacity[c] / busy, machine.capacity[c] - others)
    report.available_gbps = min(share, machine.link_cap[kind]) / 1e9
    p.busy_s += seconds
    p.load_s += seconds if p.is_load != 0 else 0.0
    p.total_link += report.link_bytes
    p.total_hbm += report.hbm_bytes
    p.total_runs += 1 - p.is_load
    if p.is_load == 0:
        p.total_steps += p.steps
        p.total_prefill += plan.prefill
        p.total_decode += plan.decodes * p.steps
    if world.n_timeline[0] < len(world.timeline):
        _write_timeline(state, world, d, now_s, chip_rate)
    world.busy[d] = 0
    if p.works != 0:
        end_works(rules, world, c, d, now_s)
        link.graphs -= 1
    link.dirty = SHARES
    world.end_s[d] = np.inf
    return bool(p.is_load != 0)
