"""Placement of an inactive model on a slice."""

from __future__ import annotations

from typing import Any

from c2c.policies import (
    inlined,
    jitable,
    place,
    should_drain,
)
from c2c.serving.batches.instances import assign, evict, idle_victim
from c2c.serving.batches.queues import take_pending
from c2c.serving.batches.turns import wake
from c2c.serving.memory.hbm import (
    holds_on,
    is_in_use,
    kept_share,
    movable_bytes,
    room_bytes,
    room_for_model,
)
from c2c.serving.tables.batch import batch_size, outstanding
from c2c.serving.tables.costs import held_places
from c2c.serving.tables.pools import can_hold, could_hold_weights, entry_of, homes_of, instances_of
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import (
    FREE,
    HELD,
    IDLE,
    IN_SERVICE,
    NOWHERE,
    READY,
    RUNNING,
    Fleet,
    Loop,
    Rules,
    Serving,
)

__all__ = [
    "device_load_s",
    "drop_claim",
    "make_active",
    "make_room",
    "open_lanes",
    "place_ahead",
    "place_decodes",
    "place_on",
    "place_pending",
    "reserved_gbps",
    "start_active",
    "try_place",
]


@jitable
def reserved_gbps(fleet: Fleet, s: Serving, c: int) -> tuple[float, float]:
    """Return chip `c`'s promised link rate: the sum of S_m/TPOT_m."""
    busy, total = 0.0, 0.0
    first = s.device[s.chip[c].first].first
    for i in range(first, first + (s.chip[c].last - s.chip[c].first) * fleet.residents):
        state = s.instance[i].state
        if state != FREE and state != NOWHERE:
            demand = fleet.deployment[s.instance[i].model].demand_gbps
            total += demand
            if state != IDLE:
                busy += demand
    return busy, total


@inlined
def _engine_s(fleet: Fleet, s: Serving, i: int) -> float:
    # A decode step of instance i and the prompts that wait there.
    inst = s.instance[i]
    pair = fleet.deployment[inst.model].arch * fleet.costs.kinds + inst.kind
    return float(fleet.costs.decode_s[pair] + inst.backlog * fleet.costs.prompt_s[pair])


@jitable
def device_load_s(fleet: Fleet, s: Serving, d: int) -> float:
    """Return device `d`'s pending seconds: a decode step each, and prompts."""
    total = 0.0
    for i in range(s.device[d].first, s.device[d].first + fleet.residents):
        if s.instance[i].state != FREE and is_in_use(s, i):
            total += _engine_s(fleet, s, i)
    return total


@jitable
def _work_s(fleet: Fleet, s: Serving, m: int, d: int) -> tuple[float, float]:
    # What `device_load_s` says of device d, and what turning once to each of its engines with work,
    # and to model m, takes: both in one look at its engines.
    load_s, turns_s = 0.0, fleet.switch_s[fleet.deployment[m].arch, s.device[d].kind]
    for i in range(s.device[d].first, s.device[d].first + fleet.residents):
        inst = s.instance[i]
        if inst.state != FREE and is_in_use(s, i):
            load_s += _engine_s(fleet, s, i)
            if inst.model != m:
                turns_s += fleet.switch_s[fleet.deployment[inst.model].arch, inst.kind]
    return float(load_s), float(turns_s)


@jitable
def drop_claim(s: Serving, m: int) -> None:
    """Release the chip that model `m` claimed, if any."""
    claimed = s.model[m].claim_chip
    if claimed >= 0:
        s.chip[claimed].claim = -1
        s.model[m].claim_chip = -1


@jitable
def _activate(w: Loop, m: int, i: int, now_s: float) -> None:
    make_active(w, m, i, now_s)
    drop_claim(w.s, m)
    take_pending(w.fleet, w.s, m, i)
    if w.s.instance[i].n_wait > 0:
        wake(w, i)


