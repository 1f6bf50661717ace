"""Traffic and work of one launch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.gemm.config import SUM_BYTES, Config, pass_unit, sum_size, sums_apart
from pallas_kernels.gemm.schedule import (
    FIELDS,
    Counts,
    Plan,
    block_table,
    counts,
    first_pass,
    passes,
    whole_rows,
)
from pallas_kernels.gemm.specs import Gemm

Count = Any  # np.int64, or an array of them with the shape of the plan's fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes, operations and tile steps of a launch, shaped like the plan.

    A *step* is tm x tn x tk of tensor work, an *output* one tm x tn tile stored or added.
    `*_cta_*`: of the busiest CTA for equal rows; else upper bounds.
    """

    w_bytes: Count  # stored W from host memory; a multicast tile counts once
    scale_bytes: Count  # scales and offsets, from where they are
    x_load_bytes: Count  # X into shared memory, from L2 or HBM; a multicast tile counts once
    x_sum_bytes: Count  # sums of X for offsets, into shared memory
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
    def link_bytes(self) -> Count:
        """Link bytes, with scales and offsets in host memory."""
        return self.w_bytes + self.scale_bytes

    @property
    def hbm_bytes(self) -> Count:
        """Bytes between HBM and L2."""
        return self.x_hbm_bytes + self.o_hbm_bytes + self.sums_hbm_bytes

    @property
    def l2_bytes(self) -> Count:
        """Bytes between L2 and SMs, multicast tiles once."""
        sums = self.sums_store_bytes + self.sums_load_bytes
        x = self.x_load_bytes + self.x_sum_bytes
        return self.link_bytes + x + self.o_store_bytes + sums

    @property
    def cta_steps(self) -> Count:
        """Tile steps of the busiest CTA."""
        return np.maximum(self.sym_cta_steps, self.asym_cta_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    matrices: int
    blocks: Count  # of SymGEMM
    tiles: Count  # of AsymGEMM
    most_tiles: Count  # of one matrix
    useful: Count
    loaded_sym: Count  # rows of X for each strip
    loaded_asym: Count


# Two rules of the L2 are unmeasured assumptions: it keeps no line of host memory, and of X and O
# the parts stated below.
def launch_traffic(
    gemm: Gemm,
    config: Config,
    plan: Plan,
    *,
    l2_bytes: float = 0.0,
    group_sizes: np.ndarray | None = None,
) -> Traffic:
    """Return the bytes, operations and tile steps of a launch.

    W, and groups' scales: each SymGEMM strip once per block of rows, each AsymGEMM strip once. None
    for experts without rows.

    X from HBM: once if L2 holds all of it. Else SymGEMM reads a wave's row tiles once. AsymGEMM
    reads X once in each round of strips, with `stagger` once a group unless L2 holds two K passes.

    O: once. Partial sums: read and written, unless L2 holds a round of strips and one K pass of X.

    Args:
      plan: concrete integers, or NumPy arrays that broadcast.
      l2_bytes: 0 gives upper bounds.
      group_sizes: rows of each expert, concrete; None for even routing.

    Raises:
      ValueError: columns without cluster.

    Source: C2CServe sections 3.2.1 and 5.2, for our order of tiles.
    """
    m, sizes = gemm.m, counts(config, gemm)
    over = _rows(gemm, config, sizes, group_sizes)
    names = ("sym_strips", "sym_clusters", "active_clusters")
    fields = (np.asarray(getattr(plan, name), np.int64) for name in names)
    sym, clusters, active = np.broadcast_arrays(*fields)
    asym, others = sizes.strips - sym, active - clusters
    if np.any((sym > 0) & (clusters < 1)) or np.any((asym > 0) & (others < 1)):
        raise ValueError(f"plan={plan}: expected a cluster for each path that has columns")
    clusters, others = np.maximum(clusters, 1), np.maximum(others, 1)
    groups = _up(asym, config.cluster)  # of strips, one for each CTA of a cluster

    e, out = gemm.in_itemsize, gemm.out_itemsize
    n_sym = np.minimum(sym * config.tn, gemm.n)
    n_asym = gemm.n - n_sym
    sym_items, sym_rounds = sym * over.blocks, _up(sym * over.blocks, clusters)
    asym_rounds = _up(groups * over.matrices, others)
    pass_columns, pass_groups = _passes(gemm, config, sizes, sym, groups, others, over.matrices)
    added = SUM_BYTES * over.loaded_asym * (pass_columns - n_asym * over.matrices)
    added = added // max(over.matrices, 1)
    apart = sums_apart(config, gemm)  # sums are read back by the last pass
    loaded = SUM_BYTES * over.loaded_asym * n_asym if apart else np.zeros_like(n_asym)
    leading = groups * over.matrices - (_up(groups * over.matrices, others) - 1) * others
    most_passes = _most_passes(config, gemm, sizes, leading)
    tile = config.tm * config.tn
    # the first pass of a float32 O is its store; elsewhere it is one more of the sums
    asym_tile_bytes = tile * (out + (most_passes - 1 + apart) * SUM_BYTES)
    column_bytes = gemm.k * gemm.w_bits // 8
    shift_bytes = _scale_bytes(gemm)

    x_slice = e * m * min(config.kc, gemm.k)
    sums_round = SUM_BYTES * m * np.minimum(n_asym, others * config.cluster * config.tn)
    sums_stay = sums_round + x_slice <= l2_bytes
    apart_in_k = config.stagger and sizes.k_steps > config.w_stages
    together = np.minimum(config.w_stages, np.minimum(others, groups))
    readings = np.where(2 * x_slice > l2_bytes, together, 1) if apart_in_k else 1
    asym_waves = _up(groups, np.maximum(others // max(over.matrices, 1), 1))
    rows = np.where(
        e * m * gemm.k <= l2_bytes,
        m,
        _sym_rows(m, config, over, sym_items, clusters) + m * asym_waves * readings,
    )

    return Traffic(
        w_bytes=column_bytes * (n_sym * over.blocks + n_asym * over.matrices),
        scale_bytes=shift_bytes
        * (
            n_sym * over.blocks * (config.cluster if gemm.groups == 1 else 1)
            + n_asym * over.matrices
        ),
        x_load_bytes=e * gemm.k * (over.loaded_sym * sym + over.loaded_asym * groups),
        x_sum_bytes=_x_sum_bytes(gemm, config, over, sym, groups, pass_groups),
        o_store_bytes=out * m * (n_sym + n_asym),
        sums_store_bytes=added,
        sums_load_bytes=loaded,
        x_hbm_bytes=e * gemm.k * rows,
        o_hbm_bytes=out * m * (n_sym + n_asym),
        sums_hbm_bytes=np.where(sums_stay, 0, 2 * added),
        flops=2 * over.useful * gemm.k * (n_sym + n_asym),
        mma_flops=2
        * config.tm
        * config.tn
        * config.tk
        * sizes.k_steps
        * config.cluster
        * (sym_items + groups * over.tiles),
        sym_outputs=sym_items * config.cluster,
        asym_outputs=over.tiles * pass_groups * config.cluster // max(over.matrices, 1),
        sym_cta_steps=sym_rounds * sizes.k_steps,
        asym_cta_steps=asym_rounds * over.most_tiles * sizes.k_steps,
        sym_cta_store_bytes=sym_rounds * tile * out,
        asym_cta_store_bytes=asym_rounds * over.most_tiles * asym_tile_bytes,
        sym_cta_outputs=sym_rounds,
        asym_cta_outputs=asym_rounds * over.most_tiles * most_passes,
        sym_cta_link_bytes=sym_rounds * (column_bytes * config.tn // config.cluster),
        asym_cta_link_bytes=asym_rounds * (column_bytes * config.tn),
    )


def _rows(gemm: Gemm, config: Config, sizes: Counts, group_sizes: Any) -> _Rows:
    if gemm.experts is None or group_sizes is None:
        return _Rows(
            matrices=sizes.matrices,
            blocks=sizes.row_clusters,
            tiles=sizes.row_tiles * sizes.matrices,
            most_tiles=sizes.row_tiles,
            useful=gemm.m,
            loaded_sym=gemm.m,
            loaded_asym=gemm.m,
        )
    groups = np.asarray(group_sizes, np.int64)
    table, number, _ = block_table(groups, gemm.m, config.block_rows, xp=np)
    whole, experts, _ = block_table(groups, gemm.m, whole_rows(gemm.m), xp=np)
    blocks = {name: table[:number, i].astype(np.int64) for i, name in enumerate(FIELDS)}
    columns = {name: whole[:experts, i].astype(np.int64) for i, name in enumerate(FIELDS)}
    within = np.arange(number) - blocks["first"]
    tops = (blocks["base"] + within * config.block_rows)[:, None]
    tops = tops + config.tm * np.arange(config.cluster)
    tiles = -(-(columns["end"] - columns["base"]) // config.tm)
    reach = np.minimum(columns["base"] + tiles * config.tm, gemm.x_rows)
    return _Rows(
        matrices=int(experts),
        blocks=int(number),
        tiles=int(tiles.sum()),
        most_tiles=int(tiles.max(initial=0)),
        useful=int((columns["end"] - columns["begin"]).sum()),
        loaded_sym=int(np.clip(gemm.x_rows - tops, 0, config.tm).sum()),
        loaded_asym=int((reach - columns["base"]).sum()),
    )


def _scale_bytes(gemm: Gemm) -> int:
    if gemm.quantised is None:
        return 0
    return gemm.groups * (gemm.quantised.scale_itemsize + gemm.quantised.offset_itemsize)


def _x_sum_bytes(
    gemm: Gemm, config: Config, over: _Rows, sym: Count, groups: Count, pass_groups: Count
) -> Count:
    if gemm.quantised is None or gemm.quantised.offset_dtype is None:
        return np.zeros_like(sym)
    row_bytes = SUM_BYTES * (gemm.k // sum_size(config, gemm))
    # sums of all of X are loaded again in every pass, by each CTA of a cluster for itself
    asym = (pass_groups // max(over.matrices, 1) if gemm.groups == 1 else groups) * config.cluster
    return row_bytes * (over.loaded_sym * sym + over.loaded_asym * asym)


@functools.lru_cache(maxsize=1024)
def pass_table(config: Config, k_steps: int, unit: int = 1) -> np.ndarray:
    """Return the K passes of AsymGEMM's cluster i at index i mod ring."""
    table = [
        int(passes(config, k_steps, first_pass(config, k_steps, i, unit)))
        for i in range(config.w_stages // unit)
    ]
    return np.array(table, np.int64)


def _up(a: Count, b: Count) -> Count:
    return -(-a // b)


def _table(config: Config, gemm: Gemm, sizes: Counts) -> np.ndarray:
    if not config.asym:
        return np.ones(1, np.int64)
    return pass_table(config, sizes.k_steps, pass_unit(config, gemm))


def _passes(
    gemm: Gemm,
    config: Config,
    sizes: Counts,
    sym: Count,
    groups: Count,
    clusters: Count,
    matrices: int,
) -> tuple[Count, Count]:
    table = _table(config, gemm, sizes)
    if (table == table[0]).all():
        columns = gemm.n - np.minimum(sym * config.tn, gemm.n)
        return columns * table[0] * matrices, groups * table[0] * matrices
    strips = np.arange(sizes.strips)
    widths = np.minimum(config.tn, gemm.n - strips * config.tn)
    position = strips - sym[..., None]
    group = position // config.cluster
    leads = position % config.cluster == 0  # the first strip of a group
    columns, times = np.zeros_like(sym), np.zeros_like(sym)
    for matrix in range(matrices):
        item = matrix * groups[..., None] + group
        number = np.where(position >= 0, table[item % clusters[..., None] % len(table)], 0)
        columns = columns + (number * widths).sum(-1)
        times = times + (number * leads).sum(-1)
    return columns, times


def _most_passes(config: Config, gemm: Gemm, sizes: Counts, leading: Count) -> Count:
    running = np.maximum.accumulate(_table(config, gemm, sizes))
    return running[np.clip(leading, 1, len(running)) - 1]


def _sym_rows(m: Count, config: Config, over: _Rows, items: Count, clusters: Count) -> Count:
    blocks = np.maximum(over.blocks, 1)
    tall = config.block_rows
    rest = items % clusters
    last = np.where(rest >= blocks, m, np.maximum(m - (blocks - rest) * tall, 0))
    waves = items // clusters * m + np.where(rest > 0, last, 0)
    return np.where(clusters >= blocks, waves, items // blocks * m)
