"""Shares of columns and SMs of the two dataflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.schedule import Counts, Plan


def sym_strips(strips: Any, alpha: Any, xp: Any = np) -> Any:
    """Return SymGEMM's strips: alpha of `strips`, rounded."""
    exact = xp.asarray(alpha, np.float32) * np.float32(strips)
    return xp.floor(exact + np.float32(0.5)).astype(np.int32)


def busiest_steps(
    sizes: Counts, cluster: int, sym: Any, sym_clusters: Any, asym_clusters: Any, xp: Any = np
) -> Any:
    """Return the busiest CTA's tile steps (tm x tn x tk)."""
    sym_rounds = -(-(sym * sizes.row_clusters) // xp.maximum(sym_clusters, 1))
    items = -(-(sizes.strips - sym) // cluster) * sizes.matrices
    asym_rounds = -(-items // xp.maximum(asym_clusters, 1)) * sizes.row_tiles
    return xp.maximum(sym_rounds, asym_rounds) * sizes.k_steps


def balanced_clusters(config: Config, sizes: Counts, sym: Any, active: Any, xp: Any = np) -> Any:
    """Return the fewest SymGEMM clusters with which both paths end together."""
    candidates = xp.arange(config.clusters + 1, dtype=np.int32)
    sym_columns = xp.asarray(sym)[..., None]
    steps = busiest_steps(sizes, config.cluster, sym_columns, candidates, active - candidates, xp)
    starved = ((sym_columns > 0) & (candidates == 0)) | (
        (sym_columns < sizes.strips) & (candidates >= active)
    )
    forbidden = starved | (candidates > active)
    # One path alone takes every cluster, or none.
    best = xp.argmin(xp.where(forbidden, np.int32(2**31 - 1), steps), axis=-1).astype(np.int32)
    return xp.where(xp.asarray(sym) == sizes.strips, active, best)


def traced_plan(
    config: Config, sizes: Counts, *, alpha: Any, sm_split: Any, sm_limit: Any, layer: Any, xp: Any
) -> Plan:
    """Return a launchable plan for traced values, clamped."""
    if not config.asym:
        alpha, sm_split = xp.ones_like(xp.asarray(alpha, np.float32)), None
    active = xp.clip(xp.asarray(sm_limit, np.int32) // config.cluster, 1, config.clusters)
    sym = sym_strips(sizes.strips, xp.clip(xp.asarray(alpha, np.float32), 0, 1), xp)
    mixed = (sym > 0) & (sym < sizes.strips)
    # A single cluster runs one path: the one with more columns.
    one_path = xp.where(2 * sym >= sizes.strips, sizes.strips, 0).astype(np.int32)
    sym = xp.where(mixed & (active == 1), one_path, sym)
    if sm_split is None:
        clusters = balanced_clusters(config, sizes, sym, active, xp)
    else:
        clusters = xp.clip(xp.asarray(sm_split, np.int32) // config.cluster, 0, active)
        sym = xp.where(clusters == 0, 0, xp.where(clusters == active, sizes.strips, sym))
    return Plan(sym_strips=sym, sym_clusters=clusters, active_clusters=active, layer=layer)
