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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.counting import Int, dealt, rem
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.mosaic import Ref, drain, persistent, plgpu, swizzled
from pallas_kernels.quantized_gemm.config import (
    Config,
    check_fits,
    scale_rows,
    scale_stages,
    scales_weights,
)
from pallas_kernels.quantized_gemm.schedule import Counts, Plan, counts, tile
from pallas_kernels.quantized_gemm.specs import PACK_BLOCK, QuantizedGemm, bits, storage_dtype

_HALF = PACK_BLOCK // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cta:
    """One CTA's view: what it works on, its share of the work, its buffers and barriers."""

    config: Config
    gemm: QuantizedGemm
    sizes: Counts
    # where this thread stands
    warpgroup: Int
    cluster: Int
    rank: Int  # within the cluster
    plan: Plan
    # global memory
    x: Ref
    w: Ref  # one layer
    scales: Ref
    o: Ref
    # shared memory
    x_tiles: Ref
    w_tiles: Ref
    scale_rows: Ref
    staging: Ref
    detour: Ref | None  # interpret mode: converted weights
    # barriers
    x_full: Ref
    x_empty: Ref
    w_full: Ref
    w_empty: Ref
    scale_full: Ref
    scale_empty: Ref

    @property
    def items(self) -> Int:
        """Items of this CTA's cluster; none beyond the active clusters."""
        mine = dealt(self.sizes.items, self.plan.active_clusters, self.cluster)
        return jnp.where(self.cluster < self.plan.active_clusters, mine, 0)

    @property
    def scale_blocks(self) -> int:
        """Loads of scales for one item."""
        return -(-self.sizes.groups // scale_rows(self.config, self.gemm))

    def tile(self, item: Int) -> tuple[Int, Int]:
        """Row tile and strip of an item."""
        number = item * self.plan.active_clusters + self.cluster
        return tile(number, self.sizes, self.config.cluster, self.rank)

    @property
    def own(self) -> Any:
        """The columns of a strip that this warpgroup owns."""
        columns = self.config.warpgroup_columns
        return pl.ds(self.warpgroup * columns, columns)


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
    many = config.cluster > 1

    def body(
        x: Ref,
        w: Ref,
        scales: Ref,
        scalars: Ref,
        o: Ref,
        x_tiles: Ref,
        w_tiles: Ref,
        scale_rows: Ref,
        staging: Ref,
        barriers: list[Ref],
        *detour: Ref,
    ) -> None:
        plan = Plan(active_clusters=scalars[0], layer=scalars[1])
        x_full, x_empty, w_full, w_empty, scale_full, scale_empty = barriers
        cta = _Cta(
            config=config,
            gemm=gemm,
            sizes=sizes,
            warpgroup=lax.axis_index("warpgroup"),
            cluster=lax.axis_index("cluster"),
            rank=lax.axis_index("rank") if many else 0,
            plan=plan,
            x=x,
            w=w if gemm.layers is None else w.at[plan.layer],
            scales=scales if gemm.layers is None else scales.at[plan.layer],
            o=o,
            x_tiles=x_tiles,
            w_tiles=w_tiles,
            scale_rows=scale_rows,
            staging=staging,
            detour=detour[0] if detour else None,
            x_full=x_full,
            x_empty=x_empty,
            w_full=w_full,
            w_empty=w_empty,
            scale_full=scale_full,
            scale_empty=scale_empty,
        )

        @pl.when(cta.warpgroup == config.warpgroups)
        def _() -> None:
            plgpu.set_max_registers(config.load_registers, action="decrease")
            _load(cta)

        @pl.when(cta.warpgroup < config.warpgroups)
        def _() -> None:
            plgpu.set_max_registers(config.compute_registers, action="increase")
            _compute(cta)

    return persistent(
        body,
        out=((gemm.m, gemm.n), gemm.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=_scratch(gemm, config, detour=interpret is not None),
        interpret=interpret,
    )


def _scratch(gemm: QuantizedGemm, config: Config, *, detour: bool) -> list[Any]:
    """Shared memory and barriers, in the order of `body`'s arguments."""

    def tiles(shape: tuple[int, ...], dtype: Any) -> Any:
        return plgpu.SMEM(shape, dtype, transforms=swizzled(shape[-1], dtype))

    def arrivals(number: int, slots: int) -> Any:
        return plgpu.Barrier(num_arrivals=number, num_barriers=slots)

    def freed(slots: int) -> Any:
        if config.cluster == 1:
            return arrivals(config.warpgroups, slots)
        # a slot is free when the compute warpgroups of all CTAs of the cluster have read it
        return plgpu.ClusterBarrier(
            collective_axes=("rank",), num_arrivals=config.warpgroups, num_barriers=slots
        )

    kind, out = jnp.dtype(gemm.dtype), jnp.dtype(gemm.out_dtype)
    rows, scale_slots = scale_rows(config, gemm), scale_stages(config, gemm)
    scratch = [
        tiles((config.x_stages, config.tm, config.x_columns), kind),
        tiles(
            (config.w_stages, config.tn, config.tk * bits(gemm.kind) // 8),
            jnp.dtype(storage_dtype(gemm.kind)),
        ),
        plgpu.SMEM((scale_slots, rows, config.tn), jnp.dtype(gemm.scale_dtype)),
        tiles((config.warpgroups, config.store_slots, config.store_rows, WGMMA_ROWS), out),
        [
            arrivals(1, config.x_stages),
            arrivals(config.warpgroups, config.x_stages),
            arrivals(1, config.w_stages),
            freed(config.w_stages),
            arrivals(1, scale_slots),
            freed(scale_slots) if rows > 1 else arrivals(config.warpgroups, scale_slots),
        ],
    ]
    if detour:
        scratch.append(tiles((config.warpgroups, config.warpgroup_columns, config.tk), kind))
    return scratch


def _load(cta: _Cta) -> None:
    config, sizes = cta.config, cta.sizes
    multicast = {"collective_axes": "rank"} if config.cluster > 1 else {}
    rows, scale_slots = scale_rows(config, cta.gemm), scale_stages(config, cta.gemm)
    w_columns = config.tk * bits(cta.gemm.kind) // 8
    steps = cta.items * sizes.k_steps

    def load_w(counter: Int) -> None:
        _, strip = cta.tile(lax.div(counter, sizes.k_steps))
        ns = pl.ds(strip * config.tn, config.tn)
        k_step = rem(counter, sizes.k_steps)

        @pl.when(rem(k_step, rows * sizes.group_steps) == 0)
        def _scales() -> None:
            block = lax.div(k_step, rows * sizes.group_steps)
            number = lax.div(counter, sizes.k_steps) * cta.scale_blocks + block
            slot = rem(number, scale_slots)
            _await(cta.scale_empty, number, scale_slots)
            plgpu.copy_gmem_to_smem(
                cta.scales.at[pl.ds(block * rows, rows), ns],
                cta.scale_rows.at[slot],
                cta.scale_full.at[slot],
                **(multicast if rows > 1 else {}),
            )

        slot = rem(counter, config.w_stages)
        _await(cta.w_empty, counter, config.w_stages)
        plgpu.copy_gmem_to_smem(
            cta.w.at[ns, pl.ds(k_step * w_columns, w_columns)],
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

        row_tile, _ = cta.tile(lax.div(counter, sizes.k_steps))
        for part in range(config.x_steps):
            number = counter * config.x_steps + part
            slot = rem(number, config.x_stages)
            column = rem(counter, sizes.k_steps) * config.tk + part * config.x_columns
            _await(cta.x_empty, number, config.x_stages)
            plgpu.copy_gmem_to_smem(
                cta.x.at[pl.ds(row_tile * config.tm, config.tm), pl.ds(column, config.x_columns)],
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


def _compute(cta: _Cta) -> None:
    config, sizes = cta.config, cta.sizes
    shape = (config.warpgroup_columns, config.tm)
    first = scales_weights(config, cta.gemm)

    @pl.loop(0, cta.items)
    def _item(item: Int) -> None:
        row_tile, strip = cta.tile(item)
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
        _store(cta, total, row_tile, strip)

    plgpu.wait_smem_to_gmem(0)


def _multiply(cta: _Cta, acc: Ref, start: Int, scale: Any | None) -> None:
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


def _release_x(cta: _Cta, x_counter: Int) -> None:
    plgpu.barrier_arrive(cta.x_empty.at[rem(x_counter, cta.config.x_stages)])


def _operand(cta: _Cta, weights: Any, number: int) -> Any:
    """Return the left operand: registers, or in interpret mode the same in shared memory."""
    if cta.detour is None:
        return weights
    width = weights.shape[1]
    target = cta.detour.at[cta.warpgroup, :, pl.ds(number * width, width)]
    target[...] = weights
    plgpu.commit_smem()
    return target


def _converted(cta: _Cta, slot: Int, scale: Any | None) -> list[Any]:
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


def _scale(cta: _Cta, item: Int, group: Int) -> Any:
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


def _store(cta: _Cta, total: Any, row_tile: Int, strip: Int) -> None:
    """Round a warpgroup's part of a tile and write it to O piece by piece, transposed on the way.

    TMA clips what lies beyond the edges of O.
    """
    config = cta.config
    down = config.tm // config.store_rows
    left = strip * config.tn + cta.warpgroup * config.warpgroup_columns
    for piece in range(config.store_pieces):
        n, m = piece // down * WGMMA_ROWS, piece % down * config.store_rows
        slot = cta.staging.at[cta.warpgroup, piece % config.store_slots]
        plgpu.wait_smem_to_gmem(config.store_slots - 1, wait_read_only=True)
        part = total[n : n + WGMMA_ROWS, m : m + config.store_rows]
        part = part.astype(jnp.dtype(cta.gemm.out_dtype))
        if cta.gemm.out_itemsize == 4:  # inference finds this layout for two bytes only
            part = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
        slot.transpose((1, 0))[...] = part
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(
            slot,
            cta.o.at[
                pl.ds(row_tile * config.tm + m, config.store_rows), pl.ds(left + n, WGMMA_ROWS)
            ],
        )
