"""The prefill chunk of a (model, slice) pair (C2CServe section 6.3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

__all__ = ["ChunkChoice", "choose_chunk"]


class ChunkChoice(NamedTuple):
    """The chunk in tokens and whether every limit holds for it."""

    tokens: int
    feasible: bool


def choose_chunk(
    chunks: Int[np.ndarray, " c"],
    ttft_s: Float[np.ndarray, " c"],
    hbm_gbps: Float[np.ndarray, " c"],
    compute_share: Float[np.ndarray, " c"],
    *,
    ttft_slo_s: float,
    hbm_limit_gbps: float,
    compute_limit: float = 1.0,
) -> ChunkChoice:
    """Return the smallest chunk that meets the TTFT target within the HBM and compute budgets.

    Args:
      chunks: candidate sizes in tokens.
      ttft_s: predicted time to first token of the reference prompt for each candidate.
      hbm_gbps: HBM bandwidth each candidate needs, 1e9 bytes/s.
      compute_share: share of the slice's tensor-core time each candidate needs, 1 = all of it.
      ttft_slo_s: the target.
      hbm_limit_gbps: the slice's HBM bandwidth.
      compute_limit: allowed `compute_share`.

    Returns:
      The choice. Where no candidate satisfies all limits (the paper is silent) it is the one
      with the least predicted TTFT, marked infeasible; ties go to the smaller chunk.

    Source: C2CServe section 6.3.
    """
    order = np.argsort(chunks, kind="stable")
    ok = (ttft_s <= ttft_slo_s) & (hbm_gbps <= hbm_limit_gbps) & (compute_share <= compute_limit)
    for i in order:
        if ok[i]:
            return ChunkChoice(int(chunks[i]), True)
    best = min(order, key=lambda i: (float(ttft_s[i]), int(chunks[i])))
    return ChunkChoice(int(chunks[best]), False)
