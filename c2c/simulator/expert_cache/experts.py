"""Expert cache of a slice."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.cost import kernel_link_gbps
from c2c.policies import (
    expert_worth,
    inlined,
    jitable,
    layer_factor,
    mass_to_fetch,
    prefetch_weight,
)
from c2c.serving import Prepared, expert_bytes, expert_layers
from c2c.serving.tables.state import SLOT, Fleet, Serving
from c2c.simulator.expert_cache.expert_state import NONE, STALE, Experts, ExpertTables, new_experts
from c2c.simulator.expert_cache.needs import draw_step
from c2c.simulator.expert_cache.traces import (
    add_tokens,
    begin_compare,
    compare_layer,
    embedded_row,
    forget_tokens,
    predict,
    renew_dot,
    store,
)
from c2c.workloads import router_tables

__all__ = [
    "build_experts",
    "end_sequence",
    "fill_experts",
    "nth_request",
    "walk_experts",
]


def build_experts(prepared: Prepared, state: Serving) -> Experts:
    """Return the initial caches of experts."""
    setup, system = prepared.setup, prepared.setup.system
    specs, kinds = prepared.architectures, prepared.kinds
    one = np.array([expert_bytes(s) for s in specs])
    copy_gbps = np.array([min(k.slice.link_cap_gbps, k.link_gbps) for k in kinds])
    on = [k.constants.on(k.slice) for k in kinds]
    kernel_gbps = [
        float(kernel_link_gbps(k.slice, constants, k.link_gbps))
        for k, constants in zip(kinds, on, strict=True)
    ]
    hbm_gbps = [
        k.slice.hbm_gbps * constants.expert_hbm_efficiency
        for k, constants in zip(kinds, on, strict=True)
    ]
    longer = 1.0 / np.array(kernel_gbps) - 1.0 / np.array(hbm_gbps)
    tables = ExpertTables(
        router=router_tables(
            setup.router,
            [(expert_layers(s), s.experts, s.experts_per_token) for s in specs],
            setup.seed,
        ),
        slots=prepared.expert_slots,
        holds_all=_held_for_good(prepared),
        factor=_layer_factors(prepared),
        fetch_s=np.outer(one, 1e-9 / copy_gbps),
        read_s=np.outer(one, 1e-9 * np.maximum(longer, 0.0)),
        expert_bytes=one,
        host_s=float(system.expert_cache.host_s),
        is_host_for_copies=system.expert_cache.host_per == "fetch",
        is_streamed=system.expert_cache.on_miss == "stream",
    )
    traits = system.traits
    experts = new_experts(
        tables, traits.experts, traits.prefetch, len(state.device), len(setup.deployments)
    )
    for inst in state.instance:
        if traits.experts.caches_experts and inst.model >= 0:
            m, d = int(inst.model), int(inst.on_device)
            fill_experts(experts, prepared.fleet, m, int(inst.kind), d)
    return experts


def _held_for_good(prepared: Prepared) -> Any:
    every = [[expert_layers(s) * s.experts] for s in prepared.architectures]
    is_resident = prepared.expert_slots >= np.array(every)
    if prepared.setup.system.traits.prefetch.rows > 0:
        is_resident &= is_resident.all(axis=1, keepdims=True)
    return is_resident


def _layer_factors(prepared: Prepared) -> Any:
    policy, counts = (
        prepared.setup.system.experts,
        [expert_layers(s) for s in prepared.architectures],
    )
    factor = np.ones((len(counts), max(1, *counts), max(1, *counts)))
    if layer_factor.knows(type(policy)):
        for arch, layers in enumerate(counts):
            for now in range(layers):
                for layer in range(layers):
                    factor[arch, now, layer] = layer_factor(policy, layer, now, layers)
    return factor


@jitable
def fill_experts(x: Experts, fleet: Fleet, m: int, kind: int, d: int) -> None:
    """Fill device `d` with experts of model `m`, layers in turn."""
    arch = fleet.deployment[m].arch
    router, cache = x.tables.router, x.cache[d]
    layers, experts = router.layers[arch], router.experts[arch]
    n = min(x.tables.slots[arch, kind], layers * experts)
    for layer in range(x.held.shape[1]):
        x.worst[d, layer] = STALE
        full = n // layers + (1 if layer < n % layers else 0)
        for e in range(x.held.shape[2]):
            x.held[d, layer, e] = 1 if layer < layers and e < full else 0
            x.uses[d, layer, e] = 0
            x.last[d, layer, e] = 0
            x.recent[d, layer, e] = 0.0
    cache.held = x.tables.slots[arch, kind]
    cache.model = m
    cache.clock = 0
    cache.request = NONE


@jitable
def _read_prediction(x: Experts, arch: int, d: int, layer: int) -> None:
    # Take the probabilities of a layer from the row that predicts it now.
    x.is_old[layer] = 0
    router, row = x.tables.router, x.row[layer]
    experts = router.experts[arch]
    if row >= 0:
        model, least = x.cache[d].model, router.per_token[arch]
        predict(x.traces, model, row, layer, x.mass[layer], least, experts, x.chance, x.want)
        return
    for e in range(experts):
        x.chance[layer, e] = 0.0
        x.want[layer, e] = 0.0


@jitable
def _find_worst(policy: Any, x: Experts, d: int, layer: int, experts: int, is_now: bool) -> None:
    worst, least = NONE, 0.0
    for e in range(experts):
        if x.held[d, layer, e] == 0 or (is_now and x.is_needed[layer, e] != 0):
            continue
        worth = expert_worth(
            policy, x.uses[d, layer, e], x.last[d, layer, e], x.recent[d, layer, e],
            x.chance[layer, e],
        )  # fmt: skip
        if worst < 0 or worth < least:
            worst, least = e, worth
    x.worst[d, layer] = worst
    x.least[d, layer] = least


@jitable
def _give_way(policy: Any, x: Experts, arch: int, d: int, now: int, guarded: int) -> bool:
    # Drop the expert that is worth least, none that layer `now` needs and none of layer `guarded`;
    # False if there is none.
    router = x.tables.router
    layers, experts = router.layers[arch], router.experts[arch]
    chosen, least = NONE, 0.0
    for layer in range(layers):
        if layer == guarded:
            continue
        if x.is_old[layer] != 0 and x.eviction.reads_probability:
            _read_prediction(x, arch, d, layer)
        if x.worst[d, layer] == STALE:
            _find_worst(policy, x, d, layer, experts, layer == now)
        e = x.worst[d, layer]
        if e < 0:
            continue
        if x.eviction.reads_probability:  # which another step may have said
            x.least[d, layer] = expert_worth(
                policy, x.uses[d, layer, e], x.last[d, layer, e], x.recent[d, layer, e],
                x.chance[layer, e],
            )  # fmt: skip
        worth = x.least[d, layer] * x.tables.factor[arch, now, layer]
        if chosen < 0 or worth < least:
            chosen, least = layer, worth
    if chosen < 0:
        return False
    x.held[d, chosen, x.worst[d, chosen]] = 0
    x.worst[d, chosen] = STALE
    x.cache[d].held -= 1
    return True


@jitable
def _admit(
    policy: Any, x: Experts, arch: int, kind: int, d: int, layer: int, e: int, now: int,
    guarded: int,
) -> bool:  # fmt: skip
    # Make expert e of a layer resident; False if nothing may give way for it.
    if x.cache[d].held >= x.tables.slots[arch, kind] and not _give_way(
        policy, x, arch, d, now, guarded
    ):
        return False
    x.held[d, layer, e] = 1
    x.worst[d, layer] = STALE
    x.cache[d].held += 1
    return True


@jitable
def _find_best(x: Experts, d: int, layer: int, experts: int) -> int:
    best, most = NONE, 0.0
    for e in range(experts):
        if x.want[layer, e] > most and x.held[d, layer, e] == 0:
            best, most = e, x.want[layer, e]
    return best


@jitable
def _weigh(prefetch: Any, x: Experts, arch: int, d: int, layer: int, now: int) -> None:
    # Find the likeliest expert of a layer that is wanted, and when it is fetched.
    router = x.tables.router
    if x.best[layer] == STALE:
        if x.is_old[layer] != 0:
            _read_prediction(x, arch, d, layer)
        x.best[layer] = _find_best(x, d, layer, router.experts[arch])
    x.weight[layer] = 0.0
    if x.best[layer] >= 0:
        chance = x.want[layer, x.best[layer]]
        x.weight[layer] = prefetch_weight(prefetch, chance, layer - now, router.layers[arch])


@jitable
def _fetch_ahead(
    policy: Any, prefetch: Any, x: Experts, arch: int, kind: int, d: int, now: int, free_s: float,
    until_s: float,
) -> float:  # fmt: skip
    # Fetch what is predicted as long as the link is free before `until_s`; returns when it is free.
    router, cache = x.tables.router, x.cache[d]
    layers = router.layers[arch]
    if free_s < until_s:
        for layer in range(now + 1, layers):
            _weigh(prefetch, x, arch, d, layer, now)
    while free_s < until_s:
        chosen, most = NONE, 0.0
        for layer in range(now + 1, layers):
            if x.best[layer] == STALE:
                _weigh(prefetch, x, arch, d, layer, now)
            if x.weight[layer] > most:
                chosen, most = layer, x.weight[layer]
        if chosen < 0:
            return free_s
        e = x.best[chosen]
        x.want[chosen, e] = 0.0
        x.best[chosen] = STALE
        if _admit(policy, x, arch, kind, d, chosen, e, now, chosen):
            cache.ahead += 1
            cache.flying = chosen
            cache.flying_expert = e
            cache.fetched_bytes += x.tables.expert_bytes[arch]
            free_s += x.tables.fetch_s[arch, kind]
    return free_s


@jitable
def _forget_predictions(x: Experts, layers: int) -> None:
    for layer in range(layers):
        x.best[layer] = NONE
        x.row[layer] = NONE
        x.is_old[layer] = 1


@jitable
def _predict_layers(
    prefetch: Any, x: Experts, d: int, row: int, similarity: float, first: int, last: int
) -> None:
    # Let a stored row predict the layers [first, last). With a step's first prediction what the
    # step before needed may give way.
    mass = mass_to_fetch(prefetch, similarity)
    for layer in range(first, last):
        if x.eviction.reads_probability or x.row[layer] < 0:
            x.worst[d, layer] = STALE
        x.row[layer] = row
        x.mass[layer] = mass
        x.is_old[layer] = 1
        x.best[layer] = STALE


@inlined
def _lead(state: Serving, i: int) -> int:
    # The request whose sequence is traced: the first of the step.
    if state.plan[state.instance[i].on_device].decodes > 0:
        return int(state.request[state.decoding[i, 0, SLOT]].id)
    return int(state.request[state.prefilling[i, 0]].id)


@jitable
def nth_request(x: Experts, state: Serving, d: int) -> int:
    """Return device `d`'s requests since its cache was filled, from 0."""
    cache, lead = x.cache[d], _lead(state, int(state.plan[d].instance))
    if cache.request != lead:
        cache.request = lead
        cache.clock += 1
    return int(cache.clock - 1)


