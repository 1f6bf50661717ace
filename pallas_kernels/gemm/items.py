"""The walk over a CTA's share of a dataflow, common to the load and compute warpgroups.

SymGEMM sums a tile over all of K. AsymGEMM processes the K passes of a strip one after another, and
in each pass the tiles of all rows; the sums of a tile are then those of the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, ceil_div, dealt, div
from pallas_kernels.gemm.cta import Cta, Flow
from pallas_kernels.gemm.rows import Item
from pallas_kernels.gemm.schedule import passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A warpgroup's unit of summation: some K steps of one tile of O.

    Flags that are constant in a dataflow are Python bools, so that they generate no code.
    """

    item: Int  # its number among this CTA's
    strip: Item  # whose W it is
    row_tile: Int = 0  # of the item
    which: Int = 0  # K pass
    last: Int = 0  # K pass
    start: Int = 0  # K step
    length: Int  # K steps
    w: Int  # number of the first W tile among this CTA's
    x: Int  # number of the first K step of X
    sums: Int = 0  # number of the first block of sums of X
    new_w: Any = True  # whether the W tiles are awaited
    last_w: Any = True  # whether this warpgroup does not read them again
    new_scale: Any = True  # the same of a column's only scale
    last_scale: Any = True
    first: Any = True  # whether it is the tile's first section


def each_section(
    cta: Cta,
    flow: Flow,
    body: Callable[[Section], None],
    at_pass: Callable[[Int, Item, Int, Int], None],
    share: tuple[Int, int] = (0, 1),
) -> Int:
    """Call `body` for this CTA's sections of a dataflow.

    Args:
      cta: this CTA.
      flow: the dataflow.
      body: function of a section.
      at_pass: called before the sections of each K pass of AsymGEMM, with the item's number, the
        item, the pass's first K step and its number of K steps.
      share: index of the first tile, and distance to the next one (`Cta.turn`); default all.

    Returns:
      The tiles of rows of all items.
    """
    first, turns = share
    k_steps = cta.sizes.k_steps
    if flow.is_sym:
        items = cta.rows.sym_items()

        @pl.loop(0, dealt(items, turns, first))
        def _tile(index: Int) -> None:
            number = index * turns + first
            x = number * k_steps
            sums = number * sum_blocks(cta, flow) if flow.sums is not None else 0
            strip = cta.rows.sym_item(number)
            body(Section(item=number, strip=strip, length=k_steps, w=x, x=x, sums=sums))

        return items

    def strip(number: Int, before: Int) -> Int:
        item, last = cta.rows.asym_item(number), passes(cta.config, k_steps, cta.first) - 1

        @pl.loop(0, last + 1)
        def _pass(which: Int) -> None:
            start, length = cta.pass_steps(which)
            at_pass(number, item, start, length)

            @pl.loop(0, dealt(item.row_tiles, turns, first))
            def _rows(index: Int) -> None:
                tile = index * turns + first
                new, done = index == 0, tile + turns >= item.row_tiles
                section = Section(
                    item=number,
                    strip=item,
                    row_tile=tile,
                    which=which,
                    last=last,
                    start=start,
                    length=length,
                    w=number * k_steps + start,
                    x=before * k_steps + start * item.row_tiles + tile * length,
                    new_w=new,
                    last_w=done,
                    new_scale=new & (which == 0),
                    last_scale=done & (which == last),
                    first=True if k_steps <= cta.config.ring else which == 0,
                )
                if flow.sums is not None:
                    section = replace(section, sums=_sums_before(cta, flow, section, before))
                body(section)

        return before + item.row_tiles

    items = cta.rows.asym_items()
    if cta.gemm.experts is not None:
        return lax.fori_loop(0, items, strip, jnp.int32(0))

    @pl.loop(0, items)
    def _strip(number: Int) -> None:
        strip(number, number * cta.sizes.row_tiles)

    return items * cta.sizes.row_tiles


def sum_blocks(cta: Cta, flow: Flow) -> Int:
    """Return the blocks of sums of X for each tile of rows."""
    if cta.gemm.groups == 1 and not flow.is_sym:
        return passes(cta.config, cta.sizes.k_steps, cta.first)
    return flow.rings.blocks(cta.sizes.k_steps)


def _sums_before(cta: Cta, flow: Flow, section: Section, before: Int) -> Int:
    """Return the number of blocks of sums of X before those of a section of AsymGEMM."""
    rows, steps = section.strip.row_tiles, flow.rings.scale_steps
    if cta.gemm.groups == 1:  # one for each pass of a tile
        within = section.which * rows + section.row_tile
    else:
        within = div(section.start, steps) * rows
        within += section.row_tile * ceil_div(section.length, steps)
    return before * sum_blocks(cta, flow) + within


def when(condition: Any, then: Callable[[], None]) -> None:
    """Run `then` if the condition, concrete or traced, holds."""
    if condition is True:
        then()
    elif condition is not False:
        pl.when(condition)(then)


def both(a: Any, b: Any) -> Any:
    """Return whether both hold."""
    if a is True:
        return b
    return a if b is True else a & b