@jitable
def make_active(w: Loop, m: int, i: int, now_s: float) -> None:
    """Assign free or idle instance `i` to model `m`, and make room for it."""
    inst = w.s.instance[i]
    demand = w.fleet.deployment[m].demand_gbps
    if inst.state != FREE:
        evict(w.fleet, w.s, i, now_s)
    c = inst.chip
    if w.rules.traits.place.link_is_promised:
        first = w.s.device[w.s.chip[c].first].first
        last = first + (w.s.chip[c].last - w.s.chip[c].first) * w.fleet.residents
        while reserved_gbps(w.fleet, w.s, c)[1] + demand > w.s.chip[c].budget_gbps:
            victim = idle_victim(w.rules, w.s, first, last, i)
            if victim < 0:
                break
            evict(w.fleet, w.s, victim, now_s)
    while not can_hold(w.fleet, w.s, entry_of(w.fleet, m, c), m):
        first = w.s.device[w.s.chip[c].first].first
        last = first + (w.s.chip[c].last - w.s.chip[c].first) * w.fleet.residents
        victim = idle_victim(w.rules, w.s, first, last, i)
        if victim < 0:
            break
        evict(w.fleet, w.s, victim, now_s)
    assign(w, m, i, now_s)


@jitable
def place_on(w: Loop, m: int, d: int) -> int:
    """Return device `d`'s instance for model `m`, or -1."""
    free = -1
    first = w.s.device[d].first
    for i in range(first, first + w.fleet.residents):
        inst = w.s.instance[i]
        if inst.state == FREE:
            if free < 0 and w.s.device[d].residents < w.fleet.most_engines[inst.kind]:
                free = i
        elif inst.model == m:
            if inst.draining == 0 and (w.fleet.residents > 1 or inst.state == IDLE):
                return i
            return -1
    if free >= 0:
        return free
    return idle_victim(w.rules, w.s, first, first + w.fleet.residents, -1)


@jitable
def _add_candidates(w: Loop, m: int, tokens: int, home: int, n: int, decodes: bool) -> int:
    c = w.fleet.home_chip[home]
    chip = w.s.chip[c]
    if chip.claim >= 0 and chip.claim != m and not decodes:
        return n  # another model has waited too long for this chip
    if not could_hold_weights(w.fleet, w.s, home, m):
        return n
    reserved, unpromised = 0.0, 0.0
    if w.rules.traits.place.reads_promises:
        reserved, total = reserved_gbps(w.fleet, w.s, c)
        unpromised = chip.budget_gbps - total
    arch = w.fleet.deployment[m].arch
    for d in range(chip.first, chip.last):
        if (w.fleet.role[d] == DECODES) != decodes:
            continue
        i = w.s.device[d].first
        if (
            w.fleet.residents == 1
            and w.s.instance[i].state != FREE
            and w.s.instance[i].state != IDLE
        ):
            continue  # most often
        i = place_on(w, m, d) if w.s.device[d].service == IN_SERVICE else -1
        if i < 0:
            continue
        inst = w.s.instance[i]
        row = w.s.candidates[n]
        row.instance = i
        row.is_free = 1 if inst.state == FREE else 0
        row.is_resident = 1 if inst.state != FREE and inst.model == m else 0
        row.last_used_s = inst.last_used_s
        row.kv_capacity = w.fleet.kv_capacity[arch, inst.kind]
        row.link_left_gbps = chip.budget_gbps - reserved
        row.is_alone = 1 if reserved == 0.0 else 0
        row.unpromised_gbps = unpromised
        row.in_host = 1 if w.s.hold[home].state == HELD else 0
        row.chip = c
        row.load_s = 0.0
        row.turns_s = 0.0
        row.kept_share = 0.0
        row.fits_now = 1
        row.kv_pressure = 0.0
        if w.fleet.residents > 1:
            pair = arch * w.fleet.costs.kinds + inst.kind
            need = held_places(w.fleet.costs, pair, tokens) * w.fleet.costs.kv_bytes[pair]
            free = room_bytes(w.s, d) + w.s.device[d].weight_bytes + movable_bytes(w.fleet, w.s, i)
            if w.fleet.shared_weight_bytes[arch, inst.kind] > 0.0:
                if row.is_resident == 0:
                    free = room_for_model(w.fleet, w.s, d, m)
                used = w.s.device[d].kv_bytes + need
                row.kv_pressure = used / max(used, w.s.device[d].kv_bytes + free)
                row.fits_now = 1 if need <= free else 0
            else:
                row.fits_now = 1 if w.s.device[d].residents == 0 or need <= free else 0
            row.load_s, row.turns_s = _work_s(w.fleet, w.s, m, d)
            if row.is_resident != 0:
                row.kept_share = kept_share(w.fleet, w.s, i)
        n += 1
    return n


