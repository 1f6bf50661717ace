"""Compute warpgroups: sums by section, and stores."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.gemm.config import accumulator
from pallas_kernels.gemm.cta import Cta, by_flow
from pallas_kernels.gemm.dequantise import sums_of_converted
from pallas_kernels.gemm.epilogue import store_section
from pallas_kernels.gemm.items import Section, each_section, when
from pallas_kernels.gemm.rows import Item
from pallas_kernels.integer_math import Int
from pallas_kernels.mosaic import Ref, plgpu


# Warpgroups share the rows of each tile (its columns, for quantised weights), or take whole tiles
# in turn (`Config.ping_pong`): one rounds and stores its tile while another uses the tensor cores.
# The rings alone order the turns: tiles are loaded in that order, and a slot is free for the next
# tile once the previous warpgroup has read it.
def compute(cta: Cta) -> None:
    """Compute this CTA's share, as a compute warpgroup."""
    make = _sums if cta.gemm.quantised is None else sums_of_converted

    def at_pass(number: Int, item: Item, start: Int, length: Int) -> None:
        def begin() -> None:
            if not isinstance(cta.passes, int):
                # The previous pass's sums are in memory, not just out of the staging slots: the
                # adds below, by the same warpgroup for the same rows, must find them.
                plgpu.wait_smem_to_gmem(0)
            if cta.config.ping_pong:
                first = number * cta.sizes.k_steps + start
                pl.when(cta.warpgroup >= item.row_tiles)(lambda: _pass_on(cta, first, length))

        if cta.config.asym:
            by_flow(cta.is_sym, lambda: None, begin)

    def one(section: Section) -> None:
        store_section(cta, make(cta, section), section)

    each_section(cta, one, at_pass, (cta.turn, cta.config.turns))
    plgpu.wait_smem_to_gmem(0)


def _pass_on(cta: Cta, first: Int, length: Int) -> None:
    @pl.loop(0, length)
    def _step(step: Int) -> None:
        slot = cta.w_ring.slot(first + step)
        plgpu.barrier_wait(cta.w_ring.arrived(slot))
        cta.w_ring.free(slot)


def _sums(cta: Cta, section: Section) -> Any:
    x_ring, w_ring = cta.x_ring, cta.w_ring

    def release(step: Int) -> None:
        x_ring.free(x_ring.slot(section.x + step))
        when(section.last_w, lambda: w_ring.free(w_ring.slot(section.w + step)))

    def multiply(acc: Ref) -> Any:
        @pl.loop(0, section.length)
        def _step(step: Int) -> None:
            x_slot, w_slot = x_ring.slot(section.x + step), w_ring.slot(section.w + step)
            w_arrived = w_ring.arrived(w_slot, cta.w_turn)
            when(section.new_w, lambda: plgpu.barrier_wait(w_arrived))
            plgpu.barrier_wait(x_ring.arrived(x_slot, cta.turn))
            w = w_ring.tiles.at[w_slot]
            # [tk, tn] whatever its layout; a view, nothing moves
            w = w if cta.gemm.w_layout == "kn" else w.transpose((1, 0))
            plgpu.wgmma(acc, x_ring.tiles.at[x_slot].at[cta.own], w)
            plgpu.wgmma_wait(1)  # the previous product is done, its tiles are free

            @pl.when(step > 0)
            def _release() -> None:
                release(step - 1)

        plgpu.wgmma_wait(0)
        release(section.length - 1)
        return acc[...]

    return pl.run_scoped(multiply, plgpu.ACC(accumulator(cta.config, cta.gemm), jnp.float32))
