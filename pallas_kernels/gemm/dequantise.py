"""Sums of a section with quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.config import accumulator, piece_size, scales_pieces, scales_weights
from pallas_kernels.gemm.conversion import operand, piece, scaled, widest
from pallas_kernels.gemm.cta import Cta, Ring
from pallas_kernels.gemm.items import Section, both, when
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.integer_math import Int, rem
from pallas_kernels.mosaic import Ref, plgpu


# wgmma converts nothing, and only its left operand may be in registers. So the product is computed
# transposed, O^T[n, m] = W[n, k] X[m, k]^T: a compute warpgroup reads its rows of a W tile into
# registers, converts them to the type of X (exact) and multiplies them with an X tile that stays in
# shared memory. In interpret mode the converted tile goes through shared memory (`detour`).
#
# A column's only scale is applied to its finished sum, and a group's to the sum of the group, both
# in float32. With an offset for each scale, w = s q + o, the sum of a group is s (q . x) + o (1 .
# x): the second part is the offset times the sum of the same X, which the launch computes
# beforehand.
def sums_of_converted(cta: Cta, section: Section) -> Any:
    """Return a section's sums, scaled and with offsets."""
    if scales_weights(cta.config, cta.gemm):
        return _of_scaled_weights(cta, section)
    if scales_pieces(cta.config, cta.gemm):
        return _of_pieces(cta, section)
    return _of_groups(cta, section)


def _of_scaled_weights(cta: Cta, section: Section) -> Any:
    first, number, steps = _groups(cta, section)

    def whole(acc: Ref) -> Any:
        @pl.loop(0, number)
        def _group(group: Int) -> None:
            scale = _with_scales(
                cta, section, first + group, lambda slot, row: _scale(cta, slot, row)
            )
            _multiply(cta, section, acc, group * steps, steps, scale)

        return acc[...]

    return pl.run_scoped(whole, plgpu.ACC(accumulator(cta.config, cta.gemm), jnp.float32))


def _of_groups(cta: Cta, section: Section) -> Any:
    first, number, steps = _groups(cta, section)

    def added(total: Any | None, group: Int) -> Any:
        def sums(acc: Ref) -> Any:
            _multiply(cta, section, acc, group * steps, steps, None)
            return acc[...]

        partial = pl.run_scoped(sums, plgpu.ACC(accumulator(cta.config, cta.gemm), jnp.float32))

        def use(slot: Int, row: Int) -> Any:
            scale = _scale(cta, slot, row)
            sum_slot = _sum_slot(cta, section, first + group)
            return _shifted(cta, section, _sum(total, partial, scale), (slot, row), (sum_slot, row))

        return _with_scales(cta, section, first + group, use)

    total = added(None, 0)
    if cta.gemm.groups == 1:
        return total
    return lax.fori_loop(1, number, lambda group, total: added(total, group), total)


def _of_pieces(cta: Cta, section: Section) -> Any:
    config, steps = cta.config, cta.rings.scale_steps
    width = piece_size(config, cta.gemm)
    pieces_of_step, pieces_of_group = config.tk // width, cta.gemm.group_size // width

    def added(step: Int, total: Any) -> Any:
        block = lax.div(section.start + step, jnp.int32(steps))
        within = rem(section.start + step, steps)
        slot, sum_slot = _scale_slot(cta, section, block), _sum_slot_of(cta, section, block)
        stored = _stored(cta, section, step)
        _await(cta, slot, sum_slot, within == 0, section.new_w)
        for number in range(pieces_of_step):
            k = number * width
            x_counter = (section.x + step) * config.x_steps + k // config.x_columns
            x_slot = rem(x_counter, cta.x_ring.size)
            if k % config.x_columns == 0:
                plgpu.barrier_wait(cta.x_ring.full.at[x_slot])

            def products(acc: Ref, number: int = number, x_slot: Int = x_slot, k: int = k) -> Any:
                _product(cta, acc, _converted(cta, stored, number, width), x_slot, k)
                return acc[...]

            partial = pl.run_scoped(products, plgpu.ACC(accumulator(config, cta.gemm), jnp.float32))
            if (k + width) % config.x_columns == 0:
                _release_x(cta, x_counter)
            sum_row = within * pieces_of_step + number
            row = lax.div(sum_row, pieces_of_group)

            def add(
                total: Any, partial: Any = partial, row: Int = row, sum_row: Int = sum_row
            ) -> Any:
                summed = _sum(total, partial, _scale(cta, slot, row))
                return _shifted(cta, section, summed, (slot, row), (sum_slot, sum_row))

            total = _done(cta, add, total)
        is_last = (within == steps - 1) | (step == section.length - 1)
        _release(cta, slot, sum_slot, is_last, section.last_w)
        return total

    zeros = plgpu.layout_cast(
        jnp.zeros(accumulator(config, cta.gemm), jnp.float32), plgpu.Layout.WGMMA
    )
    return lax.fori_loop(0, section.length, added, zeros)


