"""Tables for policies and backends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

import numpy as np

from c2c.cost import (
    Constants,
    Routing,
    StepTable,
    chunk_profile,
    launched,
    ranks_table,
    speculated,
    step_table,
    timed,
)
from c2c.errors import SettingError
from c2c.hardware import Ranks, Slice, one_rank
from c2c.models import (
    CacheShape,
    Deployment,
    ModelSpec,
    gemm_bytes,
    gemms,
    kv_bytes_per_token,
    rank_of,
    streamed_bytes,
    weight_bytes,
)
from c2c.policies import (
    ChunkChoice,
    Fixed,
    choose_chunk,
    largest_chunk,
    link_demand_gbps,
    weights_in,
)
from c2c.serving.prepare.lanes import layout_table
from c2c.serving.prepare.memories import lane_tokens
from c2c.serving.prepare.parts import SliceKind
from c2c.serving.prepare.settings import ServingSetup, SystemSpec
from c2c.serving.prepare.speculation import draft_of, pass_size, speculates
from c2c.serving.tables.costs import CostTables, KeptTables

__all__ = [
    "DEPLOYMENT_DTYPE",
    "activation_bytes",
    "chunk_choice",
    "cost_tables",
    "demand_gbps",
    "dense_bytes",
    "expert_bytes",
    "expert_layers",
    "expert_slots",
    "first_variant",
    "head_bytes",
    "holds_windows",
    "kept_tables",
    "kv_rooms",
    "largest_step_chunk",
    "layer_bytes",
    "most_engines",
    "shared_room_bytes",
    "shared_weights",
    "switch_s",
]

DEPLOYMENT_DTYPE = np.dtype(
    [
        ("arch", "i8"),
        ("demand_gbps", "f8"),  # S_m / TPOT_m
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("max_context", "i8"),
        ("priority", "i8"),  # of its requests, where they have none of their own
        ("deadline_s", "f8"),  # of its requests, from their arrival; inf: none
    ],
    align=True,
)

KEPT_TABLES: Final = 24  # of up to 4 MB


def head_bytes(spec: ModelSpec) -> float:
    """Return the bytes of the output projection's weights."""
    return float(sum(gemm_bytes(spec, g) * g.count for g in gemms(spec) if g.kind == "head"))


def layer_bytes(spec: ModelSpec) -> float:
    """Return a layer's streamed weight bytes, all experts included."""
    total = sum(
        gemm_bytes(spec, g) * g.count * (spec.experts if g.kind == "expert" else 1)
        for g in gemms(spec)
        if g.kind != "head"
    )
    return float(total / spec.layers)


def largest_step_chunk(system: SystemSpec) -> int:
    """Return the maximum prompt tokens of any step."""
    largest: int = largest_chunk(system.chunk, system.profile.chunks)
    return max(largest, *system.profile.chunks)


def first_variant(system: SystemSpec, table: StepTable) -> int:
    """Return a model's first index on the alpha grid."""
    start: float = system.traits.alpha.initial
    return round(start * (len(table.alphas) - 1))


def _table(setup: ServingSetup, spec: ModelSpec, kind: SliceKind, weights: str) -> StepTable:
    system = setup.system
    if system.layout is not None:
        largest = largest_step_chunk(system) + system.max_batch
        return layout_table(system.layout, spec, kind.slice, largest)

    def of(spec: ModelSpec, weights: str) -> StepTable:
        return _streamed_table(
            spec,
            kind.slice,
            kind.constants,
            kind.link_gbps,
            *pass_size(system, largest_step_chunk(system)),
            weights,
            getattr(system.load, "cluster", 1),
            setup.routing,
        )

    table = of(spec, weights)
    if spec.name in system.step_times:
        table = timed(table, system.step_times[spec.name])
    table = launched(table, system.launch_s.get(spec.name, 0.0))
    if not speculates(system, spec):
        return table
    draft = draft_of(system, spec)
    return speculated(
        table,
        system.speculation.tokens,
        system.speculation.acceptance,
        None if draft is None else of(draft, "hbm"),
        0.0 if draft is None else _over_ranks(weight_bytes, draft, kind.slice),
    )


