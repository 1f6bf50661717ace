"""Load warpgroup: it fills the rings of one dataflow and waits for their slots.

SymGEMM streams W with the X of one tile of rows; W may run ahead. AsymGEMM loads the W tiles of a K
pass, then the X of all rows for them. Each CTA of a cluster loads and multicasts a part of the
shared tiles: W and scales in SymGEMM, X in AsymGEMM.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, div, rem
from pallas_kernels.gemm.cta import Cta, Flow, Ring, of_expert
from pallas_kernels.gemm.items import Section, each_section, sum_blocks
from pallas_kernels.gemm.rows import Item
from pallas_kernels.mosaic import drain, plgpu


def load(cta: Cta, flow: Flow) -> None:
    """Load all tiles of this CTA's share of a dataflow."""
    k_steps = cta.sizes.k_steps
    if flow.is_sym:
        items = tiles = cta.rows.sym_items()
        _load_sym(cta, flow, items * k_steps)
    else:
        items, tiles = cta.rows.asym_items(), _load_asym(cta, flow)
    # a CTA must not end while a peer can still arrive at its barriers
    drain(flow.w.empty, flow.w.size, items * k_steps)
    drain(flow.x.empty, flow.x.size, tiles * k_steps * cta.config.x_steps)
    if flow.scales is not None:
        drain(flow.scales.empty, flow.scales.size, items * flow.rings.blocks(k_steps))
    if flow.sums is not None:
        drain(flow.sums.empty, flow.sums.size, tiles * sum_blocks(cta, flow))


def _load_sym(cta: Cta, flow: Flow, steps: Int) -> None:
    k_steps, ahead = cta.sizes.k_steps, cta.config.w_ahead

    def load_w(counter: Int) -> None:
        number = div(counter, k_steps)
        _load_w(cta, flow, cta.rows.sym_item(number), number, rem(counter, k_steps))

    if ahead:

        @pl.loop(0, jnp.minimum(ahead, steps))
        def _first(counter: Int) -> None:
            load_w(counter)

    @pl.loop(0, steps)
    def _step(counter: Int) -> None:
        if ahead:

            @pl.when(counter + ahead < steps)
            def _ahead() -> None:
                load_w(counter + ahead)
        else:
            load_w(counter)

        number, k_step = div(counter, k_steps), rem(counter, k_steps)
        top = cta.rows.tile_top(cta.rows.sym_item(number), 0)
        _load_x(cta, flow, top, k_step, counter, rem(number, cta.config.turns))
        if flow.sums is not None:
            before = number * sum_blocks(cta, flow)
            _load_sums(cta, flow, top, k_step, before, first_step=0)


def _load_asym(cta: Cta, flow: Flow) -> Int:
    """Return the tiles of rows of all items."""

    def pin(number: Int, item: Item, start: Int, length: Int) -> None:
        @pl.loop(0, length)
        def _w(step: Int) -> None:
            _load_w(cta, flow, item, number, start + step)

    def stream(section: Section) -> None:
        start, turn = section.start, rem(section.row_tile, cta.config.turns)
        top = cta.rows.tile_top(section.strip, section.row_tile)

        @pl.loop(0, section.length)
        def _step(step: Int) -> None:
            _load_x(cta, flow, top, start + step, section.x + step, turn)
            if flow.sums is not None:
                _load_sums(cta, flow, top, start + step, section.sums, first_step=start)

    return each_section(cta, flow, stream, pin)


def _load_w(cta: Cta, flow: Flow, item: Item, number: Int, k_step: Int) -> None:
    """Load a W tile of an item; with the first one of a block also scales and offsets."""
    counter = number * cta.sizes.k_steps + k_step
    shared = cta.shared if flow.is_sym else {}
    if flow.scales is not None:
        pl.when(rem(k_step, flow.rings.scale_steps) == 0)(
            lambda: _load_scales(cta, flow, item, number, k_step)
        )
    slot = rem(counter, flow.w.size)
    arrived = flow.w.arrived(slot, rem(number, cta.config.turns))
    _await(flow.w, counter)
    for source, target in cta.w_tile(item, k_step, flow.w.tiles.at[slot]):
        plgpu.copy_gmem_to_smem(source, target, arrived, **shared)


def _load_scales(cta: Cta, flow: Flow, item: Item, number: Int, k_step: Int) -> None:
    assert flow.scales is not None
    rows, block = flow.rings.scale_rows, lax.div(k_step, flow.rings.scale_steps)
    counter = number * flow.rings.blocks(cta.sizes.k_steps) + block
    slot = rem(counter, flow.scales.size)
    _await(flow.scales, counter)
    # a column's only scale is too short to be shared
    shared = cta.shared if flow.is_sym and cta.gemm.groups > 1 else {}
    groups = pl.ds(block * rows, rows)
    columns = pl.ds(item.strip * cta.config.tn, cta.config.tn)
    for source, target in ((cta.scales, flow.scales.tiles), (cta.offsets, flow.offsets)):
        if source is not None and target is not None:
            plgpu.copy_gmem_to_smem(
                of_expert(source, item).at[groups, columns],
                target.at[slot],
                flow.scales.full.at[slot],
                **shared,
            )


def _load_x(cta: Cta, flow: Flow, top: Int, k_step: Int, counter: Int, turn: Int) -> None:
    """Load a warpgroup's X tiles of a K step, the CTA's number `counter`."""
    config = cta.config
    shared = {} if flow.is_sym else cta.shared
    for part in range(config.x_steps):
        number = counter * config.x_steps + part
        slot = rem(number, flow.x.size)
        _await(flow.x, number)
        source = cta.x_tile(top, k_step * config.tk + part * config.x_columns)
        arrived = flow.x.arrived(slot, turn)
        plgpu.copy_gmem_to_smem(source, flow.x.tiles.at[slot], arrived, **shared)


def _load_sums(
    cta: Cta, flow: Flow, top: Int, k_step: Int, before: Int, *, first_step: Int
) -> None:
    """Load sums of X with the first K step of their block, `before` blocks being earlier ones."""
    steps, rows = flow.rings.scale_steps, flow.rings.sum_rows
    ring, x_sums = flow.sums, cta.x_sums
    assert ring is not None
    assert x_sums is not None
    is_first = k_step == first_step if cta.gemm.groups == 1 else rem(k_step, steps) == 0

    @pl.when(is_first)
    def _sums() -> None:
        block = lax.div(k_step, steps)
        number = before + block - lax.div(jnp.asarray(first_step, jnp.int32), steps)
        slot = rem(number, ring.size)
        _await(ring, number)
        plgpu.copy_gmem_to_smem(
            x_sums.at[pl.ds(block * rows, rows), pl.ds(top, cta.config.tm)],
            ring.tiles.at[slot, pl.ds(0, rows)],
            ring.full.at[slot],
        )


def _await(ring: Ring, counter: Int) -> None:
    """Wait until the slot of tile number `counter` is free, as all slots are at first."""

    @pl.when(counter >= ring.size)
    def _() -> None:
        plgpu.barrier_wait(ring.empty.at[rem(counter, ring.size)])
