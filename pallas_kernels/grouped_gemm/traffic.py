"""What one launch moves and computes: exact counts for given group sizes.

They follow from the block table, and tests count what the kernel issues. One rule is an assumption,
unmeasured: the L2 keeps no line of host memory (if it does, less crosses the link).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from pallas_kernels.counting import dealt
from pallas_kernels.grouped_gemm.config import Config
from pallas_kernels.grouped_gemm.schedule import FIELDS, block_table, counts
from pallas_kernels.grouped_gemm.specs import GroupedGemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes, operations and items of a launch."""

    experts_read: int  # experts with rows
    w_readings: int  # how often the W of an expert crosses the link, summed over experts
    link_bytes: int  # W from host memory; a multicast tile counts once
    x_load_bytes: int  # X into shared memory, from L2 or HBM
    o_store_bytes: int  # O, zeros of rows without expert included
    flops: int  # useful ones
    mma_flops: int  # issued, with the padding of tiles and idle CTAs of a cluster
    items: int  # (block, strip) pairs that read W
    most_items: int  # of the busiest cluster


def launch_traffic(
    gemm: GroupedGemm,
    config: Config,
    group_sizes: Int[np.ndarray, " e"],
    *,
    active_clusters: int | None = None,
) -> Traffic:
    """Count what a launch moves and computes.

    W: e K N bytes for every block of an expert, of which one with rows r has ceil((r + s) / (tm
    cluster)); s < 8 is how far its first row is from a multiple of 8. None for experts without
    rows.

    Args:
      gemm: sizes and types.
      config: tiles.
      group_sizes: rows of each expert; concrete.
      active_clusters: that may work; all of the grid by default.
    """
    sizes = counts(config, gemm)
    table, expert_blocks, _ = block_table(
        np.asarray(group_sizes, np.int64), gemm.t, config.block_rows, xp=np
    )
    blocks = table[:expert_blocks].astype(np.int64)
    field = {name: blocks[:, column] for column, name in enumerate(FIELDS)}
    within = np.arange(expert_blocks) - field["first"]
    tops = (field["base"] + within * config.block_rows)[:, None] + config.tm * np.arange(
        config.cluster
    )
    loaded_rows = int(np.clip(gemm.padded_rows - tops, 0, config.tm).sum())
    experts = np.unique(field["expert"], return_index=True)[1]
    rows = int((field["end"] - field["begin"])[experts].sum())
    items = int(expert_blocks) * sizes.strips
    active = config.clusters if active_clusters is None else active_clusters
    return Traffic(
        experts_read=len(experts),
        w_readings=int(expert_blocks),
        link_bytes=int(expert_blocks) * gemm.in_itemsize * gemm.k * gemm.n,
        x_load_bytes=loaded_rows * sizes.strips * gemm.in_itemsize * gemm.k,
        o_store_bytes=gemm.out_itemsize * gemm.t * gemm.n,
        flops=2 * rows * gemm.k * gemm.n,
        mma_flops=2 * items * config.block_rows * config.tn * config.tk * sizes.k_steps,
        items=items,
        most_items=dealt(items, active, 0),
    )
