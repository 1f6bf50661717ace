"""Schedule of the persistent launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.gemm.config import Config, sums_apart
from pallas_kernels.gemm.specs import ROW_MULTIPLE, Gemm
from pallas_kernels.integer_math import Int, ceil_div, div, rem, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Run-time scalars of a launch, in the kernel's order.

    The first `sym_strips` strips of tn columns go to SymGEMM, the others to AsymGEMM. The first
    `sym_clusters` of the `active_clusters` run SymGEMM, the others AsymGEMM, each its items in
    turn. Further clusters are idle (an emulated slice). Integers are Python's or traced int32.
    """

    sym_strips: Int
    sym_clusters: Int
    active_clusters: Int
    layer: Int

    @property
    def scalars(self) -> tuple[Int, ...]:
        """Values of the fields, as the kernel reads them."""
        return tuple(getattr(self, name) for name in PLAN_FIELDS)


PLAN_FIELDS = tuple(Plan.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a GEMM in tiles; with experts, an upper estimate for each (`Gemm.rows_each`)."""

    strips: int  # columns / tn
    row_tiles: int  # rows of a matrix / tm
    row_clusters: int  # blocks of rows, of all matrices
    k_steps: int  # K / tk
    matrices: int = 1  # that have rows


def counts(config: Config, gemm: Gemm) -> Counts:
    """Return `gemm`'s sizes in tiles of `config`, rounded up."""
    matrices, rows = min(gemm.experts or 1, gemm.m), gemm.rows_each
    return Counts(
        strips=-(-gemm.n // config.tn),
        row_tiles=-(-rows // config.tm),
        row_clusters=-(-rows // config.block_rows) * matrices,
        k_steps=-(-gemm.k // config.tk),
        matrices=matrices,
    )


def first_pass(config: Config, k_steps: int, cluster: Int, unit: int = 1) -> Int:
    """Return AsymGEMM's first pass in K steps, by cluster."""
    if k_steps <= config.w_stages:
        return k_steps
    if not config.stagger:
        return config.w_stages
    return (rem(cluster, config.w_stages // unit) + 1) * unit


def passes(config: Config, k_steps: int, first: Int) -> Int:
    """Return the K passes, the first of `first` steps."""
    return div(k_steps - first + config.w_stages - 1, config.w_stages) + 1


def sums_shape(config: Config, gemm: Gemm) -> tuple[int, int, int] | None:
    """Return the shape of AsymGEMM's float32 sums in device memory, or None."""
    if not sums_apart(config, gemm):
        return None
    sizes = counts(config, gemm)
    strips = round_up(sizes.strips, config.cluster) * (gemm.experts or 1)
    ctas = min(config.clusters * config.cluster, strips)
    slack = 0 if gemm.experts is None else ROW_MULTIPLE - 1
    rows, columns = round_up(gemm.m + slack, config.tm), config.tn
    return (ctas, columns, rows) if gemm.transposed else (ctas, rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Row of the block table: expert and rows."""

    expert: Int  # `experts` for the group of rows that belong to none
    base: Int  # where its first block begins: a multiple of 8, at most `begin`
    begin: Int  # its first row
    end: Int  # behind its last row
    first: Int  # number of its first block
    blocks: Int  # how many it has


FIELDS = tuple(Block.__dataclass_fields__)


def capacity(t: int, experts: int, block_rows: int, row_multiple: int = ROW_MULTIPLE) -> int:
    """Return the most blocks for any group sizes."""
    groups = min(experts + 1, t)
    slack = row_multiple - 1 + block_rows - 1
    return (t + groups * slack) // block_rows


def boundaries(group_sizes: Any, t: int, xp: Any) -> Any:
    """Return each group's end row, rows without expert last; all launchable."""
    ends = xp.minimum(xp.cumsum(xp.clip(group_sizes, 0, t)), t)
    return xp.append(ends, t).astype(np.int32)


def block_table(
    group_sizes: Any, t: int, block_rows: int, *, row_multiple: int = ROW_MULTIPLE, xp: Any
) -> tuple[Any, Any, Any]:
    """Return groups in blocks of `cluster * tm` rows from a multiple of 8."""
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


def whole_rows(t: int) -> int:
    """Return the rows of a block with an expert's, at any first row."""
    return t + ROW_MULTIPLE - 1


def place(item: Int, block: Block, strips: Int) -> tuple[Int, Int]:
    """Return (block within the expert, strip) of an item."""
    within = item - block.first * strips
    return rem(within, block.blocks), div(within, block.blocks)


def strip_groups(plan: Plan, strips: int, cluster: int) -> Int:
    """Return AsymGEMM's groups of strips, one for each CTA of a cluster."""
    return ceil_div(strips - plan.sym_strips, cluster)
