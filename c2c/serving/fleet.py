"""From settings to a fleet: cost tables, KV capacities, chunk table, where weights live.

All settings are checked here, before any work: what cannot be served is an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from c2c.cost import Constants, StepTable, chunk_profile, step_table, step_time
from c2c.errors import SettingError
from c2c.hardware import MigConfig, Platform, Slice, link_gbps, slices
from c2c.models import Deployment, ModelSpec, kv_bytes_per_token, streamed_bytes, weight_bytes
from c2c.policies import (
    ALPHA_POLICIES,
    PLACEMENTS,
    AlphaParams,
    ChunkChoice,
    choose_chunk,
    link_demand_gbps,
)
from c2c.serving.costs import stack_tables
from c2c.serving.state import DEPLOYMENT_DTYPE, Fleet, Rules

__all__ = ["AlphaSettings", "Prepared", "ServingSetup", "SystemSpec", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaSettings:
    """The alpha controller; the paper prints none of the numbers, these are our choices.

    `boundary`: where alpha may change. "request": between steps, where requests join or leave;
    "layer": between the layers of a step with prompt tokens, too.
    """

    policy: str = "feedback"
    boundary: Literal["request", "layer"] = "request"
    initial: float = 0.0
    deadband: float = 0.05
    step_fast: float = 0.125
    step_slow: float = 0.0625
    smoothing: float = 0.5

    def __post_init__(self) -> None:
        if self.policy not in ALPHA_POLICIES:
            raise SettingError(
                "system.alpha.policy", self.policy, f"one of {', '.join(ALPHA_POLICIES)}"
            )
        if self.boundary not in ("request", "layer"):
            raise SettingError("system.alpha.boundary", self.boundary, "'request' or 'layer'")
        for name in ("initial", "deadband", "step_fast", "step_slow", "smoothing"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise SettingError(f"system.alpha.{name}", value, "a number in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """A serving system: its policies and how a model gets onto a slice.

    `loading`: "stream" leaves weights in host memory (C2CServe), "resident" copies them into HBM
    over the link (ServerlessLLM). `chunk_policy`: "table" is C2CServe section 6.3, "fixed" takes
    `chunk_tokens`.
    """

    name: str
    loading: Literal["stream", "resident"] = "stream"
    placement: str = "bandwidth_aware"
    alpha: AlphaSettings = field(default_factory=AlphaSettings)
    chunk_policy: Literal["table", "fixed"] = "table"
    chunk_tokens: int = 2048
    chunk_candidates: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    profile_prompt_tokens: int = 1024
    profile_ttft_share: float = 1.0  # of the TTFT target; the rest is left for queueing
    max_batch: int = 128
    scale_out_at: int = 0
    drain_after_s: float = 10.0
    link_headroom: float = 1.0  # share of the link that placement may promise
    hbm_reserve_bytes: float = 1.0e9  # CUDA context and engine workspace on every slice
    cluster: int = 1
    check_slo: bool = True

    def __post_init__(self) -> None:
        where = "system."
        if self.loading not in ("stream", "resident"):
            raise SettingError(where + "loading", self.loading, "'stream' or 'resident'")
        if self.placement not in PLACEMENTS:
            raise SettingError(
                where + "placement", self.placement, f"one of {', '.join(PLACEMENTS)}"
            )
        if self.chunk_policy not in ("table", "fixed"):
            raise SettingError(where + "chunk_policy", self.chunk_policy, "'table' or 'fixed'")
        for name in ("chunk_tokens", "profile_prompt_tokens", "max_batch", "cluster"):
            if getattr(self, name) < 1:
                raise SettingError(where + name, getattr(self, name), "a whole number above 0")
        if not self.chunk_candidates or min(self.chunk_candidates) < 1:
            raise SettingError(
                where + "chunk_candidates", self.chunk_candidates, "whole numbers above 0"
            )
        for name in ("link_headroom", "profile_ttft_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise SettingError(where + name, getattr(self, name), "a number in (0, 1]")
        if self.drain_after_s <= 0.0:
            raise SettingError(where + "drain_after_s", self.drain_after_s, "seconds above 0")
        for name in ("scale_out_at", "hbm_reserve_bytes"):
            if getattr(self, name) < 0:
                raise SettingError(where + name, getattr(self, name), "at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """Everything that is served on: hardware, models, system, constants."""

    platform: Platform
    mig: MigConfig | str  # a layout, or its name in `conf/mig`
    superchips: int
    link_variant: Literal["datasheet", "measured"]
    deployments: tuple[Deployment, ...]
    system: SystemSpec
    constants: Constants
    weights_start: Literal["host", "disk"] = "host"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.superchips < 1:
            raise SettingError("superchips", self.superchips, "a whole number above 0")
        if not self.deployments:
            raise SettingError("catalog", [], "at least one model")
        if self.weights_start not in ("host", "disk"):
            raise SettingError("weights_start", self.weights_start, "'host' or 'disk'")
        if self.seed < 0:
            raise SettingError("seed", self.seed, "a whole number, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A checked setup, ready to serve; read-only and shared by any number of runs."""

    setup: ServingSetup
    fleet: Fleet
    rules: Rules
    slice_kinds: tuple[Slice, ...]
    architectures: tuple[ModelSpec, ...]
    tables: tuple[tuple[StepTable, ...], ...]  # [arch][kind]
    chunks: tuple[tuple[ChunkChoice, ...], ...]  # [arch][kind]
    chip_of: np.ndarray
    kind_of: np.ndarray
    budget_gbps: np.ndarray
    link_capacity_gbps: float
    in_host: bool


