"""The Hopper kernel: two dataflows in one persistent launch (Mosaic GPU, wgmma and TMA).

Each CTA has `warpgroups` compute warpgroups and one that issues the loads; they meet at barriers
only. A barrier "full" says that a tile has arrived, "empty" that all compute warpgroups have read
it. Every ring is addressed by a running counter: slot = counter mod size.

SymGEMM (output-stationary): a cluster owns `cluster` output tiles along M and walks over K. With a
cluster above 1 each CTA loads its share of the W tile and multicasts it to the others.

AsymGEMM (weight-stationary): a CTA owns a column strip for all of K. It pins kc rows of W, walks
over all M tiles, stores partial sums in the first pass and adds them (TMA reduction) in the later
ones, always in float32: in O if it is that, else in memory of its own, and the last pass reads the
sums, adds its own and rounds once. So alpha changes the order of additions and nothing else. No
other CTA touches its columns: no zero fill, no order between CTAs. The CTAs of a cluster have
neighbouring strips and walk together: each loads its share of the X tile and multicasts it.

Interpret mode lacks the TMA reduction; `accumulate` is that seam. It does not multicast: each CTA
of a cluster loads the whole tile. Nothing else differs between CPU and GPU.

Source: C2CServe, Algorithm 1 (the two dataflows). Ours: multicast, column ownership, the split
read at run time, the ring of weight slices with a shortened first pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.counting import Int, rem
from pallas_kernels.hopper import Epilogue, Piece
from pallas_kernels.hybrid_gemm.config import Config, check_fits
from pallas_kernels.hybrid_gemm.cta import Accumulate, Cta, w_copies
from pallas_kernels.hybrid_gemm.schedule import (
    SUM_BYTES,
    Plan,
    counts,
    passes,
    sums_shape,
    sym_tile,
)
from pallas_kernels.hybrid_gemm.specs import Gemm
from pallas_kernels.mosaic import Ref, drain, persistent, plgpu, read_add_write, swizzled, tma_add


def build(
    gemm: Gemm,
    config: Config,
    *,
    interpret: mosaic_gpu.InterpretGPUParams | None = None,
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Return `kernel(x, w, scalars) -> o` for one GEMM shape and configuration.

    Args:
      gemm: sizes and types, packed (see `specs`).
      config: tiles and grid.
      interpret: run on a CPU with these settings instead of compiling for the GPU.

    Returns:
      A function of x[m, k], w of shape `gemm.w_shape` and the int32 vector `scalars` with the
      fields of `Plan` in their order. Nothing checks a plan here: columns whose path has no
      cluster are left unwritten.

    Raises:
      ValueError: the configuration needs more shared memory than a CTA has.
    """
    check_fits(config, gemm)
    sizes, sums = counts(config, gemm), sums_shape(config, gemm)
    many = config.cluster > 1

    def body(x: Ref, w: Ref, scalars: Ref, o: Ref, *scratch: Any) -> None:
        *global_scratch, tiles, staging, barriers = scratch
        (sym_x, sym_w), (asym_x, asym_w) = tiles
        (o_staging, *_), *others = staging
        plan = Plan(
            sym_strips=scalars[0],
            sym_clusters=scalars[1],
            active_clusters=scalars[2],
            layer=scalars[3],
        )
        sym_full, sym_empty, asym_full, asym_empty, slice_full, slice_empty = barriers
        cta = Cta(
            config=config,
            gemm=gemm,
            sizes=sizes,
            accumulate=tma_add if interpret is None else read_add_write,
            warpgroup=lax.axis_index("warpgroup"),
            cluster=lax.axis_index("cluster"),
            rank=lax.axis_index("rank") if many else 0,
            plan=plan,
            x=x,
            w=w if gemm.layers is None else w.at[plan.layer],
            o=o,
            sums=global_scratch[0] if global_scratch else None,
            sym_x=sym_x,
            sym_w=sym_w,
            asym_x=asym_x,
            asym_w=asym_w,
            staging=o_staging,
            sums_staging=others[0][0] if others else None,
            sym_full=sym_full,
            sym_empty=sym_empty,
            asym_full=asym_full,
            asym_empty=asym_empty,
            slice_full=slice_full,
            slice_empty=slice_empty,
        )
        is_sym = cta.cluster < plan.sym_clusters

        @pl.when(cta.warpgroup == config.warpgroups)
        def _load() -> None:
            plgpu.set_max_registers(config.load_registers, action="decrease")
            lax.cond(is_sym, lambda: _sym_load(cta), lambda: _asym_load(cta))

        @pl.when(cta.warpgroup < config.warpgroups)
        def _compute() -> None:
            plgpu.set_max_registers(config.compute_registers, action="increase")
            lax.cond(is_sym, lambda: _sym_compute(cta), lambda: _asym_compute(cta))

    return persistent(
        body,
        out=((gemm.m, gemm.n), gemm.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=_scratch(gemm, config),
        interpret=interpret,
        global_scratch=None if sums is None else (sums, "float32"),
    )


def _scratch(gemm: Gemm, config: Config) -> list[Any]:
    """Shared memory and barriers, in the order of `body`'s arguments."""
    dtype, w_shape = jnp.dtype(gemm.dtype), (config.tk, config.tn)
    if gemm.w_layout != "kn":
        w_shape = (config.tn, config.tk)

    def tiles(number: int, shape: tuple[int, int], of: Any = dtype) -> Any:
        return plgpu.SMEM((number, *shape), of, transforms=swizzled(shape[-1], of))

    def x_tiles(number: int) -> Any:
        return tiles(number, (config.tm, config.tk))

    def arrivals(number: int, slots: int) -> Any:
        return plgpu.Barrier(num_arrivals=number, num_barriers=slots)

    compute, copies = config.warpgroups, w_copies(config, gemm)
    stored = [gemm.out_dtype] + ([] if sums_shape(config, gemm) is None else ["float32"])

    def slots(name: str) -> Any:
        of = jnp.dtype(name)
        store = _epilogue(gemm, config, of.itemsize)
        shape = (compute, store.slots, store.rows, store.columns)
        return (plgpu.SMEM(shape, of, transforms=swizzled(store.columns, of)),)

    def read(slots: int) -> Any:
        """Of a multicast tile: free when the compute warpgroups of all CTAs have read it."""
        if config.cluster == 1:
            return arrivals(compute, slots)
        return plgpu.ClusterBarrier(
            collective_axes=("rank",), num_arrivals=compute, num_barriers=slots
        )

    return [
        plgpu.RefUnion(
            (x_tiles(config.sym_stages), tiles(config.sym_stages, w_shape)),
            (x_tiles(config.asym_stages), tiles(config.ring, w_shape)),
        ),
        plgpu.RefUnion(*map(slots, stored)),
        [
            arrivals(1 + copies, config.sym_stages),  # of one X and one W tile
            read(config.sym_stages),
            arrivals(1, config.asym_stages),
            read(config.asym_stages),
            arrivals(copies, config.ring),
            arrivals(compute, config.ring),
        ],
    ]


def _sym_load(cta: Cta) -> None:
    stages, k_steps = cta.config.sym_stages, cta.sizes.k_steps

    @pl.loop(0, cta.sym_items)
    def _item(item: Int) -> None:
        row_tile, strip = sym_tile(
            item * cta.plan.sym_clusters + cta.cluster,
            cta.sizes.row_clusters,
            cta.config.cluster,
            cta.rank,
        )

        @pl.loop(0, k_steps)
        def _step(k_step: Int) -> None:
            counter = item * k_steps + k_step
            slot = rem(counter, stages)

            @pl.when(counter >= stages)
            def _reuse() -> None:
                plgpu.barrier_wait(cta.sym_empty.at[slot])

            full = cta.sym_full.at[slot]
            plgpu.copy_gmem_to_smem(cta.x_tile(row_tile, k_step), cta.sym_x.at[slot], full)
            for source, target in cta.w_tile(k_step, strip, cta.sym_w.at[slot]):
                plgpu.copy_gmem_to_smem(source, target, full, **cta.multicast)

    drain(cta.sym_empty, stages, cta.sym_items * k_steps)


def _sym_compute(cta: Cta) -> None:
    stages, k_steps = cta.config.sym_stages, cta.sizes.k_steps

    @pl.loop(0, cta.sym_items)
    def _item(item: Int) -> None:
        row_tile, strip = sym_tile(
            item * cta.plan.sym_clusters + cta.cluster,
            cta.sizes.row_clusters,
            cta.config.cluster,
            cta.rank,
        )

        def multiply(acc: Ref) -> Any:
            @pl.loop(0, k_steps)
            def _step(k_step: Int) -> None:
                counter = item * k_steps + k_step
                slot = rem(counter, stages)
                plgpu.barrier_wait(cta.sym_full.at[slot])
                plgpu.wgmma(acc, cta.own_rows(cta.sym_x.at[slot]), cta.operand(cta.sym_w.at[slot]))
                plgpu.wgmma_wait(1)  # the previous product is done, its tiles are free

                @pl.when(k_step > 0)
                def _release() -> None:
                    plgpu.barrier_arrive(cta.sym_empty.at[rem(counter + stages - 1, stages)])

            plgpu.wgmma_wait(0)
            last = item * k_steps + k_steps - 1
            plgpu.barrier_arrive(cta.sym_empty.at[rem(last, stages)])
            return acc[...]

        _store_o(cta, _accumulated(cta, multiply), row_tile, strip)

    plgpu.wait_smem_to_gmem(0)


def _asym_load(cta: Cta) -> None:
    stages, ring = cta.config.asym_stages, cta.config.ring
    k_steps, row_tiles = cta.sizes.k_steps, cta.sizes.row_tiles

    @pl.loop(0, cta.asym_items)
    def _item(item: Int) -> None:
        strip = cta.asym_strip(item)

        @pl.loop(0, passes(cta.config, k_steps, cta.first))
        def _pass(number: Int) -> None:
            start, length = cta.pass_steps(number)

            @pl.loop(0, length)
            def _slice(step: Int) -> None:
                counter = item * k_steps + start + step
                slot = rem(counter, ring)

                @pl.when(counter >= ring)
                def _reuse() -> None:
                    plgpu.barrier_wait(cta.slice_empty.at[slot])

                for source, target in cta.w_tile(start + step, strip, cta.asym_w.at[slot]):
                    plgpu.copy_gmem_to_smem(source, target, cta.slice_full.at[slot])

            @pl.loop(0, row_tiles)
            def _rows(row_tile: Int) -> None:
                @pl.loop(0, length)
                def _step(step: Int) -> None:
                    counter = (item * k_steps + start) * row_tiles + row_tile * length + step
                    slot = rem(counter, stages)

                    @pl.when(counter >= stages)
                    def _reuse() -> None:
                        plgpu.barrier_wait(cta.asym_empty.at[slot])

                    plgpu.copy_gmem_to_smem(
                        cta.x_tile(row_tile, start + step),
                        cta.asym_x.at[slot],
                        cta.asym_full.at[slot],
                        **cta.multicast,
                    )

    drain(cta.asym_empty, stages, cta.asym_items * k_steps * row_tiles)
    drain(cta.slice_empty, ring, cta.asym_items * k_steps)


def _asym_compute(cta: Cta) -> None:
    stages, ring = cta.config.asym_stages, cta.config.ring
    k_steps, row_tiles = cta.sizes.k_steps, cta.sizes.row_tiles

    @pl.loop(0, cta.asym_items)
    def _item(item: Int) -> None:
        strip = cta.asym_strip(item)

        last = passes(cta.config, k_steps, cta.first) - 1

        @pl.loop(0, last + 1)
        def _pass(number: Int) -> None:
            start, length = cta.pass_steps(number)
            slices = item * k_steps + start
            # The previous pass's sums are in memory, not just out of the staging slots: the adds
            # below, by the same warpgroup for the same rows, must find them.
            plgpu.wait_smem_to_gmem(0)

            @pl.loop(0, row_tiles)
            def _rows(row_tile: Int) -> None:
                tiles = slices * row_tiles + row_tile * length

                def release(step: Int) -> None:
                    plgpu.barrier_arrive(cta.asym_empty.at[rem(tiles + step, stages)])

                    @pl.when(row_tile == row_tiles - 1)
                    def _slice_too() -> None:
                        plgpu.barrier_arrive(cta.slice_empty.at[rem(slices + step, ring)])

                def multiply(acc: Ref) -> Any:
                    @pl.loop(0, length)
                    def _step(step: Int) -> None:
                        tile, slot = rem(tiles + step, stages), rem(slices + step, ring)

                        @pl.when(row_tile == 0)
                        def _arrived() -> None:
                            plgpu.barrier_wait(cta.slice_full.at[slot])

                        plgpu.barrier_wait(cta.asym_full.at[tile])
                        plgpu.wgmma(
                            acc,
                            cta.own_rows(cta.asym_x.at[tile]),
                            cta.operand(cta.asym_w.at[slot]),
                        )
                        plgpu.wgmma_wait(1)

                        @pl.when(step > 0)
                        def _release() -> None:
                            release(step - 1)

                    plgpu.wgmma_wait(0)
                    release(length - 1)
                    return acc[...]

                def emit(source: Ref, target: Ref) -> None:
                    lax.cond(
                        number == 0,
                        lambda: plgpu.copy_smem_to_gmem(source, target),
                        lambda: cta.accumulate(source, target),
                    )

                acc = _accumulated(cta, multiply)
                if cta.sums is None:
                    _store_o(cta, acc, row_tile, strip, emit)
                else:
                    lax.cond(
                        number == last,
                        lambda: _store_total(cta, acc, row_tile, strip),
                        lambda: _store_sums(cta, acc, row_tile, emit),
                    )

    plgpu.wait_smem_to_gmem(0)


def _accumulated(cta: Cta, multiply: Callable[[Ref], Any]) -> Any:
    shape = (cta.config.warpgroup_rows, cta.config.tn)
    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))


