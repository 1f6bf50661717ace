"""Who computes what: blocks of rows, and how (block, strip) items are dealt out to clusters.

Experts own consecutive rows of X. Each one's rows are cut into *blocks* of `cluster * tm` rows; the
first block begins at the expert's first row rounded down to a multiple of 8, where TMA can begin to
load, and the up to seven rows before are somebody else's: computed and not stored. The rows behind
the last expert form one more group, which has no W and whose output is zero.

Columns are cut into strips of tn. An *item* is one block times one strip. Items run over the blocks
of an expert first, then over the strips, then over the experts, and are dealt out in turn: the
clusters that work at the same moment share strips of W (if the L2 keeps lines of host memory, it
serves them) and an expert with many rows occupies every SM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.counting import Int, dealt, div, rem
from pallas_kernels.grouped_gemm.config import Config
from pallas_kernels.grouped_gemm.specs import ROW_MULTIPLE, GroupedGemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A row of the block table: what a CTA must know of the expert that a block belongs to."""

    expert: Int  # `experts` for the group of rows that belong to none
    base: Int  # where its first block begins: a multiple of 8, at most `begin`
    begin: Int  # its first row
    end: Int  # behind its last row
    first: Int  # number of its first block
    blocks: Int  # how many it has


FIELDS = tuple(Block.__dataclass_fields__)

EXPERT_BLOCKS, ALL_BLOCKS, ACTIVE_CLUSTERS, LAYER = range(4)  # places in the launch's scalars


def capacity(t: int, experts: int, block_rows: int, row_multiple: int = ROW_MULTIPLE) -> int:
    """Return how many blocks there can be at most, whatever the group sizes.

    A group of r > 0 rows has at most (r + row_multiple - 1 + block_rows - 1) / block_rows of them;
    there are at most min(experts + 1, t) groups with rows.
    """
    groups = min(experts + 1, t)
    slack = row_multiple - 1 + block_rows - 1
    return (t + groups * slack) // block_rows


def boundaries(group_sizes: Any, t: int, xp: Any = jnp) -> Any:
    """Return where each of the groups ends, with the rows of no expert as the last one.

    Sizes below zero count as zero, and rows behind t are cut off: every value is launchable.
    """
    ends = xp.minimum(xp.cumsum(xp.clip(group_sizes, 0, t)), t)
    return xp.append(ends, t).astype(np.int32)


def block_table(
    group_sizes: Any, t: int, block_rows: int, *, row_multiple: int = ROW_MULTIPLE, xp: Any = jnp
) -> tuple[Any, Any, Any]:
    """Cut every group into blocks.

    Args:
      group_sizes: int32 [experts], any values.
      t: rows of X.
      block_rows: of one block.
      row_multiple: where blocks may begin.
      xp: jax.numpy, or numpy for concrete sizes.

    Returns:
      The table int32 [capacity, 6] with one `Block` for each block (its surplus rows mean
      nothing), the number of blocks of experts, and of all blocks.
    """
    ends = boundaries(group_sizes, t, xp)
    begins = xp.append(xp.zeros(1, np.int32), ends[:-1])
    bases = begins // row_multiple * row_multiple
    blocks = xp.where(ends > begins, -(-(ends - bases) // block_rows), 0)
    behind = xp.cumsum(blocks)
    number = xp.arange(capacity(t, len(group_sizes), block_rows, row_multiple), dtype=np.int32)
    # the group of a block: how many groups end at or before it (one comparison each, no search)
    group = xp.minimum((behind[None, :] <= number[:, None]).sum(1), len(group_sizes))
    of_group = xp.stack([bases, begins, ends, behind - blocks, blocks], 1)
    table = xp.concatenate([group[:, None], of_group[group]], 1).astype(np.int32)
    total = behind[-1].astype(np.int32)
    return table, (behind[-1] - blocks[-1]).astype(np.int32), total


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a grouped GEMM in tiles."""

    strips: int  # columns / tn
    k_steps: int  # K / tk


def counts(config: Config, gemm: GroupedGemm) -> Counts:
    """Return the sizes of `gemm` in the tiles of `config`, each rounded up."""
    return Counts(strips=-(-gemm.n // config.tn), k_steps=-(-gemm.k // config.tk))


def items_of(blocks: Int, strips: int, cluster: Int, active: Int) -> Int:
    """Return how many of the items of the first `blocks` blocks a working cluster gets."""
    return dealt(blocks * strips, active, cluster)


def place(item: Int, block: Block, strips: int) -> tuple[Int, Int]:
    """Return (block within the expert, strip) of an item of the expert of `block`.

    The item must be one of that expert: `block` is row `item // strips` of the table.
    """
    within = item - block.first * strips
    return rem(within, block.blocks), div(within, block.blocks)
