"""Rows of a work item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.schedule import FIELDS, Block, Counts, Plan, place, strip_groups
from pallas_kernels.gemm.specs import ROW_MULTIPLE
from pallas_kernels.integer_math import Int, ceil_div, dealt, div, rem, where
from pallas_kernels.mosaic import Ref, plgpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A CTA's work on a strip of W: consecutive row tiles."""

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
    def is_sym(self) -> Any:
        """Mark of a SymGEMM cluster: True if all are."""
        return self.cluster < self.plan.sym_clusters if self.config.asym else True

    @property
    def player(self) -> Int:
        """Index of this cluster among those of its dataflow."""
        return self.cluster - where(self.is_sym, 0, self.plan.sym_clusters)

    @property
    def players(self) -> Int:
        """Number of clusters of its dataflow."""
        plan = self.plan
        return where(self.is_sym, plan.sym_clusters, plan.active_clusters - plan.sym_clusters)

    @property
    def groups(self) -> Int:
        """Groups of strips of AsymGEMM."""
        return strip_groups(self.plan, self.sizes.strips, self.config.cluster)

    def share(self, items: Int) -> Int:
        """Count the dataflow's `items` that are this cluster's."""
        return _share(items, self.players, self.player)

    def number(self, number: Int) -> Int:
        """Number in the launch of this cluster's item."""
        return number * self.players + self.player

    def asym_strip(self, group: Int) -> Int:
        """Strip of this CTA in a group of strips."""
        return self.plan.sym_strips + group * self.config.cluster + self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMatrix:
    """Work items of a CTA's cluster with one matrix."""

    at: Place

    def items(self) -> Int:
        """This cluster's items: (block of rows, strip) pairs, or groups of strips."""
        position = self.at
        return position.share(
            where(
                position.is_sym,
                position.plan.sym_strips * position.sizes.row_clusters,
                position.groups,
            )
        )

    def item(self, number: Int) -> Item:
        """Return one item: a tile of this CTA, or a strip with all rows."""
        position, item = self.at, self.at.number(number)
        blocks = position.sizes.row_clusters
        tile = rem(item, blocks) * position.config.cluster + position.rank
        return Item(
            expert=None,
            strip=where(position.is_sym, div(item, blocks), position.asym_strip(item)),
            top=where(position.is_sym, tile * position.config.tm, 0),
            row_tiles=where(position.is_sym, 1, position.sizes.row_tiles),
        )

    def tile_top(self, item: Item, row_tile: Int) -> Int:
        """Return an item's first row of X; tiles are consecutive."""
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
        """Write the item's rows of a staged piece, from row `top` of O."""
        emit(slot, o.at[pl.ds(top, slot.shape[0]), columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class OfExperts(OneMatrix):
    """Work items of a CTA's cluster with experts, from the block tables."""

    table: Ref  # blocks of SymGEMM, then one block for each expert with rows
    whole: int  # row at which the latter begin
    expert_blocks: Int  # of SymGEMM's, those that have an expert; they come first
    all_blocks: Int
    experts: Int  # with rows

    def items(self) -> Int:
        """(block or expert, strip or group of strips) pairs."""
        position = self.at
        sym, asym = self.expert_blocks * position.plan.sym_strips, self.experts * position.groups
        return position.share(where(position.is_sym, sym, asym))

    def item(self, number: Int) -> Item:
        """A tile of an expert's block, or a strip with all rows of an expert."""
        position, item = self.at, self.at.number(number)
        strips = jnp.maximum(position.plan.sym_strips, 1)
        if position.is_sym is True:
            return self._tile(item, strips)
        groups = jnp.maximum(position.groups, 1)
        row = where(position.is_sym, div(item, strips), self.whole + div(item, groups))
        block = _block(self.table, row)
        within, strip = place(item, block, strips)
        tile = within * position.config.cluster + position.rank
        tiles = ceil_div(block.end - block.base, position.config.tm)
        return Item(
            expert=block.expert,
            strip=where(position.is_sym, strip, position.asym_strip(rem(item, groups))),
            top=block.base + where(position.is_sym, tile * position.config.tm, 0),
            row_tiles=where(position.is_sym, 1, tiles),
            begin=block.begin,
            end=block.end,
        )

    def tile_top(self, item: Item, row_tile: Int) -> Int:
        """Return the first row of X of an item's tile, from a multiple of 8."""
        return pl.multiple_of(item.top + row_tile * self.at.config.tm, ROW_MULTIPLE)

    def empty_items(self) -> Int:
        """(Block without expert, strip) pairs of this cluster: zeros."""
        items = (self.all_blocks - self.expert_blocks) * self.at.sizes.strips
        return _share(items, self.at.plan.active_clusters, self.at.cluster)

    def empty_item(self, number: Int) -> Item:
        """Return one (block without expert, strip) item."""
        item = number * self.at.plan.active_clusters + self.at.cluster
        strips = self.at.sizes.strips
        return self._tile(self.expert_blocks * strips + item, strips)

    def write(self, item: Item, slot: Ref, o: Ref, top: Int, columns: Any, emit: Any) -> None:
        """Write the item's rows, in powers of two for TMA."""
        rows = slot.shape[0]
        start = jnp.maximum(item.begin - top, 0)
        number = jnp.maximum(jnp.minimum(item.end - top, rows) - start, 0)
        size = rows
        while size:
            offset = start + div(number, 2 * size) * (2 * size)  # behind the larger ones
            _emit_if(number & size != 0, slot, o, offset, top + offset, size, columns, emit)
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
    mine = dealt(items, jnp.maximum(players, 1), player)
    return jnp.where(player < players, mine, 0)


def _emit_if(
    condition: Any, slot: Ref, o: Ref, source: Int, target: Int, rows: int, columns: Any, emit: Any
) -> None:
    @pl.when(condition)
    def _store() -> None:
        emit(slot.at[pl.ds(source, rows)], o.at[pl.ds(target, rows), columns])
