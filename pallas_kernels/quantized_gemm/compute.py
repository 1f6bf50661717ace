"""What a compute warpgroup does: weights into registers, products, scales and offsets, sums.

A column's only scale is applied to its finished sum, and a group's to the sum of the group, both
in float32. With an offset for each scale, w = s q + o, the sum of a group is s (q . x) + o (1 . x):
the second part is the offset times the sum of the same X, which comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, rem
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.mosaic import Ref, plgpu
from pallas_kernels.quantized_gemm.config import (
    piece_size,
    scale_rows,
    scale_stages,
    scale_steps,
    scales_pieces,
    scales_weights,
)
from pallas_kernels.quantized_gemm.conversion import operand, piece, scaled, widest
from pallas_kernels.quantized_gemm.cta import Cta


def compute(cta: Cta) -> None:
    """Make the items of a CTA, as one of its compute warpgroups."""
    if scales_weights(cta.config, cta.gemm):
        make = _of_scaled_weights
    elif scales_pieces(cta.config, cta.gemm):
        make = _of_pieces
    else:
        make = _of_groups

    @pl.loop(0, cta.items)
    def _item(item: Int) -> None:
        cta.store(item, make(cta, item))

    plgpu.wait_smem_to_gmem(0)


def _of_scaled_weights(cta: Cta, item: Int) -> Any:
    """Return the sums of an item; weights are scaled, rounded and multiplied."""
    sizes = cta.sizes

    def whole(acc: Ref) -> Any:
        @pl.loop(0, sizes.groups)
        def _group(group: Int) -> None:
            scale = _with_scales(cta, item, group, lambda slot, row: _scale(cta, slot, row))
            _multiply(cta, acc, item * sizes.k_steps + group * sizes.group_steps, scale)

        return acc[...]

    return pl.run_scoped(whole, plgpu.ACC(_shape(cta), jnp.float32))


def _of_groups(cta: Cta, item: Int) -> Any:
    """Return the sums of an item; a group is whole K steps, and its sums are scaled at its end."""
    sizes = cta.sizes

    def added(total: Any | None, group: Int) -> Any:
        def sums(acc: Ref) -> Any:
            start = item * sizes.k_steps + group * sizes.group_steps
            _multiply(cta, acc, start, None)
            return acc[...]

        partial = pl.run_scoped(sums, plgpu.ACC(_shape(cta), jnp.float32))

        def use(slot: Int, row: Int) -> Any:
            return _shifted(cta, _sum(total, partial, _scale(cta, slot, row)), slot, row, row)

        return _with_scales(cta, item, group, use)

    total = added(None, 0)
    if sizes.groups == 1:
        return total
    return lax.fori_loop(1, sizes.groups, lambda group, total: added(total, group), total)


def _of_pieces(cta: Cta, item: Int) -> Any:
    """Return the sums of an item; sums of pieces of a K step are scaled.

    The products of a piece end before their sums are scaled; the tensor cores meanwhile have those
    of the other warpgroup.
    """
    config, sizes = cta.config, cta.sizes
    width, steps = piece_size(config, cta.gemm), scale_steps(config, cta.gemm)
    pieces_of_step, pieces_of_group = config.tk // width, cta.gemm.group_size // width

    def added(step: Int, total: Any) -> Any:
        counter = item * sizes.k_steps + step
        slot, within = _scale_slot(cta, item, lax.div(step, steps)), rem(step, steps)
        stored = _stored(cta, counter)
        _await_scales(cta, slot, within == 0)
        for number in range(pieces_of_step):
            k = number * width
            x_counter = counter * config.x_steps + k // config.x_columns
            x_slot = rem(x_counter, config.x_stages)
            if k % config.x_columns == 0:
                plgpu.barrier_wait(cta.x_full.at[x_slot])

            def products(acc: Ref, number: int = number, x_slot: Int = x_slot, k: int = k) -> Any:
                _product(cta, acc, _converted(cta, stored, number, width), x_slot, k)
                return acc[...]

            partial = pl.run_scoped(products, plgpu.ACC(_shape(cta), jnp.float32))
            if (k + width) % config.x_columns == 0:
                _release_x(cta, x_counter)
            sum_row = within * pieces_of_step + number
            row = lax.div(sum_row, pieces_of_group)

            def add(total: Any, partial: Any = partial, row: Int = row, at: Int = sum_row) -> Any:
                return _shifted(cta, _sum(total, partial, _scale(cta, slot, row)), slot, row, at)

            total = _done(cta, add, total)
        _release_scales(cta, slot, (within == steps - 1) | (step == sizes.k_steps - 1))
        return total

    zeros = plgpu.layout_cast(jnp.zeros(_shape(cta), jnp.float32), plgpu.Layout.WGMMA)
    return lax.fori_loop(0, sizes.k_steps, added, zeros)


def _done(cta: Cta, add: Callable[[Any], Any], total: Any) -> Any:
    """Return `add(total)`, added before the next product begins.

    The compiler would put additions off until after the products of other pieces, whose sums then
    do not fit into the registers of large tiles. It cannot where they stand in a loop that it does
    not know to be taken once.
    """
    if cta.config.tm <= WGMMA_ROWS:
        return add(total)
    once = jnp.minimum(cta.plan.active_clusters, 1)  # there is no item without a cluster
    return lax.fori_loop(0, once, lambda _, total: add(total), total)


def _shape(cta: Cta) -> tuple[int, int]:
    return cta.config.warpgroup_columns, cta.config.tm


def _multiply(cta: Cta, acc: Ref, start: Int, scale: Any | None) -> None:
    """Add the products of one group to `acc`, from K step number `start` of this CTA on.

    A product reads its weights from registers until it is done, so a step ends when its products
    have: the next step overwrites those registers. The tensor cores meanwhile have the products of
    the other warpgroup.
    """
    config, x_steps = cta.config, cta.config.x_steps

    @pl.loop(0, cta.sizes.group_steps)
    def _step(step: Int) -> None:
        counter = start + step
        width = min(config.x_columns, widest(cta.gemm.kind))
        each = config.x_columns // width
        stored = _stored(cta, counter)
        parts = [_converted(cta, stored, number, width) for number in range(config.tk // width)]
        if scale is not None:
            parts = [scaled(part, scale) for part in parts]
        for number in range(x_steps):
            x_counter = counter * x_steps + number
            slot = rem(x_counter, config.x_stages)
            plgpu.barrier_wait(cta.x_full.at[slot])
            for place in range(number * each, (number + 1) * each):
                _product(cta, acc, parts[place], slot, place * width)
            if number:
                plgpu.wgmma_wait(each)  # the products before these are done, their X tile is free
                _release_x(cta, x_counter - 1)
        plgpu.wgmma_wait(0)
        _release_x(cta, (counter + 1) * x_steps - 1)


def _stored(cta: Cta, counter: Int) -> Any:
    """Read this warpgroup's rows of a W tile, and free it."""
    slot = rem(counter, cta.config.w_stages)
    plgpu.barrier_wait(cta.w_full.at[slot])
    stored = cta.w_tiles[slot, cta.own]
    # All warps have read their rows (at a cluster's barrier one thread arrives for them), and TMA
    # may write after that.
    plgpu.commit_smem()
    plgpu.barrier_arrive(cta.w_empty.at[slot])
    return stored


