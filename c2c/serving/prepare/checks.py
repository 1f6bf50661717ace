"""Refusals of setups that cannot be served, before any work, with errors that name the setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from c2c.cost import StepTable, step_time
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import ModelSpec, weight_bytes
from c2c.serving.prepare.settings import ServingSetup
from c2c.serving.prepare.tables import expert_layers, roles

__all__ = ["check", "check_memory"]


def check_memory(setup: ServingSetup) -> None:
    """Raise SettingError where KV caches would take all of a chip's host memory."""
    if setup.weight_memory_bytes > 0.0:
        return
    system = setup.system
    of_engines, of_prefixes = system.engines.kv_host_bytes, system.prefix_cache.host_bytes
    is_engines = of_engines >= of_prefixes
    raise SettingError(
        "system.engines.kv_host_bytes" if is_engines else "system.prefix_cache.host_bytes",
        max(of_engines, of_prefixes),
        f"less than the host memory of {setup.platform.name}, "
        f"{float(setup.platform.host.memory_bytes) / 1e9:.1f} GB",
    )


def check(
    setup: ServingSetup,
    specs: Sequence[ModelSpec],
    kinds: Sequence[Slice],
    tables: Sequence[Sequence[StepTable]],
    kv_capacity: np.ndarray,
    capacity_bytes: np.ndarray,
    slots: np.ndarray,
    demands: Sequence[float],
    budget_gbps: float,
) -> None:
    """Raise SettingError for what no slice can serve, naming model, value and what is allowed."""
    here = roles(setup, len(setup.places))
    count = min(int((here == role).sum()) for role in set(here.tolist()))
    models = len(setup.deployments)
    if setup.system.one_each and models > count:
        each = " of each role (system.disaggregation.prompt_share)" if here.any() else ""
        raise SettingError(
            "system.one_each",
            True,
            f"at most as many models as slices{each}; there are {models} on {count}",
        )
    if setup.system.expert_cache.misses == "table" and len(kinds) > 1:
        raise SettingError("system.expert_cache.misses", "table", "exact where slices are unlike")
    if setup.system.disaggregation.prompt_share > 0.0 and setup.cells > 1:
        raise SettingError(
            "cells", setup.cells, "1 where system.disaggregation.prompt_share is above 0"
        )
    names = ", ".join(dict.fromkeys(k.name for k in kinds))
    arch_of = {spec: arch for arch, spec in enumerate(specs)}
    best_tpots = [min(_best_step_s(t, 0, 1) for t in row) for row in tables]
    best_ttfts = [min(_best_step_s(t, 1, 0) for t in row) for row in tables]
    for d, demand in zip(setup.deployments, demands, strict=True):
        arch = arch_of[d.spec]
        _check_experts(d.spec, d.name, setup, int(slots[arch].max()))
        if kv_capacity[arch].max() < 1 and setup.system.on_oom == "fail":
            continue  # its requests fail one by one
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
        is_read = _fits_hbm(d.spec, setup, capacity_bytes[arch])
        most_gbps = max(k.hbm_gbps for k in kinds) if is_read else budget_gbps
        if demand > most_gbps:
            raise SettingError(
                f"catalog.{d.name}.tpot_slo_s",
                d.tpot_slo_s,
                f"at least {d.tpot_slo_s * demand / most_gbps:.3f} s, which is what streaming "
                f"the weights takes at {most_gbps:.0f} GB/s",
            )
        if is_read:
            continue
        best_tpot = best_tpots[arch]
        if best_tpot > d.tpot_slo_s:
            raise SettingError(
                f"catalog.{d.name}.tpot_slo_s",
                d.tpot_slo_s,
                f"at least {best_tpot:.3f} s, the fastest any slice ({names}) decodes alone",
            )
        best_ttft = best_ttfts[arch]
        if best_ttft > d.ttft_slo_s:
            raise SettingError(
                f"catalog.{d.name}.ttft_slo_s",
                d.ttft_slo_s,
                f"at least {best_ttft:.3f} s, the fastest any slice ({names}) answers one token",
            )


def _fits_hbm(spec: ModelSpec, setup: ServingSetup, room_bytes: np.ndarray) -> bool:
    # Whether all weights may be kept in a slice's HBM: no step need wait for the link then.
    return bool(setup.system.traits.keep.keeps_weights and room_bytes.max() > weight_bytes(spec))


def _check_experts(spec: ModelSpec, name: str, setup: ServingSetup, slots: int) -> None:
    system = setup.system
    if not system.traits.experts.caches_experts:
        return
    if not spec.experts:
        raise SettingError(
            f"catalog.{name}",
            spec.name,
            f"a mixture of experts, some of which {system.name} keeps in HBM",
        )
    if slots < spec.experts_per_token:
        raise SettingError(
            "system.expert_cache.share",
            system.expert_cache.share,
            f"a share that holds the {spec.experts_per_token} experts of a token of {spec.name} in "
            f"one layer; it holds {slots}",
        )
    ahead = system.traits.prefetch.ahead
    if ahead >= expert_layers(spec):
        raise SettingError(
            "system.prefetch.distance",
            ahead,
            f"less than the {expert_layers(spec)} layers with experts of {spec.name}",
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