def _done(cta: Cta, add: Callable[[Any], Any], total: Any) -> Any:
    """Return `add(total)`, in a loop that cannot be postponed."""
    if cta.config.tm <= WGMMA_ROWS:
        return add(total)
    once = jnp.minimum(cta.rows.at.plan.active_clusters, 1)  # there is no item without a cluster
    return lax.fori_loop(0, once, lambda _, total: add(total), total)


def _groups(cta: Cta, section: Section) -> tuple[Int, Int, Int]:
    if cta.gemm.groups == 1:
        return 0, 1, section.length
    steps = cta.sizes.k_steps // cta.gemm.groups
    if isinstance(section.length, int):
        return 0, section.length // steps, steps
    return (
        lax.div(section.start, jnp.int32(steps)),
        lax.div(section.length, jnp.int32(steps)),
        steps,
    )


def _multiply(
    cta: Cta, section: Section, acc: Ref, first: Int, steps: Int, scale: Any | None
) -> None:
    """Add the products of K steps, each before its registers change."""
    config, x_steps = cta.config, cta.config.x_steps
    kind = cta.gemm.quantised.kind  # type: ignore[union-attr]

    @pl.loop(0, steps)
    def _step(step: Int) -> None:
        width = min(config.x_columns, widest(kind))
        count = config.x_columns // width
        stored = _stored(cta, section, first + step)
        parts = [_converted(cta, stored, number, width) for number in range(config.tk // width)]
        if scale is not None:
            parts = [scaled(part, scale) for part in parts]
        for number in range(x_steps):
            x_counter = (section.x + first + step) * x_steps + number
            slot = rem(x_counter, cta.x_ring.size)
            plgpu.barrier_wait(cta.x_ring.full.at[slot])
            for place in range(number * count, (number + 1) * count):
                _product(cta, acc, parts[place], slot, place * width)
            if number:
                plgpu.wgmma_wait(count)  # the products before these are done, their X tile is free
                _release_x(cta, x_counter - 1)
        plgpu.wgmma_wait(0)
        _release_x(cta, (section.x + first + step + 1) * x_steps - 1)


def _stored(cta: Cta, section: Section, step: Int) -> Any:
    slot = rem(section.w + step, cta.w_ring.size)
    when(section.new_w, lambda: plgpu.barrier_wait(cta.w_ring.full.at[slot]))
    stored = cta.w_ring.tiles[slot, cta.own]
    # All warps have read their rows (at a cluster's barrier one thread arrives for them), and TMA
    # may write after that.
    when(section.last_w, lambda: _arrive(cta.w_ring, slot))
    return stored


def _converted(cta: Cta, stored: Any, number: int, width: int) -> Any:
    kind = cta.gemm.quantised.kind  # type: ignore[union-attr]
    return piece(stored, number, kind=kind, dtype=jnp.dtype(cta.gemm.dtype), width=width)


def _product(cta: Cta, acc: Ref, weights: Any, slot: Int, k: int) -> None:
    width, place = weights.shape[1], k % cta.config.x_columns
    detour = None if cta.detour is None else cta.detour.at[cta.warpgroup]
    x_tile = cta.x_ring.tiles.at[slot, :, pl.ds(place, width)]
    plgpu.wgmma(acc, operand(weights, detour, k), x_tile.transpose((1, 0)))


def _release_x(cta: Cta, x_counter: Int) -> None:
    cta.x_ring.free(cta.x_ring.slot(x_counter))


def _scale(cta: Cta, slot: Int, row: Int) -> Any:
    return _column(cta.scale_ring.tiles.at[slot, row, cta.own])  # type: ignore[union-attr]


def _column(row: Ref) -> Any:
    layout = plgpu.Layout.WGMMA.reduce(1)
    return plgpu.load(row, layout=layout, optimized=False).astype(jnp.float32)


def _sum(total: Any | None, partial: Any, scale: Any) -> Any:
    product = partial * lax.broadcast_in_dim(scale, partial.shape, (0,))
    return product if total is None else total + product


def _shifted(
    cta: Cta, section: Section, total: Any, index: tuple[Int, Int], sum_at: tuple[Int, Int]
) -> Any:
    if cta.offset_tiles is None or cta.sum_ring is None:
        return total
    offsets = _column(cta.offset_tiles.at[(*index, cta.own)])
    if cta.gemm.groups == 1 and section.first is not True:
        # sums of all of X, once
        offsets = offsets * jnp.where(section.first, jnp.float32(1), jnp.float32(0))
    sums = plgpu.load(
        cta.sum_ring.tiles.at[sum_at], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False
    )
    return total + (
        lax.broadcast_in_dim(offsets, total.shape, (0,))
        * lax.broadcast_in_dim(sums, total.shape, (1,))
    )


def _with_scales(cta: Cta, section: Section, group: Int, use: Callable[[Int, Int], Any]) -> Any:
    rows, one = cta.rings.scale_rows, cta.gemm.groups == 1
    block, row = (group, 0) if rows == 1 else (lax.div(group, jnp.int32(rows)), rem(group, rows))
    slot, sum_slot = _scale_slot(cta, section, block), _sum_slot_of(cta, section, block)
    is_first, is_last = True if rows == 1 else row == 0, True
    if rows > 1:
        steps = cta.sizes.k_steps // cta.gemm.groups
        behind = lax.div(jnp.asarray(section.start, jnp.int32) + section.length, jnp.int32(steps))
        is_last = (row == rows - 1) | (group == behind - 1)
    _await(cta, slot, sum_slot, is_first, section.new_scale if one else section.new_w)
    result = use(slot, row)
    _release(cta, slot, sum_slot, is_last, section.last_scale if one else section.last_w)
    return result


def _scale_slot(cta: Cta, section: Section, block: Int) -> Int:
    number = section.item * cta.rings.blocks(cta.sizes.k_steps) + block
    return rem(number, cta.rings.scales)


def _sum_slot(cta: Cta, section: Section, group: Int) -> Int:
    rows = cta.rings.scale_rows
    return _sum_slot_of(cta, section, group if rows == 1 else lax.div(group, jnp.int32(rows)))


def _sum_slot_of(cta: Cta, section: Section, block: Int) -> Int:
    if cta.sum_ring is None:
        return 0
    before = lax.div(jnp.asarray(section.start, jnp.int32), jnp.int32(cta.rings.scale_steps))
    return rem(section.sums + block - before, cta.sum_ring.size)


def _await(cta: Cta, slot: Int, sum_slot: Int, is_first: Any, new: Any) -> None:
    assert cta.scale_ring is not None
    scales, sums = cta.scale_ring, cta.sum_ring
    when(both(is_first, new), lambda: plgpu.barrier_wait(scales.full.at[slot]))
    if sums is not None:
        when(is_first, lambda: plgpu.barrier_wait(sums.full.at[sum_slot]))


def _release(cta: Cta, slot: Int, sum_slot: Int, is_last: Any, last: Any) -> None:
    assert cta.scale_ring is not None
    scales, sums = cta.scale_ring, cta.sum_ring
    when(both(is_last, last), lambda: _arrive(scales, slot))
    if sums is not None:
        when(is_last, lambda: _arrive(sums, sum_slot))


def _arrive(ring: Ring, slot: Int) -> None:
    plgpu.commit_smem()  # all warps have read the slot
    ring.free(slot)
