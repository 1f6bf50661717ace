"""The warpgroups that compute: sums of a tile, section by section, and what becomes of them.

SymGEMM sums up a tile over all of K. AsymGEMM takes the K passes of a strip one after another, and
in each pass the tiles of all rows; the sums of a tile are then those of the pass.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, rem
from pallas_kernels.gemm.config import accumulator
from pallas_kernels.gemm.cta import Cta, Flow
from pallas_kernels.gemm.dequantise import sums_of_converted
from pallas_kernels.gemm.epilogue import store_o, store_pass
from pallas_kernels.gemm.items import Section, each_item, sum_blocks, when
from pallas_kernels.gemm.load import sums_before
from pallas_kernels.gemm.residency import leave, leaves, left
from pallas_kernels.gemm.rows import Item
from pallas_kernels.gemm.schedule import passes
from pallas_kernels.mosaic import Ref, plgpu


def compute(cta: Cta, flow: Flow) -> None:
    """Make this CTA's share of a dataflow, as one of its compute warpgroups."""
    make = _sums if cta.gemm.quantised is None else sums_of_converted
    k_steps = cta.sizes.k_steps

    def sym(number: Int, item: Item, before: Int) -> None:  # noqa: ARG001 - one tile an item
        section = Section(
            item=number,
            start=0,
            length=k_steps,
            w=number * k_steps,
            x=number * k_steps,
            sums=number * sum_blocks(cta, flow) if flow.sums is not None else 0,
            strip=item,
            leaves=leaves(cta, item, item.top == 0),
            **dict.fromkeys(("new_w", "last_w", "new_scale", "last_scale", "first"), True),
        )
        acc = make(cta, flow, section)
        store_o(cta, acc, item, cta.rows.tile_top(item, 0))

    def asym(number: Int, item: Item, before: Int) -> None:
        last = passes(cta.config, k_steps, cta.first) - 1
        one_pass = k_steps <= cta.config.ring

        @pl.loop(0, last + 1)
        def _pass(which: Int) -> None:
            start, length = cta.pass_steps(which)
            # The previous pass's sums are in memory, not just out of the staging slots: the adds
            # below, by the same warpgroup for the same rows, must find them.
            plgpu.wait_smem_to_gmem(0)

            @pl.loop(0, item.row_tiles)
            def _rows(row_tile: Int) -> None:
                is_first, is_last = row_tile == 0, row_tile == item.row_tiles - 1
                earlier: Int = 0
                if flow.sums is not None:
                    earlier = sums_before(cta, flow, item, before, row_tile, which, start, length)
                section = Section(
                    item=number,
                    start=start,
                    length=length,
                    w=number * k_steps + start,
                    x=before * k_steps + start * item.row_tiles + row_tile * length,
                    sums=earlier,
                    new_w=is_first,
                    last_w=is_last,
                    new_scale=is_first & (which == 0),
                    last_scale=is_last & (which == last),
                    first=True if one_pass else which == 0,
                    strip=item,
                    leaves=leaves(cta, item, is_first),
                )
                acc = make(cta, flow, section)
                store_pass(cta, acc, item, row_tile, which, last)

    each_item(cta, flow, sym if flow.is_sym else asym)
    plgpu.wait_smem_to_gmem(0)


def _sums(cta: Cta, flow: Flow, section: Section) -> Any:
    """Return the sums of a section; both operands come from shared memory."""

    def release(step: Int) -> None:
        when(section.leaves, left)
        plgpu.barrier_arrive(flow.x.empty.at[rem(section.x + step, flow.x.size)])
        when(
            section.last_w,
            lambda: plgpu.barrier_arrive(flow.w.empty.at[rem(section.w + step, flow.w.size)]),
        )

    def multiply(acc: Ref) -> Any:
        @pl.loop(0, section.length)
        def _step(step: Int) -> None:
            x_slot = rem(section.x + step, flow.x.size)
            w_slot = rem(section.w + step, flow.w.size)
            when(section.new_w, lambda: plgpu.barrier_wait(flow.w.full.at[w_slot]))
            when(
                section.leaves,
                lambda: leave(cta, section.strip, section.start + step, flow.w.tiles.at[w_slot]),
            )
            plgpu.barrier_wait(flow.x.full.at[x_slot])
            w = flow.w.tiles.at[w_slot]
            # [tk, tn] whatever its layout; a view, nothing moves
            w = w if cta.gemm.w_layout == "kn" else w.transpose((1, 0))
            plgpu.wgmma(acc, flow.x.tiles.at[x_slot].at[cta.own], w)
            plgpu.wgmma_wait(1)  # the previous product is done, its tiles are free

            @pl.when(step > 0)
            def _release() -> None:
                release(step - 1)

        plgpu.wgmma_wait(0)
        release(section.length - 1)
        return acc[...]

    return pl.run_scoped(multiply, plgpu.ACC(accumulator(cta.config, cta.gemm), jnp.float32))
