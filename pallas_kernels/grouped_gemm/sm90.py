"""The Hopper kernel: a grouped GEMM in one persistent launch (Mosaic GPU, wgmma and TMA).

Each CTA has `warpgroups` compute warpgroups and one that issues the loads; they meet at barriers
only. A barrier "full" says that a pair of tiles has arrived, "empty" that all compute warpgroups
have read it. The ring is addressed by a running counter: slot = counter mod stages.

A cluster takes an item, walks over K with `cluster` output tiles in registers, and stores them.
With a cluster above 1 each CTA loads its share of the W tile and multicasts it to the others. Which
expert an item belongs to comes from the block table; nothing is compiled for the sizes of groups.

An expert's rows begin and end anywhere. Tiles of X begin at multiples of 8 rows, so they hold rows
of neighbours, whose products are computed and dropped: 64 rows that are all the expert's leave as
one TMA store, fewer as several of 1, 2, 4 ... 32 rows.

Interpret mode does not multicast: each CTA of a cluster loads the whole W tile. Nothing else
differs between CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.counting import Int, rem
from pallas_kernels.grouped_gemm.config import Config, check_fits
from pallas_kernels.grouped_gemm.schedule import LAYER, Block, Counts, counts
from pallas_kernels.grouped_gemm.specs import GroupedGemm
from pallas_kernels.grouped_gemm.work import Work, store_rows
from pallas_kernels.hopper import SWIZZLE_BYTES, Epilogue
from pallas_kernels.mosaic import Ref, drain, persistent, plgpu, swizzled


def build(
    gemm: GroupedGemm,
    config: Config,
    *,
    interpret: mosaic_gpu.InterpretGPUParams | None = None,
) -> Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]:
    """Return `kernel(x, w, table, scalars) -> o` for one shape and configuration.

    Args:
      gemm: sizes and types.
      config: tiles and grid.
      interpret: run on a CPU with these settings instead of compiling for the GPU.

    Returns:
      A function of x[gemm.padded_rows, k], w of shape `gemm.w_shape`, the block table and the int32
      vector `scalars`: blocks of experts, all blocks, active clusters, layer.

    Raises:
      ValueError: the configuration needs more shared memory than a CTA has.
    """
    check_fits(config, gemm)
    sizes, store = counts(config, gemm), config.epilogue(gemm.out_itemsize)
    many = config.cluster > 1

    def body(
        x: Ref,
        w: Ref,
        table: Ref,
        scalars: Ref,
        o: Ref,
        x_tiles: Ref,
        w_tiles: Ref,
        staging: Ref,
        full: Ref,
        empty: Ref,
    ) -> None:
        cta = Cta(
            config=config,
            gemm=gemm,
            sizes=sizes,
            store=store,
            warpgroup=lax.axis_index("warpgroup"),
            work=Work(
                table=table,
                scalars=scalars,
                strips=sizes.strips,
                tm=config.tm,
                ranks=config.cluster,
                cluster=lax.axis_index("cluster"),
                rank=lax.axis_index("rank") if many else 0,
            ),
            x=x,
            w=w if gemm.layers is None else w.at[scalars[LAYER]],
            o=o,
            x_tiles=x_tiles,
            w_tiles=w_tiles,
            staging=staging,
            full=full,
            empty=empty,
        )

        @pl.when(cta.warpgroup == config.warpgroups)
        def _load() -> None:
            plgpu.set_max_registers(config.load_registers, action="decrease")
            _load_items(cta)

        @pl.when(cta.warpgroup < config.warpgroups)
        def _compute() -> None:
            plgpu.set_max_registers(config.compute_registers, action="increase")
            _compute_items(cta)

    return persistent(
        body,
        out=((gemm.t, gemm.n), gemm.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=_scratch(gemm, config, store),
        interpret=interpret,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """One CTA's view: what it works on, its share of the work, its buffers and barriers."""

    config: Config
    gemm: GroupedGemm
    sizes: Counts
    store: Epilogue
    # where this thread stands, and what it does
    warpgroup: Int
    work: Work
    # global memory
    x: Ref
    w: Ref  # one layer
    o: Ref
    # shared memory
    x_tiles: Ref
    w_tiles: Ref
    staging: Ref
    # barriers
    full: Ref
    empty: Ref

    def w_tile(self, expert: Int, k_step: Int, strip: Int) -> Ref:
        """The tk x tn piece of an expert's W in global memory, in its own layout."""
        ks = pl.ds(k_step * self.config.tk, self.config.tk)
        ns = pl.ds(strip * self.config.tn, self.config.tn)
        nk = self.gemm.w_layout == "nk"
        return self.w.at[expert, ns, ks] if nk else self.w.at[expert, ks, ns]

    def operand(self, w_slot: Ref) -> Ref:
        """A W tile in shared memory as [tk, tn], whatever its layout; a view, nothing moves."""
        return w_slot.transpose((1, 0)) if self.gemm.w_layout == "nk" else w_slot


