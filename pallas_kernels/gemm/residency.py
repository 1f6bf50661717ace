"""Resident strips: column strips of W that a launch reads from, or stores to, device memory.

All of W is in host memory; a cache in device memory has copies of whole column strips. A launch
reads the first `resident_strips` from the cache, the others over the link; the number is a run-time
scalar. A cache has no axis of layers, only columns of K weights: the columns of a layer begin at
the run-time `resident_begin`. So one cache serves all layers of a projection, and their shares can
change without compiling: the first strips of each, or all of some. Experts have caches of equal
size, side by side.

A launch that fills the cache stores each W tile of some strips from shared memory, beside the
product, at its first reading: the cache fills without a second crossing of the link.
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
    """Call `copy(matrix, first block of columns)` for the nearest copy of an item's strip."""
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
    """Return True if this warpgroup stores a section's strip in the cache.

    One warpgroup of one CTA does, at the first reading of the strip in the launch. False is
    concrete if the launch fills no cache.
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
    """Wait until this warpgroup's stored tiles have been read from shared memory."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
