"""The Hopper kernel: O^T[n, m] = W[n, k] X[m, k]^T with W dequantised on its way into wgmma.

wgmma converts nothing, and only its left operand may come from registers. So the product is
computed transposed: a compute warpgroup reads its rows of a W tile into registers, converts them to
the type of X (exact for every kind: int8 and e4m3 have at most 8 significant bits) and multiplies
them with an X tile that stays in shared memory. The sums are written through a transposed view of a
staging tile, so that TMA stores rows of O.

Each CTA has `warpgroups` compute warpgroups and one that issues the loads; they meet at barriers
only. "full" says that a tile has arrived, "empty" that all compute warpgroups have read it. The
rings of X tiles, W tiles and scales are addressed by running counters: slot = counter mod size.

In interpret mode wgmma takes no register operand; there the converted tile takes a detour through
shared memory (`detour`). It does not multicast: each CTA of a cluster loads the whole tile. Nothing
else differs between CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.counting import Int, rem
from pallas_kernels.mosaic import Ref, drain, persistent, plgpu
from pallas_kernels.quantized_gemm.config import (
    Config,
    check_fits,
    scale_rows,
    scale_stages,
    scales_weights,
)
from pallas_kernels.quantized_gemm.cta import Cta, buffers, position, scratch_types
from pallas_kernels.quantized_gemm.schedule import Plan, counts
from pallas_kernels.quantized_gemm.specs import PACK_BLOCK, QuantizedGemm, bits

_HALF = PACK_BLOCK // 2


def build(
    gemm: QuantizedGemm,
    config: Config,
    *,
    interpret: mosaic_gpu.InterpretGPUParams | None = None,
) -> Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]:
    """Return `kernel(x, w, scales, scalars) -> o` for one GEMM shape and configuration.

    Args:
      gemm: sizes and types, padded (see `specs`).
      config: tiles and grid.
      interpret: run on a CPU with these settings instead of compiling for the GPU.

    Returns:
      A function of x[m, k], w of shape `gemm.w_shape`, scales of shape `gemm.scales_shape` and the
      int32 vector `scalars` with the fields of `Plan` in their order.

    Raises:
      ValueError: the configuration does not fit the GEMM or the hardware.
    """
    check_fits(config, gemm)
    sizes = counts(config, gemm)

    def body(x: Ref, w: Ref, scales: Ref, scalars: Ref, o: Ref, *scratch: Any) -> None:
        plan = Plan(active_clusters=scalars[0], layer=scalars[1])
        run(
            Cta(
                config=config,
                gemm=gemm,
                sizes=sizes,
                plan=plan,
                x=x,
                w=w if gemm.layers is None else w.at[plan.layer],
                scales=scales if gemm.layers is None else scales.at[plan.layer],
                o=o,
                **position(config),
                **buffers(*scratch),
            )
        )

    return persistent(
        body,
        out=((gemm.m, gemm.n), gemm.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=scratch_types(gemm, config, detour=interpret is not None),
        interpret=interpret,
    )


def run(cta: Cta) -> None:
    """Load in one warpgroup, compute in the others."""

    @pl.when(cta.warpgroup == cta.config.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(cta.config.load_registers, action="decrease")
        _load(cta)

    @pl.when(cta.warpgroup < cta.config.warpgroups)
    def _() -> None:
        plgpu.set_max_registers(cta.config.compute_registers, action="increase")
        _compute(cta)


def _load(cta: Cta) -> None:
    config, sizes = cta.config, cta.sizes
    multicast = {"collective_axes": "rank"} if config.cluster > 1 else {}
    rows, scale_slots = scale_rows(config, cta.gemm), scale_stages(config, cta.gemm)
    w_columns = config.tk * bits(cta.gemm.kind) // 8
    steps = cta.items * sizes.k_steps

    def load_w(counter: Int) -> None:
        item = lax.div(counter, sizes.k_steps)
        w, scales = cta.matrix(item)
        ns = pl.ds(cta.tile(item)[1] * config.tn, config.tn)
        k_step = rem(counter, sizes.k_steps)

        @pl.when(rem(k_step, rows * sizes.group_steps) == 0)
        def _scales() -> None:
            block = lax.div(k_step, rows * sizes.group_steps)
            number = item * cta.scale_blocks + block
            slot = rem(number, scale_slots)
            _await(cta.scale_empty, number, scale_slots)
            plgpu.copy_gmem_to_smem(
                scales.at[pl.ds(block * rows, rows), ns],
                cta.scale_rows.at[slot],
                cta.scale_full.at[slot],
                **(multicast if rows > 1 else {}),
            )

        slot = rem(counter, config.w_stages)
        _await(cta.w_empty, counter, config.w_stages)
        plgpu.copy_gmem_to_smem(
            w.at[ns, pl.ds(k_step * w_columns, w_columns)],
            cta.w_tiles.at[slot],
            cta.w_full.at[slot],
            **multicast,
        )

    @pl.loop(0, jnp.minimum(config.w_ahead, steps))
    def _first(counter: Int) -> None:
        load_w(counter)

    @pl.loop(0, steps)
    def _step(counter: Int) -> None:
        @pl.when(counter + config.w_ahead < steps)
        def _() -> None:
            load_w(counter + config.w_ahead)

        top, _ = cta.tile(lax.div(counter, sizes.k_steps))
        for part in range(config.x_steps):
            number = counter * config.x_steps + part
            slot = rem(number, config.x_stages)
            column = rem(counter, sizes.k_steps) * config.tk + part * config.x_columns
            _await(cta.x_empty, number, config.x_stages)
            plgpu.copy_gmem_to_smem(
                cta.x.at[pl.ds(top, config.tm), pl.ds(column, config.x_columns)],
                cta.x_tiles.at[slot],
                cta.x_full.at[slot],
            )

    drain(cta.w_empty, config.w_stages, steps)
    drain(cta.x_empty, config.x_stages, steps * config.x_steps)
    drain(cta.scale_empty, scale_slots, cta.items * cta.scale_blocks)


def _await(empty: Ref, counter: Int, slots: int) -> None:
    """Wait until the slot of tile number `counter` is free; the first ones are from the start."""

    @pl.when(counter >= slots)
    def _() -> None:
        plgpu.barrier_wait(empty.at[rem(counter, slots)])


def _compute(cta: Cta) -> None:
    config, sizes = cta.config, cta.sizes
    shape = (config.warpgroup_columns, config.tm)
    first = scales_weights(config, cta.gemm)

    @pl.loop(0, cta.items)
    def _item(item: Int) -> None:
        groups = item * sizes.groups

        if first:

            def whole(acc: Ref) -> Any:
                @pl.loop(0, sizes.groups)
                def _group(group: Int) -> None:
                    scale = _scale(cta, item, group)
                    _multiply(cta, acc, (groups + group) * sizes.group_steps, scale)

                return acc[...]

            total = pl.run_scoped(whole, plgpu.ACC(shape, jnp.float32))
        else:

            def scaled(group: Int) -> Any:
                def sums(acc: Ref) -> Any:
                    start = (groups + group) * sizes.group_steps
                    _multiply(cta, acc, start, None)
                    return acc[...]

                partial = pl.run_scoped(sums, plgpu.ACC(shape, jnp.float32))
                return partial * lax.broadcast_in_dim(_scale(cta, item, group), shape, (0,))

            total = scaled(0)
            if sizes.groups > 1:
                total = lax.fori_loop(
                    1, sizes.groups, lambda group, total: total + scaled(group), total
                )
        cta.store(item, total)

    plgpu.wait_smem_to_gmem(0)


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
        slot = rem(counter, config.w_stages)
        plgpu.barrier_wait(cta.w_full.at[slot])
        parts = _converted(cta, slot, scale)
        # All warps have read their rows (at a cluster's barrier one thread arrives for them), and
        # TMA may write after that.
        plgpu.commit_smem()
        plgpu.barrier_arrive(cta.w_empty.at[slot])
        width, each = config.tk // len(parts), len(parts) // x_steps
        for number in range(x_steps):
            x_counter = counter * x_steps + number
            slot = rem(x_counter, config.x_stages)
            plgpu.barrier_wait(cta.x_full.at[slot])
            for place in range(each):
                weights = _operand(cta, parts[number * each + place], number * each + place)
                x_tile = cta.x_tiles.at[slot, :, pl.ds(place * width, width)]
                plgpu.wgmma(acc, weights, x_tile.transpose((1, 0)))
            if number:
                plgpu.wgmma_wait(each)  # the products before these are done, their X tile is free
                _release_x(cta, x_counter - 1)
        plgpu.wgmma_wait(0)
        _release_x(cta, (counter + 1) * x_steps - 1)


def _release_x(cta: Cta, x_counter: Int) -> None:
    plgpu.barrier_arrive(cta.x_empty.at[rem(x_counter, cta.config.x_stages)])


def _operand(cta: Cta, weights: Any, number: int) -> Any:
    """Return the left operand: registers, or in interpret mode the same in shared memory."""
    if cta.detour is None:
        return weights
    width = weights.shape[1]
    target = cta.detour.at[cta.warpgroup, :, pl.ds(number * width, width)]
    target[...] = weights
    plgpu.commit_smem()
    return target


def _converted(cta: Cta, slot: Int, scale: Any | None) -> list[Any]:
    """Read this warpgroup's rows of a W tile as contiguous pieces of K in the type of X."""
    dtype, kind = jnp.dtype(cta.gemm.dtype), cta.gemm.kind
    stored = cta.w_tiles[slot, cta.own]
    if kind == "int4":
        pieces = []
        for block in range(cta.config.tk // PACK_BLOCK):
            both = stored[:, block * _HALF : (block + 1) * _HALF]
            # Registers of bytes take bitwise operations alone; the rest is exact in two bytes.
            low = (both & jnp.int8(0x0F)) ^ jnp.int8(0x08)
            pieces.append(low.astype(dtype) - jnp.asarray(8, dtype))
            pieces.append((both & jnp.int8(-16)).astype(dtype) * jnp.asarray(1 / 16, dtype))
    else:
        if kind == "float8_e4m3fn":  # to two bytes only by way of four
            stored = stored.astype(jnp.float32)
        columns = cta.config.x_columns
        converted = stored.astype(dtype)
        pieces = [converted[:, k : k + columns] for k in range(0, cta.config.tk, columns)]
    if scale is None:
        return pieces
    return [
        (piece.astype(jnp.float32) * lax.broadcast_in_dim(scale, piece.shape, (0,))).astype(dtype)
        for piece in pieces
    ]


def _scale(cta: Cta, item: Int, group: Int) -> Any:
    """Return this warpgroup's scales of a group as float32, waiting for them if they are new."""
    rows, groups = scale_rows(cta.config, cta.gemm), cta.sizes.groups
    block, row = (group, 0) if rows == 1 else (lax.div(group, rows), rem(group, rows))
    number = item * cta.scale_blocks + block
    slot = rem(number, scale_stages(cta.config, cta.gemm))

    @pl.when(row == 0)
    def _arrived() -> None:
        plgpu.barrier_wait(cta.scale_full.at[slot])

    scales = plgpu.load(
        cta.scale_rows.at[slot, row, cta.own], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False
    )

    @pl.when((row == rows - 1) | (group == groups - 1))
    def _release() -> None:
        plgpu.commit_smem()  # as for W
        plgpu.barrier_arrive(cta.scale_empty.at[slot])

    return scales.astype(jnp.float32)
