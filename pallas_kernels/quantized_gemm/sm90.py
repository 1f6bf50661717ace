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
from pallas_kernels.quantized_gemm.compute import compute
from pallas_kernels.quantized_gemm.config import (
    Config,
    check_fits,
    scale_rows,
    scale_stages,
    scale_steps,
    sum_rows,
)
from pallas_kernels.quantized_gemm.cta import Cta, buffers, position, scratch_types
from pallas_kernels.quantized_gemm.schedule import Plan, counts
from pallas_kernels.quantized_gemm.specs import QuantizedGemm, bits


def build(
    gemm: QuantizedGemm,
    config: Config,
    *,
    interpret: mosaic_gpu.InterpretGPUParams | None = None,
) -> Callable[..., jax.Array]:
    """Return `kernel(x, w, scales, scalars) -> o` for one GEMM shape and configuration.

    With offsets it is `kernel(x, w, scales, offsets, x_sums, scalars) -> o`.

    Args:
      gemm: sizes and types, padded (see `specs`).
      config: tiles and grid.
      interpret: run on a CPU with these settings instead of compiling for the GPU.

    Returns:
      A function of x[m, k], w of shape `gemm.w_shape`, scales and offsets of shape
      `gemm.scales_shape`, `reference.sums_of(x, sum_size)` and the int32 vector `scalars` with the
      fields of `Plan` in their order.

    Raises:
      ValueError: the configuration does not fit the GEMM or the hardware.
    """
    check_fits(config, gemm)
    sizes = counts(config, gemm)
    shifts = 2 if gemm.offset_dtype else 0

    def body(x: Ref, w: Ref, scales: Ref, *rest: Any) -> None:
        # first offsets and x_sums, if there are offsets
        shift, (scalars, o, *scratch) = rest[:shifts], rest[shifts:]
        plan = Plan(active_clusters=scalars[0], layer=scalars[1])

        def of_layer(stack: Ref) -> Ref:
            return stack if gemm.layers is None else stack.at[plan.layer]

        run(
            Cta(
                config=config,
                gemm=gemm,
                sizes=sizes,
                plan=plan,
                x=x,
                w=of_layer(w),
                scales=of_layer(scales),
                offsets=of_layer(shift[0]) if shift else None,
                x_sums=shift[1] if shift else None,
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
        compute(cta)


def _load(cta: Cta) -> None:
    config, sizes = cta.config, cta.sizes
    multicast = {"collective_axes": "rank"} if config.cluster > 1 else {}
    rows, scale_slots = scale_rows(config, cta.gemm), scale_stages(config, cta.gemm)
    w_columns = config.tk * bits(cta.gemm.kind) // 8
    steps = cta.items * sizes.k_steps

    def load_w(counter: Int) -> None:
        item = lax.div(counter, sizes.k_steps)
        w, scales = cta.matrix(item)
        top, strip = cta.tile(item)
        ns = pl.ds(strip * config.tn, config.tn)
        k_step = rem(counter, sizes.k_steps)

        @pl.when(rem(k_step, scale_steps(config, cta.gemm)) == 0)
        def _scales() -> None:
            block = lax.div(k_step, scale_steps(config, cta.gemm))
            number = item * cta.scale_blocks + block
            slot = rem(number, scale_slots)
            _await(cta.scale_empty, number, scale_slots)
            full, of_group = cta.scale_full.at[slot], multicast if rows > 1 else {}
            groups = pl.ds(block * rows, rows)
            plgpu.copy_gmem_to_smem(
                scales.at[groups, ns], cta.scale_rows.at[slot], full, **of_group
            )
            offsets = cta.offsets_of(item)
            if offsets is None:
                return
            plgpu.copy_gmem_to_smem(
                offsets.at[groups, ns], cta.offset_rows.at[slot], full, **of_group
            )
            sums = sum_rows(config, cta.gemm)
            plgpu.copy_gmem_to_smem(
                cta.x_sums.at[pl.ds(block * sums, sums), pl.ds(top, config.tm)],
                cta.sum_rows.at[slot, pl.ds(0, sums)],
                full,
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
