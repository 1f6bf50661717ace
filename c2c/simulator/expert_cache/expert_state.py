"""State of the expert caches, and their fixed tables."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import ExpertsTraits, PrefetchTraits
from c2c.simulator.expert_cache.tokens import Followed, nothing_followed
from c2c.simulator.expert_cache.traces import Traces, new_traces
from c2c.workloads import RouterTables

__all__ = ["NONE", "STALE", "ExpertTables", "Experts", "new_experts"]

STALE: Final = -2  # of `Experts.worst`: to be found again
NONE: Final = -1

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
    """Fixed part; axes are architecture and kind of slice."""

    router: RouterTables
    slots: Any  # i8[A, kind] experts that HBM holds
    holds_all: Any  # b1[A, kind] for good, and no other slice compares with what is traced here
    factor: Any  # f8[A, L, L] by what a layer's worth counts while another (axis 1) runs
    fetch_s: Any  # f8[A, kind] of one, over the link
    read_s: Any  # f8[A, kind] that a kernel takes longer to read one from host memory
    expert_bytes: Any  # f8[A]
    host_s: float
    is_host_for_copies: bool  # else for every expert that runs
    is_streamed: bool


class Experts(NamedTuple):
    """Changing part; D devices, L layers, E experts."""

    tables: ExpertTables
    eviction: ExpertsTraits
    tracing: PrefetchTraits
    cache: Any  # CACHE_DTYPE [D]
    held: Any  # i1[D, L, E]
    uses: Any  # i8[D, L, E]
    last: Any  # i8[D, L, E] the clock of the last use
    recent: Any  # f8[D, L, E] tokens of the present sequence
    worst: Any  # i8[D, L] the expert of a layer that is worth least
    least: Any  # f8[D, L] what it is worth
    traces: Traces
    row: Any  # scratch i8[L] the stored row that predicts a layer, or -1
    mass: Any  # scratch f8[L] of its probability that is to be fetched
    is_old: Any  # scratch i1[L] whether `chance` and `want` are another's
    chance: Any  # scratch f8[L, E] predicted for this step
    want: Any  # scratch f8[L, E] the same, of what is to be fetched
    best: Any  # scratch i8[L] the likeliest that is wanted
    weight: Any  # scratch f8[L] when it is fetched: the largest first
    step: Any  # f8[1, L, E] tokens of this step
    needs: Any  # i8[L] experts of it
    need: Any  # i8[L, E] which, in the order in which tokens take them
    is_needed: Any  # i1[L, E]
    followed: Followed
    token: Any  # scratch i8[experts a token]


def new_experts(
    tables: ExpertTables,
    eviction: ExpertsTraits,
    tracing: PrefetchTraits,
    devices: int,
    models: int,
) -> Experts:
    """Return empty caches, minimal without caching."""
    router = tables.router
    layers, experts, most = (
        max(1, int(sizes.max())) for sizes in (router.layers, router.experts, router.per_token)
    )
    if not eviction.caches_experts:
        devices, layers, experts = 1, 1, 1
    cache = np.zeros(devices, CACHE_DTYPE).view(np.recarray)
    cache.model, cache.request = NONE, NONE
    of_each = (devices, layers, experts)
    return Experts(
        tables=tables,
        eviction=eviction,
        tracing=tracing,
        cache=cache,
        held=np.zeros(of_each, np.int8),
        uses=np.zeros(of_each, np.int64),
        last=np.zeros(of_each, np.int64),
        recent=np.zeros(of_each),
        worst=np.full((devices, layers), STALE),
        least=np.zeros((devices, layers)),
        traces=new_traces(
            tracing.rows, layers, experts, models, 1 if tracing.of_token else devices
        ),
        row=np.full(layers, NONE),
        mass=np.zeros(layers),
        is_old=np.zeros(layers, np.int8),
        chance=np.zeros((layers, experts)),
        want=np.zeros((layers, experts)),
        best=np.full(layers, STALE),
        weight=np.zeros(layers),
        step=np.zeros((1, layers, experts)),
        needs=np.zeros(layers, np.int64),
        need=np.zeros((layers, experts), np.int64),
        is_needed=np.zeros((layers, experts), np.int8),
        followed=nothing_followed(router, devices),
        token=np.zeros(most, np.int64),
    )