@jitable
def _choose(w: Loop, m: int, tokens: int, only_chip: int, decodes: bool) -> int:
    # The row of s.candidates that model m is placed on, or -1.
    n = 0
    for k in homes_of(w.fleet, m):
        c = w.fleet.home_chip[k]
        if only_chip < 0 or only_chip == c:
            n = _add_candidates(w, m, tokens, k, n, decodes)
    if n == 0:
        return -1
    # Counted by model: what other chips serve must not change what is drawn here.
    key = (w.rules.seed * 1000003 + m * 15485863 + w.s.model[m].draws * 7919) % 2147483646
    demand = w.fleet.deployment[m].demand_gbps
    w.s.model[m].draws += 1
    return int(
        place(w.rules.system.place, w.rules.own.place, w.s.candidates, n, tokens, demand, key)
    )


@jitable
def start_active(w: Loop) -> None:
    """Activate models before the first event, in catalog order, displacing nothing.

    Source: C2CServe section 6.2; its order is not given.
    """
    w.s.count[0].to_start = 0
    for m in range(len(w.s.model)):
        if w.s.model[m].starts == 0:
            continue
        if w.fleet.opens_all:
            for k in homes_of(w.fleet, m):
                if w.s.hold[k].state == HELD:
                    open_lanes(w, m, w.fleet.home_chip[k], -1)
            continue
        for decodes in range(2):
            row = _choose(w, m, 1, -1, decodes == 1)
            if row >= 0 and _needs_no_room(w.fleet, w.rules, w.s.candidates[row], m):
                i = int(w.s.candidates[row].instance)
                assign(w, m, i, 0.0)
                w.s.instance[i].state = IDLE
    w.s.count[0].switches = 0


@jitable
def open_lanes(w: Loop, m: int, c: int, kind: int) -> None:
    """Open model `m` on chip `c`'s free lanes of a kind, or -1: all."""
    for d in range(w.s.chip[c].last - 1, w.s.chip[c].first - 1, -1):  # the first is found first
        i = w.s.device[d].first
        holds = w.fleet.kv_capacity[w.fleet.deployment[m].arch, w.s.device[d].kind] > 0
        is_meant = kind < 0 or w.s.device[d].kind == kind
        if holds and is_meant and w.s.instance[i].state == FREE:
            assign(w, m, i, 0.0)
            w.s.instance[i].state = IDLE
            w.s.count[0].switches -= 1


@jitable
def _needs_no_room(fleet: Fleet, rules: Rules, c: Any, m: int) -> bool:
    if c.is_free == 0 or c.in_host == 0:
        return False
    if not rules.traits.place.link_is_promised:
        return True
    return bool(c.unpromised_gbps >= fleet.deployment[m].demand_gbps)


@jitable
def try_place(w: Loop, m: int, tokens: int, only_chip: int, now_s: float) -> int:
    """Assign model `m` an instance where its weights are; -1: none fits."""
    row = _choose(w, m, tokens, only_chip, False)
    if row < 0:
        return -1
    i = int(w.s.candidates[row].instance)
    if w.s.candidates[row].is_resident == 0:
        _activate(w, m, i, now_s)
    else:
        drop_claim(w.s, m)
        take_pending(w.fleet, w.s, m, i)
        if w.s.instance[i].n_wait > 0:
            wake(w, i)
    return i


@jitable
def place_ahead(w: Loop, m: int) -> int:
    """Return the instance of model `m` without requests, or -1."""
    row = _choose(w, m, 1, -1, False)
    if row < 0:
        return -1
    chosen = w.s.candidates[row]
    return -1 if chosen.is_resident != 0 or chosen.fits_now == 0 else int(chosen.instance)


