"""One CTA's view in either attention kernel: its range of keys, its buffers and barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.experimental import pallas as pl

from pallas_kernels.counting import Int, rem
from pallas_kernels.mosaic import Ref, drain, plgpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Shared memory and barriers; K and V have rings of equally many slots."""

    q_s: Ref
    k_s: Ref
    v_s: Ref
    out_s: Ref
    lse_s: Ref
    weights_s: Ref | None  # interpret mode: weights of the second product
    q_full: Ref
    k_full: Ref
    v_full: Ref
    k_empty: Ref
    v_empty: Ref
    turn: Ref | None  # where two warpgroups compute in turns


def buffers(memory: Sequence[Ref], gates: Sequence[Ref]) -> Buffers:
    """Return `Buffers` from a kernel's scratch references, in the order of its fields."""
    q_s, k_s, v_s, out_s, lse_s, *weights_s = memory
    q_full, k_full, v_full, k_empty, v_empty, *turn = gates
    return Buffers(
        q_s=q_s,
        k_s=k_s,
        v_s=v_s,
        out_s=out_s,
        lse_s=lse_s,
        weights_s=weights_s[0] if weights_s else None,
        q_full=q_full,
        k_full=k_full,
        v_full=v_full,
        k_empty=k_empty,
        v_empty=v_empty,
        turn=turn[0] if turn else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A CTA's share of a batch row's keys, and the arrays in global memory."""

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
    lse: Ref
    at: Buffers


def load_blocks(
    walk: Walk, stages: int, pieces: Callable[[Int], Sequence[tuple[tuple[Any, ...], Any]]]
) -> None:
    """Load a CTA's blocks of keys and values into their rings, as the load warpgroup."""
    at = walk.at

    @pl.loop(0, walk.blocks)
    def _block(step: Int) -> None:
        slot, parts = rem(step, stages), pieces(step)
        for source, ring, full, empty in (
            (walk.k, at.k_s, at.k_full, at.k_empty),
            (walk.v, at.v_s, at.v_full, at.v_empty),
        ):

            @pl.when(step >= stages)
            def _reuse(empty: Ref = empty) -> None:
                plgpu.barrier_wait(empty.at[slot])

            for place, rows in parts:
                plgpu.copy_gmem_to_smem(source.at[place], ring.at[slot, rows], full.at[slot])

    drain(at.k_empty, stages, walk.blocks)
    drain(at.v_empty, stages, walk.blocks)
