"""Prefill chunk of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from c2c.compiling.decision import decision
from c2c.policies.returns import A_CHUNK
from c2c.ranges import Count

__all__ = [
    "ByQueue",
    "ChunkChoice",
    "Fixed",
    "Profiled",
    "choose_chunk",
    "chunk_tokens",
    "largest_chunk",
]


class ChunkChoice(NamedTuple):
    """A chunk in tokens, and whether it meets every limit."""

    tokens: int
    feasible: bool


@decision(returns=A_CHUNK)
def chunk_tokens(policy: Any, profiled_tokens: int, backlog_tokens: int, decodes: int) -> int:
    """Return the most prompt tokens of an instance's next step.

    Args:
      profiled_tokens: the profiling table's choice.
      backlog_tokens: prompt tokens at the instance, with this step's.
    """


@decision(returns=A_CHUNK)
def largest_chunk(policy: Any, candidates: tuple[int, ...]) -> int:
    """Return the profiling table's largest possible chunk."""


class Profiled(NamedTuple):
    """The profiling table's chunk. Source: C2CServe section 6.3."""


@chunk_tokens.by(Profiled)
def _profiled(
    policy: Profiled, profiled_tokens: int, backlog_tokens: int, decodes: int
) -> int:  # fmt: skip
    return profiled_tokens


@largest_chunk.by(Profiled)
def _largest_profiled(policy: Profiled, candidates: tuple[int, ...]) -> int:
    return max(candidates)


class Fixed(NamedTuple):
    """One chunk for all models and slices, as in current engines."""

    tokens: Count = 2048


@chunk_tokens.by(Fixed)
def _fixed(policy: Fixed, profiled_tokens: int, backlog_tokens: int, decodes: int) -> int:
    return policy.tokens


@largest_chunk.by(Fixed)
def _largest_fixed(policy: Fixed, candidates: tuple[int, ...]) -> int:
    return policy.tokens


class ByQueue(NamedTuple):
    """The profiling table's chunk, times waiting prompt tokens over `prompt_tokens`."""

    prompt_tokens: Count = 1024
    limit_tokens: Count = 2048


@chunk_tokens.by(ByQueue)
def _by_queue(policy: ByQueue, profiled_tokens: int, backlog_tokens: int, decodes: int) -> int:
    grown = profiled_tokens * backlog_tokens // policy.prompt_tokens
    return max(profiled_tokens, min(policy.limit_tokens, grown))


@largest_chunk.by(ByQueue)
def _largest_by_queue(policy: ByQueue, candidates: tuple[int, ...]) -> int:
    return max(policy.limit_tokens, *candidates)


def choose_chunk(
    chunks: npt.NDArray[np.int64],
    ttft_s: npt.NDArray[np.float64],
    hbm_gbps: npt.NDArray[np.float64],
    compute_share: npt.NDArray[np.float64],
    *,
    ttft_slo_s: float,
    hbm_limit_gbps: float,
    compute_limit: float = 1.0,
) -> ChunkChoice:
    """Return the smallest chunk within TTFT target, HBM and compute.

    Args:
      chunks: [c] candidate sizes in tokens; the next three are [c], too.
      hbm_gbps: HBM bandwidth, 1e9 bytes/s.
      compute_share: share of tensor-core time.
      compute_limit: allowed `compute_share`.

    Returns:
      The choice; if none is feasible, the one of least TTFT, marked; ties go to the smaller.

    Source: C2CServe section 6.3.
    """
    order = np.argsort(chunks, kind="stable")
    ok = (ttft_s <= ttft_slo_s) & (hbm_gbps <= hbm_limit_gbps) & (compute_share <= compute_limit)
    for i in order:
        if ok[i]:
            return ChunkChoice(int(chunks[i]), True)
    best = min(order, key=lambda i: (float(ttft_s[i]), int(chunks[i])))
    return ChunkChoice(int(chunks[best]), False)
