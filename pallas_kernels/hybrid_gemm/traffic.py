"""What one launch moves and computes: exact counts of bytes, tiles and steps.

Every count follows from who computes what (`schedule`), so that it equals what the kernel issues;
tests count it there. Two rules of the L2 are assumptions, unmeasured: it keeps no line of host
memory, and of X and O it keeps what is stated at `launch_traffic`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.schedule import (
    SUM_BYTES,
    Counts,
    Plan,
    counts,
    first_pass,
    passes,
    sums_shape,
)
from pallas_kernels.hybrid_gemm.specs import Gemm

Count = Any  # np.int64, or an array of them with the shape of the plan's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes, operations and tile steps of a launch, each with the shape of the plan's fields.

    A *step* is tm x tn x tk of tensor work, an *output* one tm x tn tile that a CTA rounds and
    stores or adds. The `*_cta_*` counts are of the CTA with the most steps in that dataflow.
    """

    link_bytes: Count  # W from host memory; a multicast tile counts once
    x_load_bytes: Count  # X into shared memory, from L2 or HBM; a multicast tile counts once
    o_store_bytes: Count  # O, once; float32 sums of the first K pass are stored there, too
    sums_store_bytes: Count  # float32 partial sums stored or added: of each K pass but one
    sums_load_bytes: Count  # and read back, where O is not float32
    x_hbm_bytes: Count  # X read from HBM
    o_hbm_bytes: Count  # O written to HBM
    sums_hbm_bytes: Count  # partial sums written to HBM, or read back from it
    flops: Count  # useful ones
    mma_flops: Count  # issued, with the padding of tiles and idle CTAs of a cluster
    sym_outputs: Count
    asym_outputs: Count
    sym_cta_steps: Count
    asym_cta_steps: Count
    sym_cta_store_bytes: Count  # stored, added or read back, while tensor cores wait
    asym_cta_store_bytes: Count
    sym_cta_outputs: Count
    asym_cta_outputs: Count
    sym_cta_link_bytes: Count
    asym_cta_link_bytes: Count

    @property
    def hbm_bytes(self) -> Count:
        """Bytes between HBM and L2."""
        return self.x_hbm_bytes + self.o_hbm_bytes + self.sums_hbm_bytes

    @property
    def l2_bytes(self) -> Count:
        """Bytes between L2 and the SMs; a multicast tile counts once."""
        sums = self.sums_store_bytes + self.sums_load_bytes
        return self.link_bytes + self.x_load_bytes + self.o_store_bytes + sums

    @property
    def cta_steps(self) -> Count:
        """Tile steps of the busiest CTA."""
        return np.maximum(self.sym_cta_steps, self.asym_cta_steps)