@jitable
def place_decodes(w: Loop, m: int, tokens: int, instance: int, now_s: float) -> int:
    """Return model `m`'s decode-only instance, or -1."""
    if instance < 0:
        row = _choose(w, m, tokens, -1, True)
        return int(w.s.candidates[row].instance) if row >= 0 else -1
    if w.s.instance[instance].state == FREE or w.s.instance[instance].model != m:
        make_active(w, m, instance, now_s)
    return instance


@jitable
def _forget_tried(fleet: Fleet, s: Serving, c: int) -> None:
    for j in range(fleet.chip_first[c], fleet.chip_first[c] + s.chip[c].n_waiting):
        s.model[s.waiting[j]].tried = 0


@jitable
def _goes_first(s: Serving, a: int, b: int) -> bool:
    above = s.request[s.model[a].wait_head].priority - s.request[s.model[b].wait_head].priority
    if above != 0:
        return bool(above > 0)
    a_s, b_s = s.model[a].oldest_s, s.model[b].oldest_s
    return bool(a_s < b_s or (a_s == b_s and a < b))


@jitable
def _oldest_pending(fleet: Fleet, s: Serving, c: int) -> int:
    # The untried model of chip c with the most urgent first request, of equals the oldest; ties to
    # the lower id.
    best = -1
    for j in range(fleet.chip_first[c], fleet.chip_first[c] + s.chip[c].n_waiting):
        m = int(s.waiting[j])
        if s.model[m].tried == 0 and (best < 0 or _goes_first(s, m, best)):
            best = m
    return best


@jitable
def _place_head(w: Loop, m: int, c: int, now_s: float) -> bool:
    head = w.s.request[w.s.model[m].wait_head]
    return try_place(w, m, head.prompt + head.output, c, now_s) >= 0


@jitable
def place_pending(w: Loop, c: int, now_s: float) -> None:
    """Assign chip `c`'s idle slices, longest wait first."""
    if w.s.chip[c].n_waiting == 0:
        return
    claim = w.s.chip[c].claim
    if claim >= 0 and not _place_head(w, claim, c, now_s):
        return  # nothing else may take what this model still lacks
    _forget_tried(w.fleet, w.s, c)
    while True:
        m = _oldest_pending(w.fleet, w.s, c)
        if m < 0:
            return
        waited = now_s - w.s.model[m].oldest_s
        if not _place_head(w, m, c, now_s):
            w.s.model[m].tried = 1
            if should_drain(w.rules.system.preempt, waited):
                return


@jitable
def make_room(w: Loop, c: int, now_s: float) -> int:
    """Drain chip `c`'s least busy instance if a model waited too long.

    Returns:
      The instance if idle; else -1.
    """
    chip = w.s.chip[c]
    if w.s.count[0].pending == 0 or now_s < chip.next_look_s:
        return -1
    chip.next_look_s = now_s + w.rules.traits.preempt.look_every_s
    m = chip.claim
    if m < 0:
        if chip.n_waiting == 0:
            return -1
        _forget_tried(w.fleet, w.s, c)
        m = _oldest_pending(w.fleet, w.s, c)
        if m < 0 or w.s.model[m].claim_chip >= 0:
            return -1
        if not should_drain(w.rules.system.preempt, now_s - w.s.model[m].oldest_s):
            return -1
        chip.claim = m
        w.s.model[m].claim_chip = c
    if _place_head(w, m, c, now_s):
        place_pending(w, c, now_s)
        return -1
    victim = -1
    least = 0
    first, last = instances_of(w.fleet, w.s, c)
    for i in range(first, last):
        inst = w.s.instance[i]
        if inst.draining != 0:
            return -1  # one at a time
        if w.fleet.role[inst.on_device] == DECODES:
            continue  # no room for prompts
        if inst.model == m or not (inst.state == RUNNING or inst.state == READY):
            continue
        busy = outstanding(w.s, i)
        if victim < 0 or busy < least:
            victim = i
            least = busy
    if victim < 0:
        return -1
    inst = w.s.instance[victim]
    inst.draining = 1
    w.s.count[0].drains += 1
    is_empty = batch_size(w.s, victim) == 0 and not holds_on(w.fleet, w.s, victim)
    if inst.state == READY and is_empty:
        inst.state = IDLE  # what waits at it had no room beside the slice's other engines
        return victim
    return -1