def _scratch(gemm: GroupedGemm, config: Config, store: Epilogue) -> list[Any]:
    """Shared memory and barriers, in the order of `body`'s arguments."""
    dtype, out = jnp.dtype(gemm.dtype), jnp.dtype(gemm.out_dtype)
    w_shape = (config.tn, config.tk) if gemm.w_layout == "nk" else (config.tk, config.tn)
    slots = (config.warpgroups, store.slots, store.rows, store.columns)
    # Swizzled like the others but in tiles of one row, so that any rows can be stored.
    rows = plgpu.TilingTransform((1, store.columns)), plgpu.SwizzleTransform(SWIZZLE_BYTES)

    def tiles(shape: tuple[int, int]) -> Any:
        return plgpu.SMEM((config.stages, *shape), dtype, transforms=swizzled(shape[-1], dtype))

    empty = plgpu.Barrier(num_arrivals=config.warpgroups, num_barriers=config.stages)
    if config.cluster > 1:  # a slot is free when the compute warpgroups of all CTAs have read it
        empty = plgpu.ClusterBarrier(
            collective_axes=("rank",), num_arrivals=config.warpgroups, num_barriers=config.stages
        )
    return [
        tiles((config.tm, config.tk)),
        tiles(w_shape),
        plgpu.SMEM(slots, out, transforms=rows),
        plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),  # one X and one W tile
        empty,
    ]


def _load_items(cta: Cta) -> None:
    stages, k_steps = cta.config.stages, cta.sizes.k_steps
    tm, tk = cta.config.tm, cta.config.tk
    multicast = {"collective_axes": "rank"} if cta.config.cluster > 1 else {}
    items = cta.work.with_expert

    @pl.loop(0, items)
    def _item(number: Int) -> None:
        block, top, strip = cta.work.item(number)

        @pl.loop(0, k_steps)
        def _step(k_step: Int) -> None:
            counter = number * k_steps + k_step
            slot = rem(counter, stages)

            @pl.when(counter >= stages)
            def _reuse() -> None:
                plgpu.barrier_wait(cta.empty.at[slot])

            full = cta.full.at[slot]
            plgpu.copy_gmem_to_smem(
                cta.x.at[pl.ds(top, tm), pl.ds(k_step * tk, tk)], cta.x_tiles.at[slot], full
            )
            plgpu.copy_gmem_to_smem(
                cta.w_tile(block.expert, k_step, strip), cta.w_tiles.at[slot], full, **multicast
            )

    drain(cta.empty, stages, items * k_steps)


def _compute_items(cta: Cta) -> None:
    config, stages = cta.config, cta.config.stages
    own = config.warpgroup_rows

    @pl.loop(0, cta.work.all)
    def _item(number: Int) -> None:
        block, top, strip = cta.work.item(number)
        # Rows of no expert have no W: their sum has no terms. They come last, so that the counter
        # of tiles is right for every item that has some.
        k_steps = jnp.where(block.expert < cta.gemm.experts, cta.sizes.k_steps, 0)
        before = number * cta.sizes.k_steps

        def multiply(acc: Ref) -> Any:
            @pl.loop(0, k_steps)
            def _step(k_step: Int) -> None:
                counter = before + k_step
                slot = rem(counter, stages)
                plgpu.barrier_wait(cta.full.at[slot])
                rows = cta.x_tiles.at[slot].at[pl.ds(cta.warpgroup * own, own)]
                plgpu.wgmma(acc, rows, cta.operand(cta.w_tiles.at[slot]))
                plgpu.wgmma_wait(1)  # the previous product is done, its tiles are free

                @pl.when(k_step > 0)
                def _release() -> None:
                    plgpu.barrier_arrive(cta.empty.at[rem(counter + stages - 1, stages)])

            plgpu.wgmma_wait(0)

            @pl.when(k_steps > 0)
            def _release_last() -> None:
                plgpu.barrier_arrive(cta.empty.at[rem(before + k_steps - 1, stages)])

            return acc[...]

        acc = pl.run_scoped(multiply, plgpu.ACC((own, config.tn), jnp.float32))
        _store(cta, acc, block, top + cta.warpgroup * own, strip)

    plgpu.wait_smem_to_gmem(0)


def _store(cta: Cta, acc: Any, block: Block, top: Int, strip: Int) -> None:
    """Round a warpgroup's rows of a tile and write those of the block's expert to O."""
    store = cta.store
    across = cta.config.tn // store.columns
    for piece in range(store.pieces):
        a, b = piece // across * store.rows, piece % across * store.columns
        columns = pl.ds(strip * cta.config.tn + b, store.columns)
        slot = cta.staging.at[cta.warpgroup, piece % store.slots]
        plgpu.wait_smem_to_gmem(store.slots - 1, wait_read_only=True)
        part = acc[a : a + store.rows, b : b + store.columns]
        slot[...] = part.astype(jnp.dtype(cta.gemm.out_dtype))
        plgpu.commit_smem()
        store_rows(slot, cta.o, block, top + a, store.rows, columns)