def prepare(setup: ServingSetup) -> Prepared:
    """Check the settings and build the tables that policies and simulator read.

    Raises:
      SettingError: a MIG layout that the chip lacks, a catalog larger than host memory, a model
        whose KV cache or weights fit no slice, an SLO that no slice can meet even when alone.
    """
    system, constants = setup.system, setup.constants
    shared_gbps = link_gbps(setup.platform.link, setup.link_variant)
    per_chip = slices(setup.platform, setup.mig)
    kinds = tuple(dict.fromkeys(per_chip))
    specs = tuple(dict.fromkeys(d.spec for d in setup.deployments))
    homes = _homes(setup)
    largest = max((system.chunk_tokens, *system.chunk_candidates))
    tables = tuple(
        tuple(
            step_table(
                spec,
                kind,
                constants,
                shared_gbps,
                max_tokens=largest + system.max_batch,
                max_rows=system.max_batch,
                weights="host" if system.loading == "stream" else "hbm",
                cluster=system.cluster,
            )
            for kind in kinds
        )
        for spec in specs
    )
    kv_capacity = np.array([[_kv_tokens(s, k, system, largest) for k in kinds] for s in specs])
    demands = [_demand_gbps(d, system) for d in setup.deployments]
    chunks = tuple(
        tuple(
            _chunk(setup, spec, kind, table, shared_gbps / len(per_chip))
            for kind, table in zip(kinds, row, strict=True)
        )
        for spec, row in zip(specs, tables, strict=True)
    )
    budget = shared_gbps * system.link_headroom
    _check(setup, specs, kinds, tables, kv_capacity, demands, budget)

    deployment = np.zeros(len(setup.deployments), DEPLOYMENT_DTYPE).view(np.recarray)
    for row, (d, demand) in enumerate(zip(setup.deployments, demands, strict=True)):
        deployment[row].arch = specs.index(d.spec)
        deployment[row].demand_gbps = demand
        deployment[row].ttft_slo_s = d.ttft_slo_s
        deployment[row].tpot_slo_s = d.tpot_slo_s
        deployment[row].max_context = d.spec.max_position
    fleet = Fleet(
        deployment=deployment,
        home_first=np.cumsum([0] + [len(h) for h in homes]).astype(np.int64),
        home_chip=np.array([c for h in homes for c in h], np.int64),
        kv_capacity=np.maximum(kv_capacity, 0).astype(np.int64),
        chunk=np.array([[c.tokens for c in row] for row in chunks], np.int64),
        parts=np.array(
            [s.layers if system.alpha.boundary == "layer" else 1 for s in specs], np.int64
        ),
        max_batch=system.max_batch,
        costs=stack_tables(tables),
    )
    a = system.alpha
    rules = Rules(
        placement=PLACEMENTS[system.placement],
        check_link=int(system.placement == "bandwidth_aware"),
        scale_out_at=system.scale_out_at,
        drain_after_s=float(system.drain_after_s),
        alpha=AlphaParams(
            ALPHA_POLICIES[a.policy],
            float(a.initial),
            float(a.deadband),
            float(a.step_fast),
            float(a.step_slow),
            float(a.smoothing),
        ),
        seed=setup.seed,
    )
    return Prepared(
        setup=setup,
        fleet=fleet,
        rules=rules,
        slice_kinds=kinds,
        architectures=specs,
        tables=tables,
        chunks=chunks,
        chip_of=np.repeat(np.arange(setup.superchips), len(per_chip)),
        kind_of=np.tile([kinds.index(s) for s in per_chip], setup.superchips),
        budget_gbps=np.full(setup.superchips, budget),
        link_capacity_gbps=shared_gbps,
        in_host=setup.weights_start == "host",
    )


def _demand_gbps(deployment: Deployment, system: SystemSpec) -> float:
    if system.loading == "resident":
        return 0.0  # decode reads HBM; only loads use the link
    return link_demand_gbps(float(streamed_bytes(deployment.spec, 1)), deployment.tpot_slo_s)


