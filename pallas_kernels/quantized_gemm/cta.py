"""What a CTA of the Hopper kernel has: its place in the launch, its buffers, its stores of O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, dealt
from pallas_kernels.hopper import SWIZZLE_BYTES, WGMMA_ROWS
from pallas_kernels.mosaic import Ref, plgpu, swizzled
from pallas_kernels.quantized_gemm.config import (
    Config,
    piece_size,
    scale_rows,
    scale_stages,
    scale_steps,
    sum_slot_rows,
)
from pallas_kernels.quantized_gemm.schedule import Counts, Plan, tile
from pallas_kernels.quantized_gemm.specs import QuantizedGemm, bits, storage_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """One CTA's view: what it works on, its share of the work, its buffers and barriers.

    `items`, `tile`, `matrix` and `store` say what it computes; grouped_gemm has its own.
    """

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
    w: Ref  # of one layer
    scales: Ref
    o: Ref
    offsets: Ref = None  # of one layer; None if there are none
    x_sums: Ref = None  # float32 [K / sum_size, rows of x]; if there are offsets
    # shared memory
    x_tiles: Ref
    w_tiles: Ref
    scale_rows: Ref
    offset_rows: Ref = None  # if there are offsets
    sum_rows: Ref = None
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
        return -(-self.sizes.k_steps // scale_steps(self.config, self.gemm))

    def tile(self, item: Int) -> tuple[Int, Int]:
        """First row of this CTA's tile of an item, and its strip."""
        number = item * self.plan.active_clusters + self.cluster
        row_tile, strip = tile(number, self.sizes, self.config.cluster, self.rank)
        return row_tile * self.config.tm, strip

    def matrix(self, item: Int) -> tuple[Ref, Ref]:  # noqa: ARG002 - one matrix here
        """Weights [n, stored k] of an item, and its scales [groups, n]."""
        return self.w, self.scales

    def offsets_of(self, item: Int) -> Ref | None:  # noqa: ARG002 - one matrix here
        """Offsets of an item [groups, n], or None."""
        return self.offsets

    def store(self, item: Int, total: Any) -> None:
        """Write this warpgroup's part of the finished tile of an item."""
        _store(self, total, *self.tile(item))

    @property
    def own(self) -> Any:
        """The columns of a strip that this warpgroup owns."""
        columns = self.config.warpgroup_columns
        return pl.ds(self.warpgroup * columns, columns)


def position(config: Config) -> dict[str, Any]:
    """Return the fields of `Cta` that say where a thread stands."""
    return {
        "warpgroup": lax.axis_index("warpgroup"),
        "cluster": lax.axis_index("cluster"),
        "rank": lax.axis_index("rank") if config.cluster > 1 else 0,
    }


def buffers(
    x_tiles: Ref,
    w_tiles: Ref,
    scale_rows: Ref,
    shift_rows: list[Ref],
    staging: Ref,
    barriers: list[Ref],
    *detour: Ref,
) -> dict[str, Any]:
    """Return the fields of `Cta` for what `scratch_types` describes."""
    x_full, x_empty, w_full, w_empty, scale_full, scale_empty = barriers
    return {
        "x_tiles": x_tiles,
        "w_tiles": w_tiles,
        "scale_rows": scale_rows,
        "offset_rows": shift_rows[0] if shift_rows else None,
        "sum_rows": shift_rows[1] if shift_rows else None,
        "staging": staging,
        "detour": detour[0] if detour else None,
        "x_full": x_full,
        "x_empty": x_empty,
        "w_full": w_full,
        "w_empty": w_empty,
        "scale_full": scale_full,
        "scale_empty": scale_empty,
    }


