"""The walk over a CTA's share of a dataflow, the same in the warpgroup that loads and in others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int
from pallas_kernels.gemm.cta import Cta, Flow
from pallas_kernels.gemm.rows import Item
from pallas_kernels.gemm.schedule import passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a warpgroup sums up at once: some K steps of one tile of O.

    Truths that hold in all of a dataflow are Python's, so that no code comes of them.
    """

    item: Int  # its number
    start: Int  # K step
    length: Int  # K steps
    w: Int  # number of the first W tile among this CTA's
    x: Int  # number of the first K step of X
    sums: Int  # number of the first block of sums of X
    new_w: Any  # whether the W tiles are awaited
    last_w: Any  # whether nobody reads them after this
    new_scale: Any  # the same of a column's only scale
    last_scale: Any
    first: Any  # whether it is the tile's first section
    strip: Item  # whose W it is
    leaves: Any  # whether this warpgroup leaves the W tiles in device memory


def each_item(cta: Cta, flow: Flow, body: Callable[[Int, Item, Int], None]) -> Int:
    """Call `body(number, item, tiles of rows before it)` for this CTA's items of a dataflow.

    Returns:
      The tiles of rows of all items.
    """
    items = cta.rows.sym_items() if flow.is_sym else cta.rows.asym_items()
    of = cta.rows.sym_item if flow.is_sym else cta.rows.asym_item
    each = 1 if flow.is_sym else cta.sizes.row_tiles
    if flow.is_sym or cta.gemm.experts is None:

        @pl.loop(0, items)
        def _item(number: Int) -> None:
            body(number, of(number), number * each)

        return items * each

    def one(number: Int, before: Int) -> Int:
        item = of(number)
        body(number, item, before)
        return before + item.row_tiles

    return lax.fori_loop(0, items, one, jnp.int32(0))


def sum_blocks(cta: Cta, flow: Flow) -> Int:
    """Return the blocks of sums of X for each tile of rows."""
    if cta.gemm.groups == 1 and not flow.is_sym:
        return passes(cta.config, cta.sizes.k_steps, cta.first)
    return flow.rings.blocks(cta.sizes.k_steps)


def when(condition: Any, then: Callable[[], None]) -> None:
    """Do `then` if the condition holds, which may be known already."""
    if condition is True:
        then()
    elif condition is not False:
        pl.when(condition)(then)


def both(a: Any, b: Any) -> Any:
    """Return whether both hold."""
    if a is True:
        return b
    return a if b is True else a & b
