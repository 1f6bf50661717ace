"""One CTA's view in either attention kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl

from pallas_kernels.integer_math import Int, rem
from pallas_kernels.mosaic import Ref, drain, plgpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Shared memory and barriers by name."""

    q_s: Ref
    k_s: Ref
    v_s: Ref
    out_s: Ref
    q_full: Ref
    k_full: Ref
    v_full: Ref
    k_empty: Ref
    v_empty: Ref
    lse_s: Ref = None  # decode
    turn: Ref | None = None  # where two warpgroups compute in turns
    weights_s: Ref | None = None  # interpret mode: weights of the second product


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A CTA's share of a batch row's keys."""

    row: Int  # of the batch
    head: Int
    length: Int
    window: Int
    # blocks of keys
    first: Int
    blocks: Int
    q: Ref
    k: Ref
    v: Ref
    out: Ref
    at: Buffers


def load_blocks(
    walk: Walk, stages: int, pieces: Callable[[Int], Sequence[tuple[tuple[Any, ...], Any]]]
) -> None:
    """Load a CTA's blocks of keys and values into their rings, as the load warpgroup."""
    buffers = walk.at

    @pl.loop(0, walk.blocks)
    def _block(step: Int) -> None:
        slot, parts = rem(step, stages), pieces(step)
        for source, ring, full, empty in (
            (walk.k, buffers.k_s, buffers.k_full, buffers.k_empty),
            (walk.v, buffers.v_s, buffers.v_full, buffers.v_empty),
        ):

            @pl.when(step >= stages)
            def _reuse(empty: Ref = empty) -> None:
                plgpu.barrier_wait(empty.at[slot])

            for place, rows in parts:
                plgpu.copy_gmem_to_smem(source.at[place], ring.at[slot, rows], full.at[slot])

    drain(buffers.k_empty, stages, walk.blocks)
    drain(buffers.v_empty, stages, walk.blocks)
