"""Load warpgroup: fills rings and awaits slots."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.cta import Cta, of_expert
from pallas_kernels.gemm.items import Section, each_section, sum_blocks, when
from pallas_kernels.gemm.rows import Item
from pallas_kernels.integer_math import Int, div, rem, where


# SymGEMM streams W with the X of one tile of rows; W runs ahead, across items. AsymGEMM loads the W
# tiles of a K pass, then the X of all rows for them. Each CTA of a cluster loads and multicasts a
# part of the shared tiles: W and scales in SymGEMM, X in AsymGEMM.
def load(cta: Cta) -> None:
    """Load all tiles of this CTA."""
    k_steps, items = cta.sizes.k_steps, cta.rows.items()
    w_tiles = items * k_steps

    def stream(section: Section) -> None:
        top = cta.rows.tile_top(section.strip, section.row_tile)
        turn = where(cta.is_sym, section.item, section.row_tile)

        @pl.loop(0, section.length)
        def _step(step: Int) -> None:
            begin, end = _w_tiles_at(cta, section, step, w_tiles)

            @pl.loop(begin, end)
            def _w(tile: Int) -> None:
                number = div(tile, k_steps)
                _load_w(cta, cta.rows.item(number), number, rem(tile, k_steps))

            _load_x(cta, top, section, step, rem(turn, cta.config.turns))
            if cta.sum_ring is not None:
                _load_sums(cta, top, section, step)

    tiles = each_section(cta, stream)
    # a CTA must not end while a peer can still arrive at its barriers
    cta.w_ring.drain(w_tiles)
    cta.x_ring.drain(tiles * k_steps * cta.config.x_steps)
    if cta.scale_ring is not None:
        cta.scale_ring.drain(items * cta.rings.blocks(k_steps))
    if cta.sum_ring is not None:
        cta.sum_ring.drain(tiles * sum_blocks(cta))


def _w_tiles_at(cta: Cta, section: Section, step: Int, all_tiles: Int) -> tuple[Int, Int]:
    ahead, tile = cta.config.w_ahead, section.w + step
    begin = jnp.where(tile == 0, 0, tile + ahead)
    end = jnp.minimum(tile + ahead + 1, all_tiles)
    is_first = (step == 0) & (section.row_tile == 0)
    pinned = section.w + jnp.where(is_first, section.length, 0)
    return where(cta.is_sym, begin, section.w), where(cta.is_sym, end, pinned)


def _load_w(cta: Cta, item: Item, number: Int, k_step: Int) -> None:
    tile, ring = number * cta.sizes.k_steps + k_step, cta.w_ring
    if cta.scale_ring is not None:
        is_first = rem(k_step, cta.rings.scale_steps) == 0
        when(is_first, lambda: _load_scales(cta, item, number, k_step))
    slot = ring.slot(tile)
    arrived = ring.arrived(slot, where(cta.is_sym, rem(number, cta.config.turns), 0))
    ring.await_free(tile)
    for source, target in cta.w_tile(item, k_step, ring.tiles.at[slot]):
        cta.copy(source, target, arrived, shared_in="sym")


def _load_scales(cta: Cta, item: Item, number: Int, k_step: Int) -> None:
    ring = cta.scale_ring
    assert ring is not None
    rows, block = cta.rings.scale_rows, lax.div(k_step, cta.rings.scale_steps)
    tile = number * cta.rings.blocks(cta.sizes.k_steps) + block
    slot = ring.slot(tile)
    ring.await_free(tile)
    groups = pl.ds(block * rows, rows)
    columns = pl.ds(item.strip * cta.config.tn, cta.config.tn)
    # a column's only scale is too short to be shared
    shared_in = "sym" if cta.gemm.groups > 1 else None
    for source, tiles in ((cta.scales, ring.tiles), (cta.offsets, cta.offset_tiles)):
        if source is not None and tiles is not None:
            matrix = of_expert(source, item).at[groups, columns]
            cta.copy(matrix, tiles.at[slot], ring.arrived(slot), shared_in)


def _load_x(cta: Cta, top: Int, section: Section, step: Int, turn: Int) -> None:
    config, ring = cta.config, cta.x_ring
    for part in range(config.x_steps):
        tile = (section.x + step) * config.x_steps + part
        slot = ring.slot(tile)
        ring.await_free(tile)
        source = cta.x_tile(top, (section.start + step) * config.tk + part * config.x_columns)
        cta.copy(source, ring.tiles.at[slot], ring.arrived(slot, turn), shared_in="asym")


def _load_sums(cta: Cta, top: Int, section: Section, step: Int) -> None:
    steps, rows = cta.rings.scale_steps, cta.rings.sum_rows
    ring, x_sums, k_step = cta.sum_ring, cta.x_sums, section.start + step
    assert ring is not None
    assert x_sums is not None

    @pl.when(step == 0 if cta.gemm.groups == 1 else rem(k_step, steps) == 0)
    def _sums() -> None:
        block = div(k_step, steps)
        tile = section.sums + block - div(section.start, steps)
        slot = ring.slot(tile)
        ring.await_free(tile)
        source = x_sums.at[pl.ds(block * rows, rows), pl.ds(top, cta.config.tm)]
        cta.copy(source, ring.tiles.at[slot, pl.ds(0, rows)], ring.arrived(slot), None)