@jitable
def end_sequence(x: Experts, arch: int, d: int) -> None:
    """Store device `d`'s traced sequence, for traces of whole ones."""
    cache, router = x.cache[d], x.tables.router
    how = x.tracing
    if cache.request >= 0 and how.rows > 0 and not how.of_token:
        share = how.embedded / router.layers[arch]
        model, layers, experts = cache.model, router.layers[arch], router.experts[arch]
        row = store(x.traces, router, arch, model, cache.request, x.recent, d, share, False)
        for other in range(len(x.cache)):
            if other != d and x.cache[other].model == model:
                renew_dot(x.traces, x.recent, other, layers, experts, model, row)


@jitable
def _begin_sequence(x: Experts, arch: int, d: int, request: int) -> None:
    # Another sequence is traced: the one before is stored, and its counts go.
    end_sequence(x, arch, d)
    cache, router = x.cache[d], x.tables.router
    cache.request = request
    for layer in range(router.layers[arch]):
        x.worst[d, layer] = STALE
        for e in range(router.experts[arch]):
            x.recent[d, layer, e] = 0.0
        if x.tracing.rows > 0 and not x.tracing.of_token:
            forget_tokens(x.traces, d, layer, cache.model)


@jitable
def _used(x: Experts, d: int, layer: int, n: int) -> None:
    # Count the use of the n experts of the step.
    cache, how = x.cache[d], x.tracing
    if how.of_token:
        forget_tokens(x.traces, 0, layer, cache.model)
    for k in range(n):
        e = x.need[layer, k]
        cache.clock += 1
        x.uses[d, layer, e] += 1
        x.last[d, layer, e] = cache.clock
        tokens = x.step[0, layer, e]
        if how.of_token:
            add_tokens(x.traces, 0, layer, e, 0.0, tokens, cache.model)
        elif how.rows > 0:
            add_tokens(x.traces, d, layer, e, x.recent[d, layer, e], tokens, cache.model)
        x.recent[d, layer, e] += tokens
    x.worst[d, layer] = STALE
    cache.uses += n


