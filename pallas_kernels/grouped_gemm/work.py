"""What the two kernels share: the items of a CTA's cluster, and storing some rows of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, div
from pallas_kernels.grouped_gemm.schedule import (
    ACTIVE_CLUSTERS,
    ALL_BLOCKS,
    EXPERT_BLOCKS,
    FIELDS,
    Block,
    items_of,
    place,
)
from pallas_kernels.grouped_gemm.specs import ROW_MULTIPLE
from pallas_kernels.mosaic import Ref, plgpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The share of one CTA: which items of the block table are its cluster's."""

    table: Ref
    scalars: Ref
    strips: int
    tm: int
    ranks: int  # CTAs of a cluster
    # where this CTA stands
    cluster: Int
    rank: Int

    @property
    def with_expert(self) -> Int:
        """Number of this cluster's items that have an expert; they come first."""
        return self._items(self.scalars[EXPERT_BLOCKS])

    @property
    def all(self) -> Int:
        """Number of this cluster's items, with those of rows without expert."""
        return self._items(self.scalars[ALL_BLOCKS])

    def item(self, number: Int) -> tuple[Block, Int, Int]:
        """(Its expert, first row of this CTA's tile, strip) of this cluster's item `number`."""
        item = number * self.scalars[ACTIVE_CLUSTERS] + self.cluster
        row = div(item, self.strips)
        block = Block(**{name: self.table[row, column] for column, name in enumerate(FIELDS)})
        within, strip = place(item, block, self.strips)
        tile = within * self.ranks + self.rank
        # The compiler has to know this to put tiles that begin there into swizzled shared memory.
        return block, pl.multiple_of(block.base + tile * self.tm, ROW_MULTIPLE), strip

    def _items(self, blocks: Int) -> Int:
        """Items of the first `blocks` blocks that are this cluster's."""
        active = self.scalars[ACTIVE_CLUSTERS]
        mine = items_of(blocks, self.strips, self.cluster, active)
        return jnp.where(self.cluster < active, mine, 0)


def store_rows(slot: Ref, o: Ref, block: Block, first: Int, rows: int, columns: Any) -> None:
    """Write those rows of a staged piece to O that are the block's expert's.

    A TMA store has a fixed shape, so n rows leave as the powers of two that n is the sum of.

    Args:
      slot: the piece in shared memory, in an order in which any rows can be stored.
      o: output.
      block: whose rows they are.
      first: row of O that the piece begins at.
      rows: of the piece, a power of two.
      columns: of O.
    """
    start = jnp.maximum(block.begin - first, 0)
    number = jnp.maximum(jnp.minimum(block.end - first, rows) - start, 0)
    size = rows
    while size:
        at = start + div(number, 2 * size) * (2 * size)  # behind the larger ones
        _store_if(number & size != 0, slot, o, at, first + at, size, columns)
        size //= 2

    @pl.when(number < rows)
    def _all_gone() -> None:
        # The rule of slots counts one store for each piece; here were fewer or more.
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _store_if(
    wanted: Any, slot: Ref, o: Ref, source: Int, target: Int, rows: int, columns: Any
) -> None:
    @pl.when(wanted)
    def _store() -> None:
        plgpu.copy_smem_to_gmem(slot.at[pl.ds(source, rows)], o.at[pl.ds(target, rows), columns])
