"""Which configuration and which SM split to use, from the sizes alone.

Nothing here was measured on a GPU yet: tile families and the cluster rule follow from shared
memory, registers and the traffic counts below; a tuner may replace `choose` later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.schedule import Counts, Plan
from pallas_kernels.hybrid_gemm.specs import Gemm

_DECODE_ROWS = 64
_SMALL_ROWS = 128


def choose(gemm: Gemm, *, sm_count: int, cluster: int = 1) -> Config:
    """Return a configuration for `gemm` on `sm_count` SMs.

    - m <= 64 (decode): 64 rows and one compute warpgroup. Unused rows are zero-filled by the TMA
      unit and cost no traffic; eight stages keep at least 64 KiB of W in flight for each SM.
      Strips of 64 columns where each SM gets at most one of them, so that more SMs load.
    - m <= 128: 128 rows; a taller tile would multiply padding.
    - more: 256 x 128, an accumulator of 128 float32 registers a thread. W is read once for every
      256 rows, or for `cluster * 256` with multicast.
    """
    if gemm.m <= _DECODE_ROWS:
        tn = 64 if gemm.n <= 64 * sm_count else 128
        return Config(
            tm=64,
            tn=tn,
            sym_stages=8,
            kc=512,
            asym_stages=4,
            warpgroups=1,
            cluster=cluster,
            sm_count=sm_count,
        )
    if gemm.m <= _SMALL_ROWS:
        return Config(
            tm=128,
            sym_stages=6,
            kc=512,
            asym_stages=4,
            cluster=cluster,
            sm_count=sm_count,
        )
    return Config(cluster=cluster, sm_count=sm_count)


def smallest_cluster(m: int, tm: int) -> int:
    """Return the smallest cluster that reads W once for all m rows; 8 if none does.

    A cluster with more CTAs than M tiles would hold SMs that compute nothing.
    """
    return next((c for c in (1, 2, 4) if c * tm >= m), 8)


def sym_strips(strips: int, alpha: Any, xp: Any = np) -> Any:
    """Return how many of the `strips` go to SymGEMM: alpha of them, to the nearest strip."""
    exact = xp.asarray(alpha, np.float32) * np.float32(strips)
    return xp.floor(exact + np.float32(0.5)).astype(np.int32)


def busiest_steps(sizes: Counts, sym: Any, sym_clusters: Any, asym_ctas: Any, xp: Any = np) -> Any:
    """Return the tile steps of the busiest CTA, the larger of the two paths.

    A step is tm x tn x tk of tensor work. The bytes over the link, and to and from HBM, do not
    depend on how the SMs are split, so the balanced split is the one with the fewest steps.
    """
    sym_rounds = -(-(sym * sizes.row_clusters) // xp.maximum(sym_clusters, 1))
    asym_rounds = -(-(sizes.strips - sym) // xp.maximum(asym_ctas, 1)) * sizes.row_tiles
    return xp.maximum(sym_rounds, asym_rounds) * sizes.k_steps


def balanced_clusters(config: Config, sizes: Counts, sym: Any, active: Any, xp: Any = np) -> Any:
    """Return how many of the `active` clusters run SymGEMM so that both paths end together.

    Every path with columns gets a cluster; the fewest steps win, and of equals the fewest SymGEMM
    clusters: AsymGEMM adds to O and refills W between its steps, so it profits from spare SMs.

    Args:
      config: its `clusters` bound the search.
      sizes: of the GEMM in tiles.
      sym: strips of SymGEMM.
      active: clusters that may work; at least 2 where both paths have strips.
      xp: numpy, or jax.numpy where `sym` or `active` is traced.
    """
    candidates = xp.arange(config.clusters + 1, dtype=np.int32)
    steps = busiest_steps(sizes, sym, candidates, (active - candidates) * config.cluster, xp)
    starved = ((sym > 0) & (candidates == 0)) | ((sym < sizes.strips) & (candidates >= active))
    forbidden = starved | (candidates > active)
    # One path alone takes every cluster, or none.
    best = xp.argmin(xp.where(forbidden, np.int32(2**31 - 1), steps)).astype(np.int32)
    return xp.where(sym == sizes.strips, active, best)


def traced_plan(
    config: Config, sizes: Counts, *, alpha: Any, sm_split: Any, sm_limit: Any, layer: Any, xp: Any
) -> Plan:
    """Return a plan that is always launchable, for values that are only known when it runs.

    Values outside their range are clamped, and columns never stay without SMs: a path without
    clusters gives its columns to the other one.
    """
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