@jitable
def _missing(
    policy: Any, x: Experts, arch: int, kind: int, d: int, layer: int, n: int
) -> int:  # fmt: skip
    # How many of the n experts of the step are not in HBM; those that are copied are there then.
    misses = 0
    x.worst[d, layer] = STALE  # none that is needed gives way
    for k in range(n):
        e = x.need[layer, k]
        if x.held[d, layer, e] == 0:
            misses += 1
            if not x.tables.is_streamed:
                _admit(policy, x, arch, kind, d, layer, e, layer, NONE)
    return misses


@jitable
def _walk_held(x: Experts, state: Serving, arch: int, i: int, d: int, alone_s: float) -> float:
    # Return the seconds of a step that finds all its experts in HBM, where they stay: of a single
    # token nothing need be drawn.
    tables, cache, inst = x.tables, x.cache[d], state.instance[i]
    layers = tables.router.layers[arch]
    is_drawn = inst.n_prefill > 0 or inst.n_decode > 1
    if is_drawn:
        draw_step(x, state, arch, i, d)
    now_s = 0.0
    for layer in range(layers):
        n = x.needs[layer] if is_drawn else tables.router.per_token[arch]
        host_s = 0.0 if tables.is_host_for_copies else tables.host_s * n
        cache.uses += n
        cache.host_s += max(0.0, now_s + host_s - now_s)
        now_s = now_s + host_s + alone_s / layers
    return now_s


