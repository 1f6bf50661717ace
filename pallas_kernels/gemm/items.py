"""The walk over a CTA's share of a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.cta import Cta
from pallas_kernels.gemm.rows import Item
from pallas_kernels.integer_math import Int, ceil_div, dealt, div, where


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A warpgroup's sum: K steps of a tile; constant flags are Python bools."""

    item: Int  # its number among this CTA's
    strip: Item  # whose W it is
    row_tile: Int  # of the item
    which: Int  # K pass
    last: Int  # K pass
    start: Int  # K step
    length: Int  # K steps
    w: Int  # number of the first W tile among this CTA's
    x: Int  # number of the first K step of X
    sums: Int = 0  # number of the first block of sums of X
    new_w: Any  # whether the W tiles are awaited
    last_w: Any  # whether this warpgroup does not read them again
    new_scale: Any  # the same of a column's only scale
    last_scale: Any
    first: Any  # whether it is the tile's first section


# SymGEMM   for item: one pass of all K steps, one tile of rows
# AsymGEMM  for item: for K pass: for tile of rows; the W tiles of a pass stay
def each_section(
    cta: Cta,
    body: Callable[[Section], None],
    at_pass: Callable[[int, Item, Int, Int], None] = lambda *_: None,
    share: tuple[Int, int] = (0, 1),
) -> Int:
    """Call `body` for this CTA's sections."""
    first, turns = share
    is_sym, k_steps = cta.is_sym, cta.sizes.k_steps
    item_first, item_turns = where(is_sym, first, 0), where(is_sym, turns, 1)
    tile_first, tile_turns = where(is_sym, 0, first), where(is_sym, 1, turns)
    last = cta.passes - 1

    def strip(index: Int, before: Int) -> Int:
        number = item_first + index * item_turns
        item = cta.rows.item(number)

        def one_pass(which: Int) -> None:
            start, length = cta.pass_steps(which)
            at_pass(number, item, start, length)

            def tile(index: Int) -> None:
                row = tile_first + index * tile_turns
                new, done = index == 0, row + tile_turns >= item.row_tiles
                section = Section(
                    item=number,
                    strip=item,
                    row_tile=row,
                    which=which,
                    last=last,
                    start=start,
                    length=length,
                    w=number * k_steps + start,
                    x=before * k_steps + start * item.row_tiles + row * length,
                    new_w=new,
                    last_w=done,
                    new_scale=both(new, which == 0),
                    last_scale=both(done, which == last),
                    first=which == 0,
                )
                if cta.sum_ring is not None:
                    section = replace(section, sums=_sums_before(cta, section, before))
                body(section)

            _times(dealt(item.row_tiles, tile_turns, tile_first), tile)

        _times(cta.passes, one_pass)
        return before + item.row_tiles * item_turns

    items = dealt(cta.rows.items(), item_turns, item_first)
    return lax.fori_loop(0, items, strip, jnp.asarray(item_first, jnp.int32))


def _times(count: Int, body: Callable[[Int], None]) -> None:
    if isinstance(count, int) and count == 1:
        body(0)
    else:
        pl.loop(0, count)(body)


def sum_blocks(cta: Cta) -> Int:
    """Return blocks of sums of X for each row tile."""
    return cta.passes if cta.gemm.groups == 1 else cta.rings.blocks(cta.sizes.k_steps)


def _sums_before(cta: Cta, section: Section, before: Int) -> Int:
    rows, steps = section.strip.row_tiles, cta.rings.scale_steps
    if cta.gemm.groups == 1:  # one for each pass of a tile
        within = section.which * rows + section.row_tile
    else:
        within = div(section.start, steps) * rows
        within += section.row_tile * ceil_div(section.length, steps)
    return before * sum_blocks(cta) + within


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