def scratch_types(
    gemm: QuantizedGemm, config: Config, *, detour: bool, single_rows: bool = False
) -> list[Any]:
    """Return shared memory and barriers, in the order of `buffers`.

    Args:
      gemm: sizes and types.
      config: tiles.
      detour: with the detour of interpret mode.
      single_rows: staging tiles of which any rows can be stored.
    """
    piece = piece_size(config, gemm)  # what a product takes of a tile of X: whole swizzled rows

    def tiles(shape: tuple[int, ...], dtype: Any, row: int | None = None) -> Any:
        return plgpu.SMEM(shape, dtype, transforms=swizzled(row or shape[-1], dtype))

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
    staging = (config.warpgroups, config.store_slots, config.store_rows, WGMMA_ROWS)
    scratch = [
        tiles((config.x_stages, config.tm, config.x_columns), kind, min(piece, config.x_columns)),
        tiles(
            (config.w_stages, config.tn, config.tk * bits(gemm.kind) // 8),
            jnp.dtype(storage_dtype(gemm.kind)),
        ),
        plgpu.SMEM((scale_slots, rows, config.tn), jnp.dtype(gemm.scale_dtype)),
        _shifts(gemm, config),
        plgpu.SMEM(
            staging, out, transforms=_rows(out) if single_rows else swizzled(WGMMA_ROWS, out)
        ),
        [
            arrivals(1, config.x_stages),
            arrivals(config.warpgroups, config.x_stages),
            arrivals(1, config.w_stages),
            freed(config.w_stages),
            arrivals(3 if gemm.offset_dtype else 1, scale_slots),
            freed(scale_slots) if rows > 1 else arrivals(config.warpgroups, scale_slots),
        ],
    ]
    if detour:
        scratch.append(tiles((config.warpgroups, config.warpgroup_columns, config.tk), kind, piece))
    return scratch


def _shifts(gemm: QuantizedGemm, config: Config) -> list[Any]:
    """The rings of offsets and of sums of X, if there are offsets."""
    if gemm.offset_dtype is None:
        return []
    slots, rows = scale_stages(config, gemm), scale_rows(config, gemm)
    return [
        plgpu.SMEM((slots, rows, config.tn), jnp.dtype(gemm.offset_dtype)),
        plgpu.SMEM((slots, sum_slot_rows(config, gemm), config.tm), jnp.float32),
    ]


def _rows(out: Any) -> tuple[Any, ...]:
    """Transforms of a staging tile of which TMA can store any rows.

    Swizzled in tiles of one row; inference finds no transposed layout for those of four bytes,
    which then stay in plain order.
    """
    if out.itemsize > 2:
        return ()
    return plgpu.TilingTransform((1, WGMMA_ROWS)), plgpu.SwizzleTransform(SWIZZLE_BYTES)


def pieces(config: Config) -> Iterator[tuple[int, int, int]]:
    """Yield the stores of a warpgroup's tile: (slot, first column, first row)."""
    down = config.tm // config.store_rows
    for piece in range(config.store_pieces):
        yield (
            piece % config.store_slots,
            piece // down * WGMMA_ROWS,
            piece % down * config.store_rows,
        )


def stage(cta: Cta, total: Any, slot: int, column: int, row: int) -> Ref:
    """Round one piece and write it to its staging slot, transposed; return the slot.

    Args:
      cta: this CTA.
      total: float32 [columns, rows] of a warpgroup.
      slot: to write to.
      column: of the warpgroup's tile, the first of the piece.
      row: of the tile, the first of the piece.
    """
    config = cta.config
    tile = cta.staging.at[cta.warpgroup, slot]
    plgpu.wait_smem_to_gmem(config.store_slots - 1, wait_read_only=True)
    part = total[column : column + WGMMA_ROWS, row : row + config.store_rows]
    part = part.astype(jnp.dtype(cta.gemm.out_dtype))
    if cta.gemm.out_itemsize == 4:  # inference finds this layout for two bytes only
        part = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
    tile.transpose((1, 0))[...] = part
    plgpu.commit_smem()
    return tile


def _store(cta: Cta, total: Any, top: Int, strip: Int) -> None:
    """Round a warpgroup's part of a tile and write it to O piece by piece, transposed on the way.

    TMA clips what lies beyond the edges of O.
    """
    config = cta.config
    left = strip * config.tn + cta.warpgroup * config.warpgroup_columns
    for slot, column, row in pieces(config):
        tile = stage(cta, total, slot, column, row)
        plgpu.copy_smem_to_gmem(
            tile,
            cta.o.at[pl.ds(top + row, config.store_rows), pl.ds(left + column, WGMMA_ROWS)],
        )