def _homes(setup: ServingSetup) -> list[list[int]]:
    """Return the chips whose host memory holds each model, all catalogs in catalog order.

    Every model is held once, by the chip with most memory left; then models are held again in the
    same order while memory is left, so that the first (most popular) ones can run on more chips.
    """
    memory = setup.platform.host.memory_bytes
    sizes = [float(weight_bytes(d.spec)) for d in setup.deployments]
    total = sum(sizes)
    if total > memory * setup.superchips:
        raise SettingError(
            "catalog",
            f"{len(sizes)} models, {total / 1e9:.1f} GB",
            f"at most {memory * setup.superchips / 1e9:.1f} GB, the host memory of "
            f"{setup.superchips} x {setup.platform.name}",
            "Serve fewer models or raise superchips.",
        )
    left = [float(memory)] * setup.superchips
    homes: list[list[int]] = [[] for _ in sizes]
    for _ in range(setup.superchips):
        for m, size in enumerate(sizes):
            free = [c for c in range(setup.superchips) if c not in homes[m] and left[c] >= size]
            if not free:
                if not homes[m]:
                    raise SettingError(
                        "catalog",
                        setup.deployments[m].name,
                        f"models that pack into {setup.superchips} x {memory / 1e9:.0f} GB",
                        "Raise superchips.",
                    )
                continue
            best = max(free, key=lambda c: (left[c], -c))
            homes[m].append(best)
            left[best] -= size
    return [sorted(h) for h in homes]


def _kv_tokens(spec: ModelSpec, kind: Slice, system: SystemSpec, tokens: int) -> int:
    """Return the tokens whose KV cache fits the slice beside activations and engine state."""
    # Widest moment of a layer: residual and normed input, q/k/v and attention output, gate and up.
    middle = spec.experts_per_token * spec.moe_intermediate if spec.experts else spec.intermediate
    width = 2 * spec.hidden + 2 * (spec.heads + spec.kv_heads) * spec.head_dim + 3 * middle
    used = system.hbm_reserve_bytes + float(tokens * width * spec.dtype_bytes)
    if system.loading == "resident":
        used += float(weight_bytes(spec))
    return int((kind.hbm_bytes - used) // kv_bytes_per_token(spec))


def _chunk(
    setup: ServingSetup, spec: ModelSpec, kind: Slice, table: StepTable, share_gbps: float
) -> ChunkChoice:
    system = setup.system
    if system.chunk_policy == "fixed":
        return ChunkChoice(system.chunk_tokens, True)
    slo = min(d.ttft_slo_s for d in setup.deployments if d.spec == spec)
    budget_s = slo * system.profile_ttft_share
    # Profiled at an equal share of the link: what a slice is left with when all of them stream.
    profile = chunk_profile(
        table,
        spec,
        kind,
        setup.constants,
        chunks=system.chunk_candidates,
        prompt_tokens=system.profile_prompt_tokens,
        ttft_target_s=budget_s,
        rate_gbps=min(share_gbps, table.link_cap_gbps),
        alpha_index=round(system.alpha.initial * (len(table.alphas) - 1)),
    )
    return choose_chunk(
        profile.chunks,
        profile.ttft_s,
        profile.hbm_gbps_needed,
        profile.compute_share,
        ttft_slo_s=budget_s,
        hbm_limit_gbps=kind.hbm_gbps,
    )


def _check(
    setup: ServingSetup,
    specs: Sequence[ModelSpec],
    kinds: Sequence[Slice],
    tables: Sequence[Sequence[StepTable]],
    kv_capacity: np.ndarray,
    demands: Sequence[float],
    budget_gbps: float,
) -> None:
    names = ", ".join(dict.fromkeys(k.name for k in kinds))
    for d, demand in zip(setup.deployments, demands, strict=True):
        arch = specs.index(d.spec)
        if kv_capacity[arch].max() < 1:
            gb = max(k.hbm_bytes for k in kinds) / 1e9
            raise SettingError(
                "catalog." + d.name,
                f"{float(weight_bytes(d.spec)) / 1e9:.1f} GB of weights",
                f"a model that leaves room for a KV cache in a slice ({names}, {gb:.0f} GB HBM)",
                "Take a larger MIG slice, or a system that streams weights.",
            )
        if not setup.system.check_slo:
            continue
        if demand > budget_gbps:
            raise SettingError(
                f"catalog.{d.name}.tpot_slo_s",
                d.tpot_slo_s,
                f"at least {d.tpot_slo_s * demand / budget_gbps:.3f} s, which is what streaming "
                f"the weights takes at {budget_gbps:.0f} GB/s",
            )
        best_tpot = min(_best_step_s(t, 0, 1) for t in tables[arch])
        if best_tpot > d.tpot_slo_s:
            raise SettingError(
                f"catalog.{d.name}.tpot_slo_s",
                d.tpot_slo_s,
                f"at least {best_tpot:.3f} s, the fastest any slice ({names}) decodes alone",
            )
        best_ttft = min(_best_step_s(t, 1, 0) for t in tables[arch])
        if best_ttft > d.ttft_slo_s:
            raise SettingError(
                f"catalog.{d.name}.ttft_slo_s",
                d.ttft_slo_s,
                f"at least {best_ttft:.3f} s, the fastest any slice ({names}) answers one token",
            )


def _best_step_s(table: StepTable, prefill: int, decodes: int) -> float:
    return min(
        step_time(
            table,
            prefill_tokens=prefill,
            decode_seqs=decodes,
            decode_kv_tokens=decodes,
            head_rows=1,
            alpha_index=a,
        ).seconds
        for a in range(len(table.alphas))
    )
