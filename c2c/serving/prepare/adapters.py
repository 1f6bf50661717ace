"""Adapters of a catalog as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from c2c.cost import StepTable
from c2c.errors import SettingError
from c2c.models import Deployment, ModelSpec, adapted, adapter_bytes
from c2c.policies import weights_in
from c2c.serving.prepare.parts import SliceKind
from c2c.serving.prepare.settings import ServingSetup
from c2c.serving.tables.optional_tables import Adapters

__all__ = ["adapter_tables", "base_rows", "check_adapters", "slot_room_bytes"]


def base_rows(deployments: Sequence[Deployment]) -> np.ndarray:
    """Return each deployment's serving row; i8[D]."""
    row = {d.name: k for k, d in enumerate(deployments)}
    return np.array([row[d.base or d.name] for d in deployments], np.int64)


def check_adapters(setup: ServingSetup) -> None:
    """Refuse an adapter without base, or beside excluded features."""
    system, names = setup.system, {d.name for d in setup.deployments if d.adapter is None}
    first = next((d for d in setup.deployments if d.adapter is not None), None)
    for d in setup.deployments:
        if d.base and d.base not in names:
            raise SettingError(f"catalog.{d.name}.base", d.base, "the name of a model of the run")
    slots = system.adapter_cache.slots
    share = system.disaggregation.prompt_share
    devices = max(p.platform.ranks.count if p.platform.ranks else 1 for p in setup.parts)
    for excluded, field, value, allowed in (
        (first and system.layout is not None, "system.layout", system.layout, "null with adapters"),
        (first and system.prefix_cache.is_on, "system.prefix_cache", system.prefix_cache,
         "off with adapters, whose keys and values differ"),
        (first and devices > 1, "tensor_parallel", devices, "1 with adapters"),
        (slots and share > 0.0, "system.disaggregation.prompt_share", share,
         f"0 with system.adapter_cache.slots={slots}"),
    ):  # fmt: skip
        if excluded:
            raise SettingError(field, value, allowed)


def slot_room_bytes(setup: ServingSetup, specs: Sequence[ModelSpec]) -> list[float]:
    """Return the HBM of each spec's adapter slots."""
    largest = dict.fromkeys(specs, 0)
    for d in setup.deployments:
        if d.adapter is not None:
            largest[d.spec] = max(largest[d.spec], adapter_bytes(d.spec, d.adapter))
    slots, engines = setup.system.adapter_cache.slots, setup.system.engines.residents
    if engines > 1:
        largest = dict.fromkeys(specs, engines * max(largest.values()))
    return [float(slots * largest[spec]) for spec in specs]


def adapter_tables(
    setup: ServingSetup, specs: Sequence[ModelSpec], kinds: Sequence[SliceKind],
    tables: Sequence[Sequence[StepTable]],
) -> Adapters:  # fmt: skip
    """Return the arrays of the catalog's adapters (grouped GEMMs, arXiv:2310.18547)."""
    slots, deployments = setup.system.adapter_cache.slots, setup.deployments
    n = len(deployments) if slots or any(d.adapter for d in deployments) else 0
    streamed = weights_in(setup.system.load) == "host"
    caps = [
        tables[0][k].link_cap_gbps if streamed else min(kind.slice.link_cap_gbps, kind.link_gbps)
        for k, kind in enumerate(kinds)
    ]
    rates = [k.slice.hbm_gbps * 1e9 * k.constants.gemm_hbm_efficiency for k in kinds]
    flops = [k.slice.bf16_tflops * 1e12 * k.constants.gemm_mma_efficiency for k in kinds]
    result = Adapters(
        base=base_rows(deployments),
        nbytes=np.zeros(n),
        token_s=np.zeros((n, len(kinds))),
        token_bytes=np.zeros(n),
        launch_s=np.zeros((len(specs), len(kinds))),
        hbm_rate=np.array(rates),
        link_rate=np.array(caps) * 1e9,
        slots=slots,
    )
    for m, d in enumerate(deployments):
        if d.adapter is None:
            continue
        rank, kernels = d.adapter.rank, 0
        operations = 0.0
        for g in adapted(d.spec, d.adapter):
            wide = d.spec.dtype_bytes
            inner = 2 * 4 * rank * len(g.columns)  # float32, written and read
            result.token_bytes[m] += g.layers * (wide * g.k + inner + 2 * wide * sum(g.columns))
            operations += g.layers * 2.0 * rank * sum(g.k + n for n in g.columns)
            kernels += 2 * g.layers
        result.nbytes[m] = adapter_bytes(d.spec, d.adapter)
        result.token_s[m] = np.maximum(result.token_bytes[m] / rates, operations / np.array(flops))
        launch_s = [kernels * kind.constants.gemm_launch_s for kind in kinds]
        arch = specs.index(d.spec)
        result.launch_s[arch] = np.maximum(result.launch_s[arch], launch_s)
    return result