# Layer by layer: a layer that lacks experts waits for the link. The transfer under way ends first,
# then all missing experts are fetched together, or the kernel reads them from host memory and the
# cache is unchanged. While layers compute, predicted experts are prefetched.
@jitable
def walk_experts(
    policy: Any, prefetch: Any, x: Experts, fleet: Fleet, state: Serving, d: int, alone_s: float
) -> tuple[float, float]:
    """Walk device `d`'s step; return added seconds and link bytes."""
    i, kind = int(state.plan[d].instance), int(state.device[d].kind)
    arch = int(fleet.deployment[state.instance[i].model].arch)
    tables, cache, how = x.tables, x.cache[d], x.tracing
    if tables.holds_all[arch, kind]:
        return _walk_held(x, state, arch, i, d, alone_s) - alone_s, 0.0
    layers = tables.router.layers[arch]
    lead = _lead(state, i)
    if cache.request != lead:
        _begin_sequence(x, arch, d, lead)
    bytes_before = cache.fetched_bytes
    cache.flying = NONE
    layer_s = alone_s / layers
    now_s, free_s = 0.0, 0.0
    row = NONE
    if how.rows > 0:
        _forget_predictions(x, layers)
        begin_compare(x.traces, cache.model)
        if how.embedded > 0:
            first, alike = embedded_row(x.traces, tables.router, cache.model, lead)
            if first >= 0:
                _predict_layers(prefetch, x, d, first, alike, 0, how.embedded)
    draw_step(x, state, arch, i, d)
    for layer in range(layers):
        n = x.needs[layer]
        misses = _missing(policy, x, arch, kind, d, layer, n)
        copies = 0 if tables.is_streamed else misses
        cache.misses += misses
        cache.fetched_bytes += misses * tables.expert_bytes[arch]
        host_s = tables.host_s * (copies if tables.is_host_for_copies else n)
        ready_s = now_s
        if misses > 0 and tables.is_streamed:
            ready_s = now_s + misses * tables.read_s[arch, kind]
        elif misses > 0:
            ready_s = max(now_s, free_s) + misses * tables.fetch_s[arch, kind]
            free_s = ready_s
        if (
            free_s > ready_s
            and cache.flying == layer
            and x.is_needed[layer, cache.flying_expert] != 0
        ):
            ready_s = free_s  # it is on its way
        cache.wait_s += ready_s - now_s
        cache.host_s += max(0.0, now_s + host_s - ready_s)
        now_s = max(now_s + host_s, ready_s)
        _used(x, d, layer, n)
        if how.rows > 0:
            trace_row, alike = compare_layer(x.traces, 0 if how.of_token else d, layer, cache.model)
            if how.ahead > 0:
                if trace_row >= 0 and layer + how.ahead < layers:
                    _predict_layers(
                        prefetch, x, d, trace_row, alike, layer + how.ahead, layer + how.ahead + 1
                    )
            elif trace_row >= 0 and trace_row != row:
                _predict_layers(prefetch, x, d, trace_row, alike, layer + 1, layers)
            row = trace_row
            free_s = max(free_s, now_s)
            free_s = _fetch_ahead(
                policy, prefetch, x, arch, kind, d, layer, free_s, now_s + layer_s
            )
        now_s += layer_s
    if how.rows > 0 and how.of_token:
        share = how.embedded / layers
        store(x.traces, tables.router, arch, cache.model, lead, x.step, 0, share, True)
    return now_s - alone_s, cache.fetched_bytes - bytes_before