def _epilogue(gemm: Gemm, config: Config, itemsize: int) -> Epilogue:
    """How a warpgroup stores a tile of O, or of sums: both through the same bytes."""
    return replace(config.epilogue(itemsize), slots=config.epilogue(gemm.out_itemsize).slots)


def _store_o(
    cta: Cta, acc: Any, row_tile: Int, strip: Int, emit: Accumulate = plgpu.copy_smem_to_gmem
) -> None:
    """Round a warpgroup's rows of a tile and write them to O."""
    _store(
        cta,
        cta.gemm.out_itemsize,
        cta.staging,
        lambda piece: _part(acc, piece),
        lambda piece: cta.o_piece(row_tile, strip, piece),
        emit,
    )


def _store_sums(cta: Cta, acc: Any, row_tile: Int, emit: Accumulate) -> None:
    """Write or add a warpgroup's rows of a tile to the sums of this CTA's strip."""
    _store(
        cta,
        SUM_BYTES,
        cta.sums_staging,
        lambda piece: _part(acc, piece),
        lambda piece: cta.sums_piece(row_tile, piece),
        emit,
    )


def _store_total(cta: Cta, acc: Any, row_tile: Int, strip: Int) -> None:
    """Add what the sums of this CTA's strip hold, round, and write to O."""

    def total(piece: Piece) -> Any:
        earlier = plgpu.load(
            cta.sums_piece(row_tile, piece), layout=plgpu.Layout.WGMMA, optimized=False
        )
        return _part(acc, piece) + earlier

    _store(
        cta,
        cta.gemm.out_itemsize,
        cta.staging,
        total,
        lambda piece: cta.o_piece(row_tile, strip, piece),
        plgpu.copy_smem_to_gmem,
    )


def _part(acc: Any, piece: Piece) -> Any:
    return acc[piece.row : piece.row + piece.rows, piece.column : piece.column + piece.columns]


def _store(
    cta: Cta,
    itemsize: int,
    staging: Ref,
    value: Callable[[Piece], Any],
    target: Callable[[Piece], Ref],
    emit: Accumulate,
) -> None:
    """Write a warpgroup's rows of a tile piece by piece; TMA clips what lies beyond the edges."""
    for piece in _epilogue(cta.gemm, cta.config, itemsize).walk(cta.config.tn):
        slot = staging.at[cta.warpgroup, piece.slot]
        plgpu.wait_smem_to_gmem(staging.shape[1] - 1, wait_read_only=True)
        slot[...] = value(piece).astype(slot.dtype)
        plgpu.commit_smem()
        emit(slot, target(piece))
