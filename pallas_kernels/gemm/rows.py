"""Rows of a work item: its matrix or expert, and the first rows of its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, ceil_div, dealt, div, rem
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.schedule import (
    FIELDS,
    Block,
    Counts,
    Plan,
    place,
    strip_groups,
)
from pallas_kernels.gemm.specs import ROW_MULTIPLE
from pallas_kernels.mosaic import Ref, plgpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A CTA's work on one strip of W: some consecutive tiles of rows."""

    expert: Int | None  # None where there is one matrix
    strip: Int
    top: Int  # row of X at which the first tile begins
    row_tiles: Int
    begin: Int = 0  # rows of O that are the item's, where there are experts
    end: Int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a CTA in the launch."""

    config: Config
    sizes: Counts
    plan: Plan
    cluster: Int
    rank: Int

    @property
    def groups(self) -> Int:
        """Groups of strips of AsymGEMM."""
        return strip_groups(self.plan, self.sizes.strips, self.config.cluster)

    def sym_share(self, items: Int) -> Int:
        """Return the number of SymGEMM's `items` that are this cluster's."""
        return _share(items, self.plan.sym_clusters, self.cluster)

    def asym_share(self, items: Int) -> Int:
        """Return the number of AsymGEMM's `items` that are this cluster's."""
        plan = self.plan
        players = plan.active_clusters - plan.sym_clusters
        return _share(items, players, self.cluster - plan.sym_clusters)

    def sym_number(self, number: Int) -> Int:
        """Number in the launch of one of this cluster's items of SymGEMM."""
        return number * self.plan.sym_clusters + self.cluster

    def asym_number(self, number: Int) -> Int:
        """Number in the launch of one of this cluster's items of AsymGEMM."""
        plan = self.plan
        players = plan.active_clusters - plan.sym_clusters
        return number * players + self.cluster - plan.sym_clusters

    def asym_strip(self, group: Int) -> Int:
        """Strip of this CTA in a group of strips."""
        return self.plan.sym_strips + group * self.config.cluster + self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMatrix:
    """Work items of a CTA's cluster if all rows share one matrix."""

    at: Place

    def sym_items(self) -> Int:
        """Number of this cluster's SymGEMM items: (block of rows, strip) pairs."""
        return self.at.sym_share(self.at.plan.sym_strips * self.at.sizes.row_clusters)

    def sym_item(self, number: Int) -> Item:
        """Return one SymGEMM item, a single tile of this CTA.

        Neighbours in time share a strip of W: if the L2 keeps host lines, they hit.
        """
        at, item = self.at, self.at.sym_number(number)
        blocks = at.sizes.row_clusters
        row_tile = rem(item, blocks) * at.config.cluster + at.rank
        return Item(expert=None, strip=div(item, blocks), top=row_tile * at.config.tm, row_tiles=1)

    def asym_items(self) -> Int:
        """Number of this cluster's AsymGEMM items: groups of strips."""
        return self.at.asym_share(self.at.groups)

    def asym_item(self, number: Int) -> Item:
        """Return one AsymGEMM item, a strip with all rows of a matrix.

        In the last group some CTAs may have a strip beyond N: they load zeros, TMA clips their
        stores, and they still multicast their share of X.
        """
        strip = self.at.asym_strip(self.at.asym_number(number))
        return Item(expert=None, strip=strip, top=0, row_tiles=self.at.sizes.row_tiles)

    def tile_top(self, item: Item, row_tile: Int) -> Int:
        """Return the first row of X of an item's tile; tiles are consecutive."""
        return item.top + row_tile * self.at.config.tm

    def write(
        self,
        item: Item,  # noqa: ARG002 - TMA clips what lies beyond the edges of O
        slot: Ref,
        o: Ref,
        top: Int,
        columns: Any,
        emit: Any,
    ) -> None:
        """Write the item's rows of a staged piece, whose first row is row `top` of O."""
        emit(slot, o.at[pl.ds(top, slot.shape[0]), columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class OfExperts(OneMatrix):
    """Work items of a CTA's cluster if rows belong to experts, from the block tables."""

    table: Ref  # blocks of SymGEMM
    whole: Ref  # one block for each expert with rows
    expert_blocks: Int  # of `table`, those that have an expert; they come first
    all_blocks: Int
    experts: Int  # with rows

    def sym_items(self) -> Int:
        """(Block of an expert, strip) pairs."""
        return self.at.sym_share(self.expert_blocks * self.at.plan.sym_strips)

    def sym_item(self, number: Int) -> Item:
        """A tile of an expert's block."""
        strips = jnp.maximum(self.at.plan.sym_strips, 1)
        return self._tile(self.at.sym_number(number), strips)

    def asym_items(self) -> Int:
        """(Expert, group of strips) pairs."""
        return self.at.asym_share(self.experts * self.at.groups)

    def asym_item(self, number: Int) -> Item:
        """A strip with all rows of an expert; neighbours in time share X."""
        item, groups = self.at.asym_number(number), jnp.maximum(self.at.groups, 1)
        block = _block(self.whole, div(item, groups))
        return Item(
            expert=block.expert,
            strip=self.at.asym_strip(rem(item, groups)),
            top=block.base,
            row_tiles=ceil_div(block.end - block.base, self.at.config.tm),
            begin=block.begin,
            end=block.end,
        )

    def tile_top(self, item: Item, row_tile: Int) -> Int:
        """Return the first row of X of an item's tile; tiles are consecutive from a multiple of 8.

        The compiler needs the multiple to load such tiles into swizzled shared memory.
        """
        return pl.multiple_of(item.top + row_tile * self.at.config.tm, ROW_MULTIPLE)

    def empty_items(self) -> Int:
        """(Block without expert, strip) pairs of this cluster: zeros, whatever its dataflow."""
        items = (self.all_blocks - self.expert_blocks) * self.at.sizes.strips
        return _share(items, self.at.plan.active_clusters, self.at.cluster)

    def empty_item(self, number: Int) -> Item:
        """Return one (block without expert, strip) item."""
        item = number * self.at.plan.active_clusters + self.at.cluster
        strips = self.at.sizes.strips
        return self._tile(self.expert_blocks * strips + item, strips)

    def write(self, item: Item, slot: Ref, o: Ref, top: Int, columns: Any, emit: Any) -> None:
        """Write those rows of the piece that are the item's.

        A TMA store has a fixed shape, so n rows leave as the powers of two that n is the sum of.
        """
        rows = slot.shape[0]
        start = jnp.maximum(item.begin - top, 0)
        number = jnp.maximum(jnp.minimum(item.end - top, rows) - start, 0)
        size = rows
        while size:
            at = start + div(number, 2 * size) * (2 * size)  # behind the larger ones
            _emit_if(number & size != 0, slot, o, at, top + at, size, columns, emit)
            size //= 2

        @pl.when(number < rows)
        def _all_gone() -> None:
            # The rule of slots counts one store for each piece; here were fewer or more.
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    def _tile(self, item: Int, strips: Int) -> Item:
        block = _block(self.table, div(item, strips))
        within, strip = place(item, block, strips)
        tile = within * self.at.config.cluster + self.at.rank
        return Item(
            expert=block.expert,
            strip=strip,
            top=block.base + tile * self.at.config.tm,
            row_tiles=1,
            begin=block.begin,
            end=block.end,
        )


def _block(table: Ref, row: Int) -> Block:
    return Block(**{name: table[row, column] for column, name in enumerate(FIELDS)})


def _share(items: Int, players: Int, player: Int) -> Int:
    """Return the number of `items` of the `player`, 0 if there is no such player."""
    mine = dealt(items, jnp.maximum(players, 1), player)
    return jnp.where(player < players, mine, 0)


def _emit_if(
    wanted: Any, slot: Ref, o: Ref, source: Int, target: Int, rows: int, columns: Any, emit: Any
) -> None:
    @pl.when(wanted)
    def _store() -> None:
        emit(slot.at[pl.ds(source, rows)], o.at[pl.ds(target, rows), columns])