@lru_cache(maxsize=KEPT_TABLES)
def _streamed_table(
    spec: ModelSpec,
    kind: Slice,
    constants: Constants,
    shared_gbps: float,
    max_tokens: int,
    max_rows: int,
    weights: str,
    cluster: int,
    routing: Routing,
) -> StepTable:
    ranks = kind.ranks
    table = step_table(
        _rank_of(spec, ranks),
        one_rank(kind),
        constants,
        shared_gbps / _count(ranks),
        max_tokens=max_tokens,
        max_rows=max_rows,
        weights=weights,  # type: ignore[arg-type]
        cluster=cluster,
        routing=routing,
        experts_over=ranks.count if ranks is not None and ranks.experts_apart else 1,
    )
    if ranks is not None:
        table = ranks_table(table, spec, ranks)
    for field in fields(table):
        if isinstance(values := getattr(table, field.name), np.ndarray):
            values.flags.writeable = False  # other runs read it too
    return table


def _rank_of(spec: ModelSpec, ranks: Ranks | None) -> ModelSpec:
    if ranks is None:
        return spec
    return rank_of(spec, ranks.count, experts_apart=ranks.experts_apart)


def _count(ranks: Ranks | None) -> int:
    return 1 if ranks is None else ranks.count


def _over_ranks(size_bytes: Callable[[ModelSpec], float], spec: ModelSpec, kind: Slice) -> float:
    """Return the bytes on all ranks, each copy counted."""
    return _count(kind.ranks) * size_bytes(_rank_of(spec, kind.ranks))


def _held_bytes(spec: ModelSpec, kind: Slice) -> float:
    if kind.ranks is None:
        return float(weight_bytes(spec))
    experts = expert_layers(spec) * spec.experts * expert_bytes(spec)
    return _over_ranks(dense_bytes, spec, kind) + experts


def cost_tables(
    setup: ServingSetup, specs: tuple[ModelSpec, ...], kinds: tuple[SliceKind, ...]
) -> tuple[tuple[StepTable, ...], ...]:
    """Return the step costs [arch][kind] in the default memory."""
    where = weights_in(setup.system.load)
    return tuple(tuple(_table(setup, s, k, where) for k in kinds) for s in specs)


def kept_tables(
    setup: ServingSetup, specs: tuple[ModelSpec, ...], kinds: tuple[SliceKind, ...]
) -> tuple[tuple[KeptTables, ...], ...]:
    """Return the step costs [arch][kind] of copied and resident weights."""
    if not setup.system.traits.keep.keeps_weights:
        return ()

    def of(spec: ModelSpec, kind: SliceKind) -> KeptTables:
        return KeptTables(*(_table(setup, spec, kind, place) for place in ("staged", "hbm")))

    return tuple(tuple(of(spec, kind) for kind in kinds) for spec in specs)


def demand_gbps(deployment: Deployment, system: SystemSpec) -> float:
    """Return the TPOT target's link rate, C2CServe section 6.2."""
    where = weights_in(system.load)
    if where == "hbm":
        return 0.0  # decode reads HBM; only loads use the link
    spec = deployment.spec
    rows, passes = 1, 1.0
    if speculates(system, spec):
        rows, passes = 1 + system.speculation.tokens, system.speculation.passes
    if system.layout is not None:
        moved = system.layout.link_bytes(spec.name)
    elif where == "host":
        moved = streamed_bytes(spec, rows)
    else:
        moved = spec.layers * layer_bytes(spec) + head_bytes(spec)
    return link_demand_gbps(passes * float(moved), deployment.tpot_slo_s)


