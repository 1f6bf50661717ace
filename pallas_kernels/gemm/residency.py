"""Strips of W that are in device memory too: read from there, and left there by a launch.

All of W is in host memory; a cache in device memory holds whole column strips of it besides. The
first `resident_strips` of a launch come from the cache, the others over the link, in one launch;
the number is read at run time. A cache has no layers but a number of columns of K weights: those of
a layer begin wherever the launch is told (`resident_begin`), so that one cache serves all layers of
a projection, and their shares can change without compiling: the first strips of each, or all of
some. Experts have caches of equal size, side by side.

A launch that fills stores each W tile of some strips from shared memory to the cache, beside the
product, in the first of its readings: a cache fills without a second crossing of the link.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax import lax

from pallas_kernels.counting import Int
from pallas_kernels.gemm.cta import Cta, Flow
from pallas_kernels.gemm.items import Section, when
from pallas_kernels.gemm.rows import Item
from pallas_kernels.gemm.specs import PACK_MULTIPLE
from pallas_kernels.mosaic import Ref, plgpu


def from_either(cta: Cta, item: Item, copy: Callable[[Ref, Int], None]) -> None:
    """Call `copy(matrix, first block of columns)` for where an item's strip is nearest."""
    first = item.strip * (cta.config.tn // PACK_MULTIPLE)
    if cta.cache is None:
        copy(cta.w, first)
        return
    cache = cta.cache
    lax.cond(
        item.strip < cta.plan.resident_strips,
        lambda: copy(cache, cta.plan.resident_begin + first),
        lambda: copy(cta.w, first),
    )


def leaves(cta: Cta, flow: Flow, section: Section) -> Any:
    """Return True if this warpgroup leaves a section's strip in the cache; False if none ever does.

    In the first reading of the strip in the launch, one warpgroup of one CTA.
    """
    if not cta.gemm.fills:
        return False
    plan, strip = cta.plan, section.strip
    wanted = (strip.strip >= plan.resident_strips) & (strip.strip < plan.fill_end)
    wanted &= strip.top == 0 if flow.is_sym else section.row_tile == 0
    return wanted if cta.config.ping_pong else wanted & (cta.warpgroup == 0)


def leave(cta: Cta, item: Item, k_step: Int, slot: Ref) -> None:
    """Store a W tile in the cache; its slot must not be freed before `left`."""
    assert cta.cache is not None
    tn, blocks = cta.config.tn, cta.config.tn // PACK_MULTIPLE
    first = item.strip * blocks
    # Columns behind N may be somebody else's in the cache.
    is_cut = cta.gemm.n % tn != 0
    parts = cta.w_tile(
        cta.cache,
        cta.plan.resident_begin + first,
        k_step,
        slot,
        columns=PACK_MULTIPLE if is_cut else None,
    )
    for number, (target, source) in enumerate(parts):
        inside = (first + number) * PACK_MULTIPLE < cta.gemm.n if is_cut else True
        when(inside, functools.partial(plgpu.copy_smem_to_gmem, source, target))


def left() -> None:
    """Wait until the tiles that this warpgroup stores have been read from shared memory."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
