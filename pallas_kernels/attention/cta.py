"""What a CTA of either attention kernel sees: the keys it walks over, its buffers and barriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.counting import Int
from pallas_kernels.mosaic import Ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Shared memory and barriers; K and V go through rings of as many slots."""

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
    """Name what a kernel has as scratch, in the order in which `Buffers` lists it."""
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
    """A batch row's keys as far as a CTA takes them, and the arrays in global memory."""

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
