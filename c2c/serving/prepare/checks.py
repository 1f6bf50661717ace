"""Checks that refuse setups before any work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from c2c.cost import StepTable, step_time
from c2c.errors import SettingError, refuse
from c2c.hardware import Slice
from c2c.models import ModelSpec, weight_bytes
from c2c.policies import Traits
from c2c.serving.prepare.parts import SliceKind
from c2c.serving.prepare.settings import ServingSetup, SystemSpec
from c2c.serving.prepare.tables import expert_layers

__all__ = ["check", "check_memory", "check_parts", "check_times", "refusals"]


def check_memory(setup: ServingSetup) -> None:
    """Refuse KV caches that take all of a chip's host memory."""
    if (setup.weight_memory_bytes > 0.0).all():
        return
    system = setup.system
    least = min((part.platform for part in setup.parts), key=lambda p: p.host.memory_bytes)
    of_engines, of_prefixes = system.engines.kv_host_bytes, system.prefix_cache.host_bytes
    is_engines = of_engines >= of_prefixes
    raise SettingError(
        "system.engines.kv_host_bytes" if is_engines else "system.prefix_cache.host_bytes",
        max(of_engines, of_prefixes),
        f"less than the host memory of {least.name}, {float(least.host.memory_bytes) / 1e9:.1f} GB",
    )


def check_times(setup: ServingSetup) -> None:
    """Refuse step times of unknown models."""
    names = dict.fromkeys(d.spec.name for d in setup.deployments)
    for name in setup.system.step_times:
        if name not in names:
            where = f"system.step_times.{name}"
            raise SettingError(where, name, f"the times of one of {', '.join(names)}")


def check_parts(setup: ServingSetup) -> None:
    """Refuse features that need equal chips beside unlike ones."""
    if not setup.beside:
        return
    system, share = setup.system, setup.system.disaggregation.prompt_share
    whole = {len(part.slices) == 1 for part in setup.parts}
    for works, field, value, allowed, why in (
        (system.layout is None, "system.layout", system.layout, "null",
         "Its instances lie over the GPUs of a node."),
        (not system.one_each, "system.one_each", True, "false",
         "Nothing says which model has which chip's slice for good."),
        (share == 0.0 or len(whole) == 1, "system.disaggregation.prompt_share", share, "0",
         "Roles are of each chip's slices or of whole chips, and some of these are cut."),
    ):  # fmt: skip
        if not works:
            raise SettingError(field, value, f"{allowed} in a fleet of several parts", why)


def check(setup: ServingSetup, kinds: Sequence[SliceKind], role: np.ndarray) -> None:
    """Refuse settings that the devices do not allow."""
    count = min(int((role == one).sum()) for one in set(role.tolist()))
    models = len(setup.deployments)
    scope = " of each role (system.disaggregation.prompt_share)" if role.any() else ""
    refuse(
        (setup.system.one_each and models > count, "system.one_each", True,
         f"at most as many models as slices{scope}; there are {models} on {count}"),
        (setup.system.expert_cache.misses == "table" and len(kinds) > 1,
         "system.expert_cache.misses", "table", "exact where slices are unlike"),
        (setup.system.disaggregation.prompt_share > 0.0 and setup.cells > 1, "cells", setup.cells,
         "1 where system.disaggregation.prompt_share is above 0"),
    )  # fmt: skip


def refusals(
    setup: ServingSetup,
    specs: Sequence[ModelSpec],
    kinds: Sequence[Slice],
    tables: Sequence[Sequence[StepTable]],
    kv_capacity: np.ndarray,
    capacity_bytes: np.ndarray,
    slots: np.ndarray,
    demands: Sequence[float],
    budget_gbps: float,
) -> Iterator[tuple[int, SettingError]]:
    """Yield index and error of each model that no slice can serve.

    Args:
      tables: [arch][kind] step costs.
      kv_capacity: i8[arch, kind] of the longest request.
      capacity_bytes: f8[arch, kind] KV bytes of all requests.
      slots: i8[arch, kind] experts in HBM.
      demands: link rates of decode targets, 1e9 bytes/s.
      budget_gbps: a chip's link rate to promise, 1e9 bytes/s.
    """
    names = ", ".join(dict.fromkeys(k.name for k in kinds))
    arch_of = {spec: arch for arch, spec in enumerate(specs)}
    best_tpots = [min(_best_step_s(t, 0, 1) for t in row) for row in tables]
    best_ttfts = [min(_best_step_s(t, 1, 0) for t in row) for row in tables]
    traits = setup.system.traits
    for m, (d, demand) in enumerate(zip(setup.deployments, demands, strict=True)):
        arch = arch_of[d.spec]
        if error := _refused_experts(d.spec, d.name, setup.system, traits, int(slots[arch].max())):
            yield m, error
            continue
        if kv_capacity[arch].max() < 1 and setup.system.on_oom == "fail":
            continue  # its requests fail one by one
        if kv_capacity[arch].max() < 1:
            gb = max(k.hbm_bytes for k in kinds) / 1e9
            yield (
                m,
                SettingError(
                    "catalog." + d.name,
                    f"{float(weight_bytes(d.spec)) / 1e9:.1f} GB of weights",
                    "a model that leaves room for a KV cache in a slice "
                    f"({names}, {gb:.0f} GB HBM)",
                    "Take a larger MIG slice, or a system that streams weights.",
                ),
            )
            continue
        if not setup.system.check_slo:
            continue
        # All weights may be kept in a slice's HBM: no step need wait for the link then.
        fits = capacity_bytes[arch].max() > weight_bytes(d.spec)
        is_read = traits.keep.keeps_weights and fits
        most_gbps = max(k.hbm_gbps for k in kinds) if is_read else budget_gbps
        if demand > most_gbps:
            yield (
                m,
                SettingError(
                    f"catalog.{d.name}.tpot_slo_s",
                    d.tpot_slo_s,
                    f"at least {d.tpot_slo_s * demand / most_gbps:.3f} s, which is what streaming "
                    f"the weights takes at {most_gbps:.0f} GB/s",
                ),
            )
        elif not is_read and best_tpots[arch] > d.tpot_slo_s:
            yield (
                m,
                SettingError(
                    f"catalog.{d.name}.tpot_slo_s",
                    d.tpot_slo_s,
                    f"at least {best_tpots[arch]:.3f} s, the fastest any slice ({names}) decodes "
                    "alone",
                ),
            )
        elif not is_read and best_ttfts[arch] > d.ttft_slo_s:
            yield (
                m,
                SettingError(
                    f"catalog.{d.name}.ttft_slo_s",
                    d.ttft_slo_s,
                    f"at least {best_ttfts[arch]:.3f} s, the fastest any slice ({names}) answers "
                    "one token",
                ),
            )


def _refused_experts(
    spec: ModelSpec, name: str, system: SystemSpec, traits: Traits, slots: int
) -> SettingError | None:
    if not traits.experts.caches_experts:
        return None
    if not spec.experts:
        return SettingError(
            f"catalog.{name}",
            spec.name,
            f"a mixture of experts, some of which {system.name} keeps in HBM",
        )
    if slots < spec.experts_per_token:
        return SettingError(
            "system.expert_cache.share",
            system.expert_cache.share,
            f"a share that holds the {spec.experts_per_token} experts of a token of {spec.name} in "
            f"one layer; it holds {slots}",
        )
    ahead = traits.prefetch.ahead
    if ahead >= expert_layers(spec):
        return SettingError(
            "system.prefetch.distance",
            ahead,
            f"less than the {expert_layers(spec)} layers with experts of {spec.name}",
        )
    return None


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