def activation_bytes(spec: ModelSpec, tokens: int) -> float:
    """Return a step's peak activation bytes in a layer."""
    # residual and normed input, q/k/v and attention output, gate and up
    middle = spec.experts_per_token * spec.moe_intermediate if spec.experts else spec.intermediate
    width = 2 * spec.hidden + 2 * (spec.heads + spec.kv_heads) * spec.head_dim + 3 * middle
    return float(tokens * width * spec.dtype_bytes)


def expert_bytes(spec: ModelSpec) -> float:
    """Return one expert's bytes; 0 for a dense model."""
    return float(sum(gemm_bytes(spec, g) for g in gemms(spec) if g.kind == "expert"))


def expert_layers(spec: ModelSpec) -> int:
    """Count layers with experts."""
    return spec.layers - len(spec.dense_layers) if spec.experts else 0


def dense_bytes(spec: ModelSpec) -> float:
    """Return the bytes of all weights except experts."""
    return float(weight_bytes(spec)) - expert_layers(spec) * spec.experts * expert_bytes(spec)


def expert_slots(spec: ModelSpec, kind: Slice, system: SystemSpec, tokens: int) -> int:
    """Return the experts, over layers, in the slice's HBM."""
    if not spec.experts:
        return 0
    every = expert_layers(spec) * spec.experts
    if not system.traits.experts.caches_experts:
        return every
    used = system.hbm_reserve_bytes + activation_bytes(spec, tokens) + dense_bytes(spec)
    room = (kind.hbm_bytes - used) * system.expert_cache.share
    return max(0, min(every, int(room // expert_bytes(spec))))


def shared_room_bytes(specs: Sequence[ModelSpec], kind: Slice, system: SystemSpec) -> float:
    """Return the HBM bytes of shared weights, twice with staging."""
    if not system.load_traits.swaps_weights:
        return 0.0
    rooms = 2.0 if system.load_traits.fetches_ahead else 1.0
    sizes = [rooms * float(weight_bytes(s)) for s in specs]
    return max((s for s in sizes if s < kind.hbm_bytes - system.hbm_reserve_bytes), default=0.0)


def most_engines(kind: Slice, system: SystemSpec) -> int:
    """Return the most engines within their share of a slice's HBM."""
    if system.engines.bytes == 0.0 or system.engines.share == math.inf:
        return system.engines.residents
    room = kind.hbm_bytes * system.engines.share
    return max(1, min(system.engines.residents, int(room // system.engines.bytes)))


def switch_s(spec: ModelSpec, kind: SliceKind, system: SystemSpec) -> float:
    """Return the seconds of a change to an engine, alone on the link."""
    copied = system.traits.keep.engines_kept > 0 or system.traits.keep.displacing_share < math.inf
    if not system.load_traits.swaps_weights and not copied:
        return system.engines.turn_s
    rate = min(kind.slice.link_cap_gbps, kind.link_gbps) * 1e9
    return system.engines.turn_s + float(weight_bytes(spec)) / rate


def holds_windows(system: SystemSpec) -> bool:
    """Return whether requests reserve only layers' windows."""
    return system.engines.kv_windows and system.layout is None and not system.prefix_cache.is_on


def kv_rooms(
    specs: Sequence[ModelSpec], kinds: Sequence[Slice], system: SystemSpec, costs: CostTables,
    adapters: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return the room for KV caches on slices."""
    largest = largest_step_chunk(system)
    shared = [shared_room_bytes(specs, kind, system) for kind in kinds]
    tokens = np.zeros((len(specs), len(kinds)), np.int64)
    for arch, spec in enumerate(specs):
        for k, kind in enumerate(kinds):
            tokens[arch, k] = _kv_tokens(spec, kind, system, largest, shared[k], adapters[arch])
        if adapters[arch] > 0.0 and tokens[arch].max() < 1:
            raise SettingError(
                "system.adapter_cache.slots", system.adapter_cache.slots,
                f"slots that leave room for a KV cache; those of {spec.name} take "
                f"{adapters[arch] / 1e9:.1f} GB",
            )  # fmt: skip
    token_bytes = [[_over_ranks(kv_bytes_per_token, s, kind) for kind in kinds] for s in specs]
    nbytes = np.maximum(tokens, 0) * np.array(token_bytes, np.float64)
    if system.layout is None:
        for arch, spec in enumerate(specs):
            pair = arch * costs.kinds
            shape, place = CacheShape(*costs.holds[pair].tolist()), costs.kv_bytes[pair]
            tokens[arch] = [
                _longest(spec, shape, int(room // place)) if room else most
                for room, most in zip(nbytes[arch], tokens[arch], strict=True)
            ]
    return tokens, nbytes


def shared_weights(specs: Sequence[ModelSpec], kinds: Sequence[Slice], system: SystemSpec) -> Any:
    """Return engines' weight bytes in HBM, f8[arch, kind], or 0."""
    if not system.shares_hbm:
        return np.zeros((len(specs), len(kinds)))
    return np.array([[_held_bytes(spec, kind) for kind in kinds] for spec in specs])


def _longest(spec: ModelSpec, cache: CacheShape, places: int) -> int:
    # The tokens of the longest request with so many places.
    rest = places - cache.state
    tokens = rest // (cache.full + cache.windowed)
    if not cache.windowed or tokens <= cache.window:
        return tokens
    if not cache.full:
        return max(tokens, spec.max_position)
    return (rest - cache.windowed * cache.window) // cache.full


def _kv_tokens(
    spec: ModelSpec, kind: Slice, system: SystemSpec, tokens: int, shared_bytes: float,
    adapter_bytes: float,
) -> int:  # fmt: skip
    # Tokens in all layers for which a slice has room, beside a step of so many tokens, at least so
    # many bytes of weights, and adapters.
    if system.layout is not None:
        return lane_tokens(system.layout, spec, kind)
    used = system.hbm_reserve_bytes + adapter_bytes
    used += _over_ranks(lambda s: activation_bytes(s, tokens), spec, kind)
    where = weights_in(system.load)
    if where == "hbm" and system.traits.experts.caches_experts:
        slots = expert_slots(spec, kind, system, tokens)
        used += dense_bytes(spec) + slots * expert_bytes(spec)
    elif where == "hbm":
        used += max(_held_bytes(spec, kind), shared_bytes)
    elif where == "staged":
        used += 2.0 * layer_bytes(spec)  # one is read while the next is copied
    token = _over_ranks(kv_bytes_per_token, spec, kind)
    if (draft := draft_of(system, spec)) is not None:
        used += _held_bytes(draft, kind)
        token += _over_ranks(kv_bytes_per_token, draft, kind)
    return int((kind.hbm_bytes - used) // token)


def chunk_choice(
    setup: ServingSetup, spec: ModelSpec, kind: SliceKind, table: StepTable
) -> ChunkChoice:
    """Return the prefill chunk of a model on a slice."""
    system = setup.system
    if isinstance(system.chunk, Fixed):
        return ChunkChoice(largest_chunk(system.chunk, system.profile.chunks), True)
    slo = min(d.ttft_slo_s for d in setup.deployments if d.spec == spec)
    budget_s = slo * system.profile.ttft_share
    # Profiled at an equal share of the link: what a slice is left with when all of them stream.
    profile = chunk_profile(
        table,
        spec,
        kind.slice,
        kind.constants,
        chunks=system.profile.chunks,
        prompt_tokens=system.profile.prompt_tokens,
        ttft_target_s=budget_s,
        rate_gbps=min(kind.link_gbps / kind.together, table.link_cap_gbps),
        alpha_index=first_variant(system, table),
    )
    return choose_chunk(
        profile.chunks,
        profile.ttft_s,
        profile.hbm_gbps_needed,
        profile.compute_share,
        ttft_slo_s=budget_s,
        hbm_limit_gbps=kind.slice.hbm_gbps,
    )
