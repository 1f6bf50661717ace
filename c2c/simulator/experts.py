"""A slice's cache of experts: what a step lacks, what is fetched ahead, and what that takes.

Where a system caches experts, its steps are walked one by one, layer by layer. A layer that lacks
experts waits for the link: what is on its way ends first, then all of them are fetched at once (or
the kernel reads them from host memory, and the cache stays as it is). In the time that layers
compute, predicted experts are fetched ahead.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import (
    expert_worth,
    inlined,
    jitable,
    layer_factor,
    mass_to_fetch,
    prefetch_weight,
    tracing,
)
from c2c.serving.state import SLOT, Fleet, Serving
from c2c.simulator.needs import draw_step
from c2c.simulator.tokens import Followed, nothing_followed
from c2c.simulator.traces import (
    Traces,
    begin_compare,
    compare_layer,
    embedded_row,
    new_traces,
    predict,
    store,
)
from c2c.workloads import RouterTables

__all__ = [
    "ExpertTables",
    "Experts",
    "end_sequence",
    "fill_experts",
    "new_experts",
    "nth_request",
    "walk_experts",
]

_STALE: Final = -2  # of `Experts.worst`: to be found again
_NONE: Final = -1

# What a device's cache is about, and its totals.
CACHE_DTYPE = np.dtype(
    [
        ("model", "i8"),
        ("held", "i8"),  # experts in HBM
        ("clock", "i8"),  # uses so far, over all experts
        ("flying", "i8"),  # layer of the last expert that was fetched ahead
        ("flying_expert", "i8"),
        ("request", "i8"),  # of the sequence that is traced, or -1
        ("uses", "i8"),  # experts that steps have run, a layer's once
        ("misses", "i8"),  # of them not in HBM when their layer began
        ("ahead", "i8"),  # experts fetched before their layer
        ("fetched_bytes", "f8"),  # over the link, for layers and ahead
        ("wait_s", "f8"),  # of layers for the link
        ("host_s", "f8"),  # of the host's work that nothing hid
    ],
    align=True,
)


class ExpertTables(NamedTuple):
    """The fixed part; axes are architecture and kind of slice."""

    router: RouterTables
    slots: Any  # i8[A, kind] experts that HBM holds
    fetch_s: Any  # f8[A, kind] of one, over the link
    read_s: Any  # f8[A, kind] that a kernel takes longer to read one from host memory
    expert_bytes: Any  # f8[A]
    host_s: float
    is_host_for_copies: bool  # else for every expert that runs
    is_streamed: bool


class Experts(NamedTuple):
    """The changing part; D devices, L layers, E experts."""

    tables: ExpertTables
    cache: Any  # CACHE_DTYPE [D]
    held: Any  # i1[D, L, E]
    uses: Any  # i8[D, L, E]
    last: Any  # i8[D, L, E] the clock of the last use
    recent: Any  # f8[D, L, E] tokens of the present sequence
    worst: Any  # i8[D, L] the expert of a layer that is worth least
    traces: Traces
    chance: Any  # scratch f8[L, E] predicted for this step
    want: Any  # scratch f8[L, E] the same, of what is to be fetched
    best: Any  # scratch i8[L] the likeliest that is wanted
    step: Any  # f8[1, L, E] tokens of this step
    needs: Any  # i8[L] experts of it
    need: Any  # i8[L, E] which, in the order in which tokens take them
    is_needed: Any  # i1[L, E]
    followed: Followed
    token: Any  # scratch i8[experts a token]


def new_experts(
    tables: ExpertTables, prefetch: Any, devices: int, models: int, caches: bool
) -> Experts:
    """Return empty caches; where nothing is cached, as small as can be."""
    router = tables.router
    layers, experts, most = (
        max(1, int(sizes.max())) for sizes in (router.layers, router.experts, router.per_token)
    )
    if not caches:
        devices, layers, experts = 1, 1, 1
    cache = np.zeros(devices, CACHE_DTYPE).view(np.recarray)
    cache.model, cache.request = _NONE, _NONE
    of_each = (devices, layers, experts)
    return Experts(
        tables=tables,
        cache=cache,
        held=np.zeros(of_each, np.int8),
        uses=np.zeros(of_each, np.int64),
        last=np.zeros(of_each, np.int64),
        recent=np.zeros(of_each),
        worst=np.full((devices, layers), _STALE),
        traces=new_traces(tracing(prefetch).rows, layers, experts, models),
        chance=np.zeros((layers, experts)),
        want=np.zeros((layers, experts)),
        best=np.full(layers, _STALE),
        step=np.zeros((1, layers, experts)),
        needs=np.zeros(layers, np.int64),
        need=np.zeros((layers, experts), np.int64),
        is_needed=np.zeros((layers, experts), np.int8),
        followed=nothing_followed(router, devices),
        token=np.zeros(most, np.int64),
    )


@jitable
def fill_experts(x: Experts, fleet: Fleet, m: int, kind: int, d: int) -> None:
    """Let device `d` hold experts of model `m`: as many as there is room for, layers in turn."""
    arch = fleet.deployment[m].arch
    router, cache = x.tables.router, x.cache[d]
    layers, experts = router.layers[arch], router.experts[arch]
    n = min(x.tables.slots[arch, kind], layers * experts)
    for layer in range(x.held.shape[1]):
        x.worst[d, layer] = _STALE
        full = n // layers + (1 if layer < n % layers else 0)
        for e in range(x.held.shape[2]):
            x.held[d, layer, e] = 1 if layer < layers and e < full else 0
            x.uses[d, layer, e] = 0
            x.last[d, layer, e] = 0
            x.recent[d, layer, e] = 0.0
    cache.held = x.tables.slots[arch, kind]
    cache.model = m
    cache.clock = 0
    cache.request = _NONE


@jitable
def _find_worst(policy: Any, x: Experts, d: int, layer: int, experts: int, is_now: bool) -> int:
    worst, least = _NONE, 0.0
    for e in range(experts):
        if x.held[d, layer, e] == 0 or (is_now and x.is_needed[layer, e] != 0):
            continue
        worth = expert_worth(
            policy, x.uses[d, layer, e], x.last[d, layer, e], x.recent[d, layer, e],
            x.chance[layer, e],
        )  # fmt: skip
        if worst < 0 or worth < least:
            worst, least = e, worth
    return worst


@jitable
def _give_way(policy: Any, x: Experts, arch: int, d: int, now: int, guarded: int) -> bool:
    # Drop the expert that is worth least, none that layer `now` needs and none of layer `guarded`;
    # False if there is none.
    router = x.tables.router
    layers, experts = router.layers[arch], router.experts[arch]
    chosen, least = _NONE, 0.0
    for layer in range(layers):
        if layer == guarded:
            continue
        if x.worst[d, layer] == _STALE:
            x.worst[d, layer] = _find_worst(policy, x, d, layer, experts, layer == now)
        e = x.worst[d, layer]
        if e < 0:
            continue
        worth = expert_worth(
            policy, x.uses[d, layer, e], x.last[d, layer, e], x.recent[d, layer, e],
            x.chance[layer, e],
        ) * layer_factor(policy, layer, now, layers)  # fmt: skip
        if chosen < 0 or worth < least:
            chosen, least = layer, worth
    if chosen < 0:
        return False
    x.held[d, chosen, x.worst[d, chosen]] = 0
    x.worst[d, chosen] = _STALE
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
    x.worst[d, layer] = _STALE
    x.cache[d].held += 1
    return True


@jitable
def _find_best(x: Experts, d: int, layer: int, experts: int) -> int:
    best, most = _NONE, 0.0
    for e in range(experts):
        if x.want[layer, e] > most and x.held[d, layer, e] == 0:
            best, most = e, x.want[layer, e]
    return best


@jitable
def _fetch_ahead(
    policy: Any, prefetch: Any, x: Experts, arch: int, kind: int, d: int, now: int, free_s: float,
    until_s: float,
) -> float:  # fmt: skip
    # Fetch what is predicted as long as the link is free before `until_s`; returns when it is free.
    router, cache = x.tables.router, x.cache[d]
    layers, experts = router.layers[arch], router.experts[arch]
    while free_s < until_s:
        chosen, most = _NONE, 0.0
        for layer in range(now + 1, layers):
            if x.best[layer] == _STALE:
                x.best[layer] = _find_best(x, d, layer, experts)
            if x.best[layer] < 0:
                continue
            chance = x.want[layer, x.best[layer]]
            weight = prefetch_weight(prefetch, chance, layer - now, layers)
            if weight > most:
                chosen, most = layer, weight
        if chosen < 0:
            return free_s
        e = x.best[chosen]
        x.want[chosen, e] = 0.0
        x.best[chosen] = _STALE
        if _admit(policy, x, arch, kind, d, chosen, e, now, chosen):
            cache.ahead += 1
            cache.flying = chosen
            cache.flying_expert = e
            cache.fetched_bytes += x.tables.expert_bytes[arch]
            free_s += x.tables.fetch_s[arch, kind]
    return free_s


@jitable
def _forget_predictions(x: Experts, layers: int, experts: int) -> None:
    for layer in range(layers):
        x.best[layer] = _NONE
        for e in range(experts):
            x.chance[layer, e] = 0.0
            x.want[layer, e] = 0.0


@jitable
def _predict_layers(
    prefetch: Any, x: Experts, arch: int, d: int, row: int, similarity: float, first: int, last: int
) -> None:
    # Take the layers [first, last) from a stored row.
    mass = mass_to_fetch(prefetch, similarity)
    for layer in range(first, last):
        predict(x.traces, row, layer, mass, x.tables.router.per_token[arch], x.chance, x.want)
        x.best[layer] = _STALE
        x.worst[d, layer] = _STALE


@inlined
def _lead(state: Serving, i: int) -> int:
    # The request whose sequence is traced: the first of the batch.
    inst = state.instance[i]
    if inst.n_decode > 0:
        return int(state.request[state.decoding[i, 0, SLOT]].id)
    return int(state.request[state.prefilling[i, 0]].id)


@jitable
def nth_request(x: Experts, state: Serving, d: int) -> int:
    """Return how many requests device `d` has begun since its cache was filled, before this one.

    Where steps are not walked, and the cache counts nothing else.
    """
    cache, lead = x.cache[d], _lead(state, int(state.plan[d].instance))
    if cache.request != lead:
        cache.request = lead
        cache.clock += 1
    return int(cache.clock - 1)


@jitable
def end_sequence(prefetch: Any, x: Experts, arch: int, d: int) -> None:
    """Store the sequence that device `d` has traced, if its traces are of whole sequences.

    Args:
      prefetch: says so.
      x: the caches.
      arch: of the model that the device's cache is about.
      d: the device.
    """
    cache, router = x.cache[d], x.tables.router
    how = tracing(prefetch)
    if cache.request >= 0 and how.rows > 0 and not how.of_token:
        share = how.embedded / router.layers[arch]
        store(x.traces, router, arch, cache.model, cache.request, x.recent, d, share, False)


@jitable
def _begin_sequence(prefetch: Any, x: Experts, arch: int, d: int, request: int) -> None:
    # Another sequence is traced: the one before is stored, and its counts go.
    end_sequence(prefetch, x, arch, d)
    cache, router = x.cache[d], x.tables.router
    cache.request = request
    for layer in range(router.layers[arch]):
        x.worst[d, layer] = _STALE
        for e in range(router.experts[arch]):
            x.recent[d, layer, e] = 0.0


@jitable
def _used(x: Experts, d: int, layer: int, n: int) -> None:
    # Count the use of the n experts of the step.
    cache = x.cache[d]
    for k in range(n):
        e = x.need[layer, k]
        cache.clock += 1
        x.uses[d, layer, e] += 1
        x.last[d, layer, e] = cache.clock
        x.recent[d, layer, e] += x.step[0, layer, e]
    x.worst[d, layer] = _STALE
    cache.uses += n


@jitable
def _missing(
    policy: Any, x: Experts, arch: int, kind: int, d: int, layer: int, n: int
) -> int:  # fmt: skip
    # How many of the n experts of the step are not in HBM; those that are copied are there then.
    misses = 0
    x.worst[d, layer] = _STALE  # none that is needed gives way
    for k in range(n):
        e = x.need[layer, k]
        if x.held[d, layer, e] == 0:
            misses += 1
            if not x.tables.is_streamed:
                _admit(policy, x, arch, kind, d, layer, e, layer, _NONE)
    return misses


@jitable
def walk_experts(
    policy: Any, prefetch: Any, x: Experts, fleet: Fleet, state: Serving, d: int, alone_s: float
) -> tuple[float, float]:
    """Walk the step that device `d` begins; returns the seconds it takes longer and its link bytes.

    Args:
      policy: of eviction.
      prefetch: of what is fetched ahead.
      x: the caches.
      fleet: the models.
      state: whose plan of the device is the step.
      d: the device.
      alone_s: of the step with all experts in HBM.
    """
    i, kind = int(state.plan[d].instance), int(state.device[d].kind)
    arch = int(fleet.deployment[state.instance[i].model].arch)
    tables, cache, how = x.tables, x.cache[d], tracing(prefetch)
    layers = tables.router.layers[arch]
    lead = _lead(state, i)
    if cache.request != lead:
        _begin_sequence(prefetch, x, arch, d, lead)
    bytes_before = cache.fetched_bytes
    cache.flying = _NONE
    layer_s = alone_s / layers
    now_s, free_s = 0.0, 0.0
    row = _NONE
    if how.rows > 0:
        _forget_predictions(x, layers, tables.router.experts[arch])
        begin_compare(x.traces, cache.model)
        if how.embedded > 0:
            first, alike = embedded_row(x.traces, tables.router, cache.model, lead)
            if first >= 0:
                _predict_layers(prefetch, x, arch, d, first, alike, 0, how.embedded)
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
            found, alike = compare_layer(
                x.traces, x.step if how.of_token else x.recent, 0 if how.of_token else d, layer,
                cache.model, how.compares_seen,
            )  # fmt: skip
            if how.ahead > 0:
                if found >= 0 and layer + how.ahead < layers:
                    _predict_layers(
                        prefetch, x, arch, d, found, alike, layer + how.ahead, layer + how.ahead + 1
                    )
            elif found >= 0 and found != row:
                _predict_layers(prefetch, x, arch, d, found, alike, layer + 1, layers)
            row = found
            free_s = max(free_s, now_s)
            free_s = _fetch_ahead(
                policy, prefetch, x, arch, kind, d, layer, free_s, now_s + layer_s
            )
        now_s += layer_s
    if how.rows > 0 and how.of_token:
        share = how.embedded / layers
        compared = how.compares_seen
        store(x.traces, tables.router, arch, cache.model, lead, x.step, 0, share, compared)
    return now_s - alone_s, cache.fetched_bytes - bytes_before
