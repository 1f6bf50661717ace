"""What one launch moves and computes: exact counts for given group sizes.

They follow from the block table, and tests count what the kernel issues. One rule is an assumption,
unmeasured: the L2 keeps no line of host memory (if it does, less crosses the link).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from pallas_kernels.counting import dealt
from pallas_kernels.grouped_gemm.config import Config
from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm
from pallas_kernels.grouped_gemm.schedule import FIELDS, block_table, counts
from pallas_kernels.grouped_gemm.specs import GroupedGemm
from pallas_kernels.quantized_gemm import Config as QuantizedConfig
from pallas_kernels.quantized_gemm import launch_traffic as traffic_of_one
from pallas_kernels.quantized_gemm.schedule import counts as quantized_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes, operations and items of a launch."""

    experts_read: int  # experts with rows
    w_readings: int  # how often the W of an expert crosses the link, summed over experts
    link_bytes: int  # W, and its scales and offsets, from host memory; a multicast tile counts once
    x_load_bytes: int  # X into shared memory, from L2 or HBM
    sum_bytes: int  # sums of X for offsets, into shared memory, from L2 or HBM
    o_store_bytes: int  # O, zeros of rows without expert included
    flops: int  # useful ones
    mma_flops: int  # issued, with the padding of tiles and idle CTAs of a cluster
    items: int  # (block, strip) pairs that read W
    most_items: int  # of the busiest cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What a launch of either kind moves for a block of rows, and for a row of one."""

    k: int
    n: int
    padded_rows: int  # of X
    out_itemsize: int
    strips: int
    w_bytes: int  # of a block
    x_bytes: int  # of a row, for all strips
    sum_bytes: int  # of a row, for all strips
    mma_flops: int  # of a block


def launch_traffic(
    gemm: GroupedGemm | QuantizedGroupedGemm,
    config: Config | QuantizedConfig,
    group_sizes: Int[np.ndarray, " e"],
    *,
    active_clusters: int | None = None,
) -> Traffic:
    """Count what a launch moves and computes.

    W: all of its bytes for every block of an expert, of which one with rows r has ceil((r + s) /
    (tm cluster)); s < 8 is how far its first row is from a multiple of 8. None for experts without
    rows.

    Args:
      gemm: sizes and types.
      config: tiles, of the type that goes with `gemm`.
      group_sizes: rows of each expert; concrete.
      active_clusters: that may work; all of the grid by default.
    """
    block_rows = config.tm * config.cluster
    sizes = _sizes(gemm, config)
    table, expert_blocks, _ = block_table(
        np.asarray(group_sizes, np.int64), gemm.t, block_rows, xp=np
    )
    blocks = table[:expert_blocks].astype(np.int64)
    field = {name: blocks[:, column] for column, name in enumerate(FIELDS)}
    within = np.arange(expert_blocks) - field["first"]
    tops = (field["base"] + within * block_rows)[:, None] + config.tm * np.arange(config.cluster)
    loaded_rows = int(np.clip(sizes.padded_rows - tops, 0, config.tm).sum())
    experts = np.unique(field["expert"], return_index=True)[1]
    rows = int((field["end"] - field["begin"])[experts].sum())
    items = int(expert_blocks) * sizes.strips
    active = config.clusters if active_clusters is None else active_clusters
    return Traffic(
        experts_read=len(experts),
        w_readings=int(expert_blocks),
        link_bytes=int(expert_blocks) * sizes.w_bytes,
        x_load_bytes=loaded_rows * sizes.x_bytes,
        sum_bytes=loaded_rows * sizes.sum_bytes,
        o_store_bytes=sizes.out_itemsize * gemm.t * sizes.n,
        flops=2 * rows * sizes.k * sizes.n,
        mma_flops=int(expert_blocks) * sizes.mma_flops,
        items=items,
        most_items=dealt(items, active, 0),
    )


def _sizes(gemm: GroupedGemm | QuantizedGroupedGemm, config: Config | QuantizedConfig) -> _Sizes:
    if isinstance(gemm, QuantizedGroupedGemm) and isinstance(config, QuantizedConfig):
        block_rows = config.tm * config.cluster
        block = traffic_of_one(replace(gemm.expert, m=block_rows), config)
        return _Sizes(
            k=gemm.expert.k,
            n=gemm.expert.n,
            padded_rows=gemm.expert.m,
            out_itemsize=gemm.expert.out_itemsize,
            strips=quantized_counts(config, gemm.expert).strips,
            w_bytes=block.link_bytes,
            x_bytes=block.x_load_bytes // block_rows,
            sum_bytes=block.sum_bytes // block_rows,
            mma_flops=block.mma_flops,
        )
    if isinstance(gemm, GroupedGemm) and isinstance(config, Config):
        sizes = counts(config, gemm)
        return _Sizes(
            k=gemm.k,
            n=gemm.n,
            padded_rows=gemm.padded_rows,
            out_itemsize=gemm.out_itemsize,
            strips=sizes.strips,
            w_bytes=gemm.in_itemsize * gemm.k * gemm.n,
            x_bytes=sizes.strips * gemm.in_itemsize * gemm.k,
            sum_bytes=0,
            mma_flops=2 * sizes.strips * config.block_rows * config.tn * config.tk * sizes.k_steps,
        )
    raise ValueError(
        f"config of type {type(config).__module__}: expected the one that goes with "
        f"{type(gemm).__name__}"
    )