def launch_traffic(gemm: Gemm, config: Config, plan: Plan, *, l2_bytes: float = 0.0) -> Traffic:
    """Count what a launch moves and computes.

    X from HBM: CTAs that need the same tile at the same time share one reading, and the L2 keeps X
    for later only if all of it fits. SymGEMM works in waves of `sym_clusters` neighbouring items;
    a wave reads each of its row tiles once. AsymGEMM reads X once in each round of strips; with
    `stagger` CTAs stand at different K, and each such group reads by itself unless the L2 holds
    two K passes of X.

    O in HBM: written once. Partial sums: each addition reads and writes them, unless the L2 holds
    those of a round of strips and one K pass of X.

    Args:
      gemm: sizes and types.
      config: tiles.
      plan: concrete integers, or NumPy arrays of them that broadcast (one value for each alpha).
      l2_bytes: what the L2 holds; 0 gives upper bounds.

    Raises:
      ValueError: a path has columns and no cluster.

    Source: C2CServe sections 3.2.1 and 5.2, for our order of tiles.
    """
    sizes = counts(config, gemm)
    sym, clusters, active = np.broadcast_arrays(
        *(
            np.asarray(field, np.int64)
            for field in (plan.sym_strips, plan.sym_clusters, plan.active_clusters)
        )
    )
    asym, others = sizes.strips - sym, active - clusters
    if np.any((sym > 0) & (clusters < 1)) or np.any((asym > 0) & (others < 1)):
        raise ValueError(f"plan={plan}: expected a cluster for each path that has columns")
    clusters, others = np.maximum(clusters, 1), np.maximum(others, 1)
    groups = _up(asym, config.cluster)  # of strips, one for each CTA of a cluster

    e, out = gemm.in_itemsize, gemm.out_itemsize
    n_sym = np.minimum(sym * config.tn, gemm.n)
    n_asym = gemm.n - n_sym
    sym_items, sym_rounds = sym * sizes.row_clusters, _up(sym * sizes.row_clusters, clusters)
    asym_rounds = _up(groups, others)
    pass_columns, pass_groups = _passes(gemm, config, sizes, sym, groups, others)
    added = SUM_BYTES * gemm.m * (pass_columns - n_asym)
    apart = sums_shape(config, gemm) is not None  # sums are read back by the last pass
    loaded = SUM_BYTES * gemm.m * n_asym if apart else np.zeros_like(n_asym)
    most_passes = _most_passes(config, sizes, groups - (_up(groups, others) - 1) * others)
    tile = config.tm * config.tn
    # the first pass of a float32 O is its store; elsewhere it is one more of the sums
    asym_tile_bytes = tile * (out + (most_passes - 1 + apart) * SUM_BYTES)
    strip_bytes = e * gemm.k * config.tn

    x_slice = e * gemm.m * min(config.kc, gemm.k)
    sums_round = SUM_BYTES * gemm.m * np.minimum(n_asym, others * config.cluster * config.tn)
    sums_stay = sums_round + x_slice <= l2_bytes
    if e * gemm.m * gemm.k <= l2_bytes:
        rows = np.full_like(sym, gemm.m)
    else:
        spread = config.stagger and sizes.k_steps > config.ring and 2 * x_slice > l2_bytes
        readings = np.minimum(config.ring, np.minimum(others, groups)) if spread else 1
        rows = _sym_rows(gemm, config, sizes, sym_items, clusters) + gemm.m * asym_rounds * readings

    return Traffic(
        link_bytes=e * gemm.k * (n_sym * sizes.row_clusters + n_asym),
        x_load_bytes=e * gemm.m * gemm.k * (sym + groups),
        o_store_bytes=out * gemm.m * (n_sym + n_asym),
        sums_store_bytes=added,
        sums_load_bytes=loaded,
        x_hbm_bytes=e * gemm.k * rows,
        o_hbm_bytes=np.full_like(sym, out * gemm.m * gemm.n),
        sums_hbm_bytes=np.where(sums_stay, 0, 2 * added),
        flops=2 * gemm.m * gemm.k * (n_sym + n_asym),
        mma_flops=2
        * config.tm
        * config.tn
        * config.tk
        * sizes.k_steps
        * config.cluster
        * (sym_items + groups * sizes.row_tiles),
        sym_outputs=sym_items * config.cluster,
        asym_outputs=sizes.row_tiles * pass_groups * config.cluster,
        sym_cta_steps=sym_rounds * sizes.k_steps,
        asym_cta_steps=asym_rounds * sizes.row_tiles * sizes.k_steps,
        sym_cta_store_bytes=sym_rounds * tile * out,
        asym_cta_store_bytes=asym_rounds * sizes.row_tiles * asym_tile_bytes,
        sym_cta_outputs=sym_rounds,
        asym_cta_outputs=asym_rounds * sizes.row_tiles * most_passes,
        sym_cta_link_bytes=sym_rounds * strip_bytes // config.cluster,
        asym_cta_link_bytes=asym_rounds * strip_bytes,
    )


@functools.lru_cache(maxsize=1024)
def pass_table(config: Config, k_steps: int) -> np.ndarray:
    """Return the number of K passes of AsymGEMM's cluster i at index i mod ring."""
    table = [
        int(passes(config, k_steps, first_pass(config, k_steps, i))) for i in range(config.ring)
    ]
    return np.array(table, np.int64)


def _up(a: Count, b: Count) -> Count:
    return -(-a // b)


def _passes(
    gemm: Gemm, config: Config, sizes: Counts, sym: Count, groups: Count, clusters: Count
) -> tuple[Count, Count]:
    """Return (columns times their K passes, groups times their K passes) of AsymGEMM."""
    table = pass_table(config, sizes.k_steps)
    if (table == table[0]).all():
        return (gemm.n - np.minimum(sym * config.tn, gemm.n)) * table[0], groups * table[0]
    strips = np.arange(sizes.strips)
    widths = np.minimum(config.tn, gemm.n - strips * config.tn)
    position = strips - sym[..., None]
    group = position // config.cluster
    number = np.where(position >= 0, table[group % clusters[..., None] % config.ring], 0)
    leads = position % config.cluster == 0  # the first strip of a group
    return (number * widths).sum(-1), (number * leads).sum(-1)


def _most_passes(config: Config, sizes: Counts, leading: Count) -> Count:
    """Return the most K passes of the `leading` first clusters of AsymGEMM, with most groups."""
    running = np.maximum.accumulate(pass_table(config, sizes.k_steps))
    return running[np.clip(leading, 1, config.ring) - 1]


def _sym_rows(gemm: Gemm, config: Config, sizes: Counts, items: Count, clusters: Count) -> Count:
    """Return how many rows of X the waves of SymGEMM read.

    Items run over the row clusters first, so a wave of at least as many holds every one, and a
    smaller one none twice. The last item is in the last row cluster, the only one cut by M.
    """
    tall = config.tm * config.cluster
    rest = items % clusters
    last = np.where(rest >= sizes.row_clusters, gemm.m, gemm.m - (sizes.row_clusters - rest) * tall)
    waves = items // clusters * gemm.m + np.where(rest > 0, last, 0)
    return np.where(clusters >= sizes.row_clusters, waves, items // sizes.row_clusters * gemm.m)
