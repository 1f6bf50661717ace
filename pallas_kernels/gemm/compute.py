"""Compute warpgroups: they sum a tile section by section and store the sums.

They share the rows of each tile (its columns, for quantised weights), or take whole tiles in turn
(`Config.ping_pong`): one rounds and stores its tile while another uses the tensor cores. The rings
alone order the turns: tiles are loaded in that order, and a slot is free for the next tile once the
previous warpgroup has read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, div, rem
from pallas_kernels.gemm.config import accumulator
from pallas_kernels.gemm.cta import Cta, Flow
from pallas_kernels.gemm.dequantise import sums_of_converted
from pallas_kernels.gemm.epilogue import store_section
from pallas_kernels.gemm.items import Section, each_section, when
from pallas_kernels.gemm.rows import Item
from pallas_kernels.mosaic import Ref, plgpu


def compute(cta: Cta, flow: Flow) -> None:
    """Compute this CTA's share of a dataflow, as one of its compute warpgroups."""
    make = _sums if cta.gemm.quantised is None else sums_of_converted

    def at_pass(number: Int, item: Item, start: Int, length: Int) -> None:
        # The previous pass's sums are in memory, not just out of the staging slots: the adds
        # below, by the same warpgroup for the same rows, must find them.
        _recorded(cta, number, 0, wait_for_sums)
        if cta.config.ping_pong:
            first = number * cta.sizes.k_steps + start
            pl.when(cta.warpgroup >= item.row_tiles)(lambda: _pass_on(flow, first, length))

    def wait_for_sums(cta: Cta) -> None:
        with cta.scope("wait_sums"):
            plgpu.wait_smem_to_gmem(0)

    def one(section: Section) -> None:
        def work(cta: Cta) -> None:
            with cta.scope("products"):
                sums = make(cta, flow, section)
            with cta.scope("stores"):
                store_section(cta, flow, sums, section)

        _recorded(cta, section.item, section.row_tile, work)

    each_section(cta, flow, one, at_pass, (cta.turn, cta.config.turns))
    plgpu.wait_smem_to_gmem(0)


def _recorded(cta: Cta, item: Int, row_tile: Int, work: Callable[[Cta], None]) -> None:
    """Run `work`; with a profile, by separate code for the tiles with recorded events."""
    if cta.profile is None:
        work(cta)
        return
    kept = rem(div(row_tile, cta.config.turns), cta.profile.every) == 0
    silent = replace(cta, profile=None)
    lax.cond((item == 0) & kept, lambda: work(cta), lambda: work(silent))


def _wait(cta: Cta, name: str, barrier: Ref) -> None:
    with cta.scope(name):
        plgpu.barrier_wait(barrier)


def _pass_on(flow: Flow, first: Int, length: Int) -> None:
    """Release the W tiles of a pass in a warpgroup that has no tile of rows for them."""

    @pl.loop(0, length)
    def _step(step: Int) -> None:
        slot = rem(first + step, flow.w.size)
        plgpu.barrier_wait(flow.w.full.at[slot])
        plgpu.barrier_arrive(flow.w.empty.at[slot])


def _sums(cta: Cta, flow: Flow, section: Section) -> Any:
    """Return the sums of a section; both operands come from shared memory."""
    turn = cta.turn

    def release(step: Int) -> None:
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
            when(section.new_w, lambda: _wait(cta, "wait_w", flow.w.arrived(w_slot, turn)))
            _wait(cta, "wait_x", flow.x.arrived(x_slot, turn))
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
