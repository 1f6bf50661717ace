"""The Hopper kernel for quantised experts: quantized_gemm's dataflow with this op's schedule.

O^T = W X^T for each block of an expert's rows, W converted in registers (see
`quantized_gemm.sm90`, whose loads and products these are). What differs is which matrix an item
reads, where its rows begin, and which rows of a finished tile are stored: they are written through
a transposed view of a staging tile in an order in which TMA can store any rows, and leave by powers
of two (see `sm90`). Rows that belong to no expert get zeros after all products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.counting import Int
from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm
from pallas_kernels.grouped_gemm.schedule import ACTIVE_CLUSTERS, LAYER
from pallas_kernels.grouped_gemm.work import Work, store_rows
from pallas_kernels.hopper import WGMMA_ROWS
from pallas_kernels.mosaic import Ref, persistent, plgpu
from pallas_kernels.quantized_gemm import Config, check_fits
from pallas_kernels.quantized_gemm.cta import (
    Cta,
    buffers,
    pieces,
    position,
    scratch_types,
    stage,
)
from pallas_kernels.quantized_gemm.schedule import Plan, counts
from pallas_kernels.quantized_gemm.sm90 import run


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedCta(Cta):
    """A CTA whose items are those of the block table; weights are [experts, ...]."""

    work: Work

    @property
    def items(self) -> Int:
        """Items of this CTA's cluster that have an expert."""
        return self.work.with_expert

    def tile(self, item: Int) -> tuple[Int, Int]:
        """First row of this CTA's tile of an item, and its strip."""
        _, top, strip = self.work.item(item)
        return top, strip

    def matrix(self, item: Int) -> tuple[Ref, Ref]:
        """Weights [n, stored k] of the item's expert, and its scales [groups, n]."""
        block, _, _ = self.work.item(item)
        return self.w.at[block.expert], self.scales.at[block.expert]

    def offsets_of(self, item: Int) -> Ref | None:
        """Offsets of the item's expert [groups, n], or None."""
        block, _, _ = self.work.item(item)
        return None if self.offsets is None else self.offsets.at[block.expert]

    def store(self, item: Int, total: Any) -> None:
        """Write this warpgroup's part of the item's tile: the rows that are its group's."""
        config = self.config
        block, top, strip = self.work.item(item)
        left = strip * config.tn + self.warpgroup * config.warpgroup_columns
        for slot, column, row in pieces(config):
            tile = stage(self, total, slot, column, row)
            columns = pl.ds(left + column, WGMMA_ROWS)
            store_rows(tile, self.o, block, top + row, config.store_rows, columns)


def build(
    gemm: QuantizedGroupedGemm,
    config: Config,
    *,
    interpret: mosaic_gpu.InterpretGPUParams | None = None,
) -> Callable[..., jax.Array]:
    """Return `kernel(x, w, scales, table, scalars) -> o` for one shape and configuration.

    With offsets it is `kernel(x, w, scales, offsets, x_sums, table, scalars) -> o`.

    Args:
      gemm: sizes and types.
      config: tiles and grid.
      interpret: run on a CPU with these settings instead of compiling for the GPU.

    Returns:
      A function of x[gemm.expert.m, k], w of shape `gemm.w_shape`, scales and offsets of shape
      `gemm.scales_shape`, `quantized_gemm.reference.sums_of(x, sum_size)`, the block table and the
      int32 vector `scalars`: blocks of experts, all blocks, active clusters, layer. o is [t, n].

    Raises:
      ValueError: the configuration does not fit the GEMM or the hardware.
    """
    check_fits(config, gemm.expert)
    sizes = counts(config, gemm.expert)
    shifts = 2 if gemm.expert.offset_dtype else 0

    def body(x: Ref, w: Ref, scales: Ref, *rest: Any) -> None:
        # first offsets and x_sums, if there are offsets
        shift, (table, scalars, o, *scratch) = rest[:shifts], rest[shifts:]
        where = position(config)

        def of_layer(stack: Ref) -> Ref:
            return stack if gemm.layers is None else stack.at[scalars[LAYER]]

        cta = GroupedCta(
            config=config,
            gemm=gemm.expert,
            sizes=sizes,
            plan=Plan(active_clusters=scalars[ACTIVE_CLUSTERS], layer=scalars[LAYER]),
            x=x,
            w=of_layer(w),
            scales=of_layer(scales),
            offsets=of_layer(shift[0]) if shift else None,
            x_sums=shift[1] if shift else None,
            o=o,
            work=Work(
                table=table,
                scalars=scalars,
                strips=sizes.strips,
                tm=config.tm,
                ranks=config.cluster,
                cluster=where["cluster"],
                rank=where["rank"],
            ),
            **where,
            **buffers(*scratch),
        )
        run(cta)

        @pl.when(cta.warpgroup < config.warpgroups)
        def _() -> None:
            _store_zeros(cta)

    return persistent(
        body,
        out=((gemm.t, gemm.expert.n), gemm.expert.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=scratch_types(gemm.expert, config, detour=interpret is not None, single_rows=True),
        interpret=interpret,
    )


def _store_zeros(cta: GroupedCta) -> None:
    """Write this warpgroup's part of the rows that belong to no expert."""
    shape = (cta.config.warpgroup_columns, cta.config.tm)

    @pl.loop(cta.items, cta.work.all)
    def _item(item: Int) -> None:
        zeros = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)
        cta.store(item, zeros)

    plgpu.wait_smem_to_gmem(0)
