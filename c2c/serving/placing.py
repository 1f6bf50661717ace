"""Finding a slice for an inactive model: candidates, eviction, drains, claims."""

from __future__ import annotations

from numba.extending import register_jitable

from c2c.policies import choose_victim, initial_alpha, place, should_drain
from c2c.serving.batching import ACT_LOAD, emit
from c2c.serving.queues import take_pending
from c2c.serving.state import FREE, IDLE, LOADING, RUNNING, Fleet, Rules, Serving

__all__ = ["drop_claim", "make_room", "place_pending", "reserved_gbps", "try_place"]


@register_jitable
def reserved_gbps(fleet: Fleet, s: Serving, c: int, busy_only: bool) -> float:
    """Return the link rate promised on chip `c`: the sum of S_m/TPOT_m over loaded models."""
    total = 0.0
    for i in range(s.chip[c].first, s.chip[c].last):
        state = s.instance[i].state
        if state != FREE and not (busy_only and state == IDLE):
            total += fleet.deployment[s.instance[i].model].demand_gbps
    return total


@register_jitable
def _evict(s: Serving, i: int) -> None:
    # Frees KV cache, activations and engine state only: the weights stay in host memory.
    inst = s.instance[i]
    model = s.model[inst.model]
    if model.active == i:
        model.active = inst.next_same
    else:
        before = model.active
        while s.instance[before].next_same != i:
            before = s.instance[before].next_same
        s.instance[before].next_same = inst.next_same
    inst.next_same = -1
    inst.model = -1
    inst.state = FREE
    inst.draining = 0
    s.count[0].evictions += 1


@register_jitable
def drop_claim(s: Serving, m: int) -> None:
    """Give up the chip that model `m` claimed, if any."""
    claimed = s.model[m].claim_chip
    if claimed >= 0:
        s.chip[claimed].claim = -1
        s.model[m].claim_chip = -1


@register_jitable
def _activate(fleet: Fleet, rules: Rules, s: Serving, m: int, i: int, now_s: float) -> None:
    inst = s.instance[i]
    demand = fleet.deployment[m].demand_gbps
    if inst.state != FREE:
        _evict(s, i)
    c = inst.chip
    first, last = s.chip[c].first, s.chip[c].last
    if rules.check_link != 0:
        span = s.instance[first:last]
        while reserved_gbps(fleet, s, c, False) + demand > s.chip[c].budget_gbps:
            victim = choose_victim(span.last_used_s, span.state == IDLE, last - first)
            if victim < 0:
                break
            _evict(s, first + victim)
    inst.model = m
    inst.state = LOADING
    inst.draining = 0
    inst.cold = 1 - s.model[m].in_host
    inst.last_used_s = now_s
    inst.kv_used = 0
    inst.kv_capacity = fleet.kv_capacity[fleet.deployment[m].arch, inst.kind]
    inst.next_same = s.model[m].active
    s.model[m].active = i
    start = initial_alpha(rules.alpha)
    inst.alpha = start.alpha
    inst.seen_latency_s = start.latency_s
    inst.available_gbps = s.chip[c].budget_gbps
    s.count[0].switches += 1
    s.count[0].cold_starts += inst.cold
    s.model[m].in_host = 1
    drop_claim(s, m)
    take_pending(s, m, i)
    emit(s, ACT_LOAD, i)


@register_jitable
def _add_candidates(fleet: Fleet, s: Serving, m: int, c: int, n: int) -> int:
    chip = s.chip[c]
    if chip.claim >= 0 and chip.claim != m:
        return n  # another model has waited too long for this chip
    left = chip.budget_gbps - reserved_gbps(fleet, s, c, True)
    unpromised = chip.budget_gbps - reserved_gbps(fleet, s, c, False)
    arch = fleet.deployment[m].arch
    for i in range(chip.first, chip.last):
        inst = s.instance[i]
        if inst.state == FREE or (inst.state == IDLE and inst.model != m):
            row = s.candidates[n]
            row.instance = i
            row.is_free = 1 if inst.state == FREE else 0
            row.last_used_s = inst.last_used_s
            row.kv_capacity = fleet.kv_capacity[arch, inst.kind]
            row.link_left_gbps = left
            row.unpromised_gbps = unpromised
            n += 1
    return n


