"""Epilogue: rounding and storing of a warpgroup's sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.config import accumulator, o_epilogue, sums_epilogue
from pallas_kernels.gemm.cta import Accumulate, Cta, by_flow
from pallas_kernels.gemm.items import Section
from pallas_kernels.gemm.rows import Item, OfExperts
from pallas_kernels.hopper import Piece
from pallas_kernels.integer_math import Int, dealt
from pallas_kernels.mosaic import Ref, plgpu


# Pieces go through staging slots in shared memory. Tiles of quantised weights are transposed on the
# way to O; partial sums keep the layout of the tensor cores, in float32.
def store_section(cta: Cta, acc: Any, section: Section) -> None:
    """Store a warpgroup's sums of a section; AsymGEMM adds those of its K passes."""
    item, number = section.strip, section.which
    top = cta.rows.tile_top(item, section.row_tile)
    whole = functools.partial(_part, acc)
    if isinstance(cta.passes, int):
        _store_o(cta, whole, item, top, plgpu.copy_smem_to_gmem)
        return

    def emit(source: Ref, target: Ref) -> None:
        lax.cond(
            number == 0,
            lambda: plgpu.copy_smem_to_gmem(source, target),
            lambda: cta.accumulate(source, target),
        )

    if cta.sums is None:
        _store_o(cta, whole, item, top, emit)
        return

    def add() -> None:
        store = sums_epilogue(cta.config, cta.gemm)
        width = accumulator(cta.config, cta.gemm)[1]
        for piece in store.walk(width):
            slot = _free(cta, cta.sums_staging, piece.slot)
            slot[...] = _part(acc, piece)
            plgpu.commit_smem()
            emit(slot, _sums_piece(cta, section.row_tile, piece))

    def total(piece: Piece) -> Any:
        sums = _sums_piece(cta, section.row_tile, piece)
        earlier = plgpu.load(sums, layout=plgpu.Layout.WGMMA, optimized=False)
        return _part(acc, piece) + earlier

    def store(value: Callable[[Piece], Any]) -> None:
        _store_o(cta, value, item, top, plgpu.copy_smem_to_gmem)

    by_flow(
        cta.is_sym,
        lambda: store(whole),
        lambda: lax.cond(number == section.last, lambda: store(total), add),
    )


def store_zeros(cta: Cta) -> None:
    """Write zeros to this CTA's share of rows without expert."""
    assert isinstance(cta.rows, OfExperts)
    rows = cta.rows
    store = o_epilogue(cta.config, cta.gemm)

    def zeros(piece: Piece) -> Any:  # noqa: ARG001 - all alike
        shape = (store.rows, store.columns)
        return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)

    turns = cta.config.turns

    @pl.loop(0, dealt(rows.empty_items(), turns, cta.turn))
    def _item(index: Int) -> None:
        item = rows.empty_item(index * turns + cta.turn)
        top = rows.tile_top(item, 0)
        _store_o(cta, zeros, item, top, plgpu.copy_smem_to_gmem)

    plgpu.wait_smem_to_gmem(0)


def _store_o(
    cta: Cta, value: Callable[[Piece], Any], item: Item, top: Int, emit: Accumulate
) -> None:
    store = o_epilogue(cta.config, cta.gemm)
    width = accumulator(cta.config, cta.gemm)[1]
    first_row, first_column = cta.own_begin, item.strip * cta.config.tn
    for piece in store.walk(width):
        slot = _free(cta, cta.staging, piece.slot)
        part = value(piece).astype(slot.dtype)
        if not cta.gemm.transposed:
            slot[...] = part
            row, column = first_row + piece.row, piece.column
        else:
            if cta.gemm.out_itemsize == 4:  # inference finds this layout for two bytes only
                part = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
            slot.transpose((1, 0))[...] = part
            row, column = piece.column, first_row + piece.row
        plgpu.commit_smem()
        columns = pl.ds(first_column + column, slot.shape[1])
        cta.rows.write(item, slot, cta.o, top + row, columns, emit)


def _free(cta: Cta, staging: Ref, slot: int) -> Ref:
    plgpu.wait_smem_to_gmem(staging.shape[1] - 1, wait_read_only=True)
    return staging.at[cta.warpgroup, slot]


def _sums_piece(cta: Cta, row_tile: Int, piece: Piece) -> Ref:
    assert cta.sums is not None
    place = cta.rows.at
    number = place.player * cta.config.cluster + place.rank
    row = cta.own_begin + piece.row
    column, below = piece.column, row_tile * cta.config.tm
    if cta.gemm.transposed:
        column = column + below
    else:
        row = row + below
    return cta.sums.at[number, pl.ds(row, piece.rows), pl.ds(column, piece.columns)]


def _part(acc: Any, piece: Piece) -> Any:
    return acc[piece.row : piece.row + piece.rows, piece.column : piece.column + piece.columns]