def _converted(cta: Cta, stored: Any, number: int, width: int) -> Any:
    """Return a piece of a K step in the type of X."""
    dtype = jnp.dtype(cta.gemm.dtype)
    return piece(stored, number, kind=cta.gemm.kind, dtype=dtype, width=width)


def _product(cta: Cta, acc: Ref, weights: Any, slot: Int, k: int) -> None:
    """Add to `acc` the product of the weights of a K step from number `k` on with their X."""
    width, place = weights.shape[1], k % cta.config.x_columns
    detour = None if cta.detour is None else cta.detour.at[cta.warpgroup]
    x_tile = cta.x_tiles.at[slot, :, pl.ds(place, width)]
    plgpu.wgmma(acc, operand(weights, detour, k), x_tile.transpose((1, 0)))


def _release_x(cta: Cta, x_counter: Int) -> None:
    plgpu.barrier_arrive(cta.x_empty.at[rem(x_counter, cta.config.x_stages)])


def _scale(cta: Cta, slot: Int, row: Int) -> Any:
    """Return this warpgroup's scales of a row in shared memory as float32."""
    return _column(cta.scale_rows.at[slot, row, cta.own])


def _column(row: Ref) -> Any:
    """Read one number for each column of O, in the layout of a column's accumulators."""
    layout = plgpu.Layout.WGMMA.reduce(1)
    return plgpu.load(row, layout=layout, optimized=False).astype(jnp.float32)


def _sum(total: Any | None, partial: Any, scale: Any) -> Any:
    """Return `total`, None for none so far, with `partial` added, its columns scaled."""
    product = partial * lax.broadcast_in_dim(scale, partial.shape, (0,))
    return product if total is None else total + product


def _shifted(cta: Cta, total: Any, slot: Int, row: Int, sum_row: Int) -> Any:
    """Return `total` with the product of offsets and sums of X added, if there are offsets.

    Args:
      cta: this CTA.
      total: float32 sums of a warpgroup [columns, rows].
      slot: of the rings of offsets and sums.
      row: of the slot, for offsets.
      sum_row: of the slot, for sums of the columns of X that the offsets belong to.
    """
    if cta.offset_rows is None:
        return total
    offsets = _column(cta.offset_rows.at[slot, row, cta.own])
    sums = plgpu.load(
        cta.sum_rows.at[slot, sum_row],
        layout=plgpu.Layout.WGMMA.reduce(0),
        optimized=False,
    )
    return total + (
        lax.broadcast_in_dim(offsets, total.shape, (0,))
        * lax.broadcast_in_dim(sums, total.shape, (1,))
    )


def _with_scales(cta: Cta, item: Int, group: Int, use: Callable[[Int, Int], Any]) -> Any:
    """Return `use(slot, row)` of a group's scales; wait for them if they are new, free the last."""
    rows = scale_rows(cta.config, cta.gemm)
    block, row = (group, 0) if rows == 1 else (lax.div(group, rows), rem(group, rows))
    slot = _scale_slot(cta, item, block)
    _await_scales(cta, slot, row == 0)
    result = use(slot, row)
    _release_scales(cta, slot, (row == rows - 1) | (group == cta.sizes.groups - 1))
    return result


def _scale_slot(cta: Cta, item: Int, block: Int) -> Int:
    number = item * cta.scale_blocks + block
    return rem(number, scale_stages(cta.config, cta.gemm))


def _await_scales(cta: Cta, slot: Int, is_first: Any) -> None:
    @pl.when(is_first)
    def _() -> None:
        plgpu.barrier_wait(cta.scale_full.at[slot])


def _release_scales(cta: Cta, slot: Int, is_last: Any) -> None:
    @pl.when(is_last)
    def _() -> None:
        plgpu.commit_smem()  # as for W
        plgpu.barrier_arrive(cta.scale_empty.at[slot])