@register_jitable
def try_place(
    fleet: Fleet, rules: Rules, s: Serving, m: int, tokens: int, only_chip: int, now_s: float
) -> int:
    """Activate model `m` on a slice of a chip that holds its weights; -1 if none will do.

    Args:
      tokens: KV tokens of the request that asks.
      only_chip: look at this chip alone; -1 looks at all of the model's chips.
    """
    n = 0
    for k in range(fleet.home_first[m], fleet.home_first[m + 1]):
        c = fleet.home_chip[k]
        if only_chip < 0 or only_chip == c:
            n = _add_candidates(fleet, s, m, c, n)
    if n == 0:
        return -1
    key = (rules.seed * 1000003 + s.count[0].draws * 7919) % 2147483646
    row = place(rules.placement, s.candidates, n, tokens, fleet.deployment[m].demand_gbps, key)
    s.count[0].draws += 1
    if row < 0:
        return -1
    i = int(s.candidates[row].instance)
    _activate(fleet, rules, s, m, i, now_s)
    return i


@register_jitable
def _is_home(fleet: Fleet, m: int, c: int) -> bool:
    for k in range(fleet.home_first[m], fleet.home_first[m + 1]):  # noqa: SIM110 (Numba)
        if fleet.home_chip[k] == c:
            return True
    return False


@register_jitable
def _oldest_pending(fleet: Fleet, s: Serving, c: int) -> int:
    # The untried model of chip c whose first request waits longest; ties to the lower id.
    best = -1
    for m in range(len(s.model)):
        model = s.model[m]
        if model.n_wait == 0 or model.tried != 0:
            continue
        if best >= 0 and model.oldest_s >= s.model[best].oldest_s:
            continue
        if _is_home(fleet, m, c):
            best = m
    return best


@register_jitable
def _place_head(fleet: Fleet, rules: Rules, s: Serving, m: int, c: int, now_s: float) -> bool:
    head = s.request[s.model[m].wait_head]
    return try_place(fleet, rules, s, m, head.prompt + head.output, c, now_s) >= 0


@register_jitable
def place_pending(fleet: Fleet, rules: Rules, s: Serving, c: int, now_s: float) -> None:
    """Give the idle slices of chip `c` to the models that wait, longest wait first."""
    if s.count[0].pending == 0:
        return
    claim = s.chip[c].claim
    if claim >= 0 and not _place_head(fleet, rules, s, claim, c, now_s):
        return  # nothing else may take what this model still lacks
    s.model.tried[:] = 0
    while True:
        m = _oldest_pending(fleet, s, c)
        if m < 0:
            return
        waited = now_s - s.model[m].oldest_s
        if not _place_head(fleet, rules, s, m, c, now_s):
            s.model[m].tried = 1
            if should_drain(waited, rules.drain_after_s):
                return


@register_jitable
def make_room(fleet: Fleet, rules: Rules, s: Serving, c: int, now_s: float) -> None:
    """Drain the least busy slice of chip `c` if a model has waited too long for one.

    The model claims the chip: until it is placed no other model is placed there. Looked at only
    once in an eighth of `drain_after_s`, since waiting changes slowly.
    """
    chip = s.chip[c]
    if s.count[0].pending == 0 or now_s < chip.next_look_s:
        return
    chip.next_look_s = now_s + rules.drain_after_s / 8.0
    m = chip.claim
    if m < 0:
        s.model.tried[:] = 0
        m = _oldest_pending(fleet, s, c)
        if m < 0 or s.model[m].claim_chip >= 0:
            return
        if not should_drain(now_s - s.model[m].oldest_s, rules.drain_after_s):
            return
        chip.claim = m
        s.model[m].claim_chip = c
    if _place_head(fleet, rules, s, m, c, now_s):
        place_pending(fleet, rules, s, c, now_s)
        return
    victim = -1
    for i in range(chip.first, chip.last):
        inst = s.instance[i]
        if inst.draining != 0:
            return  # one at a time
        if inst.state != RUNNING or inst.model == m:
            continue
        busy = inst.n_wait + inst.n_prefill + inst.n_decode
        if victim < 0 or busy < (
            s.instance[victim].n_wait + s.instance[victim].n_prefill + s.instance[victim].n_decode
        ):
            victim = i
    if victim >= 0:
        s.instance[victim].draining = 1
        s.count[0].drains += 1
