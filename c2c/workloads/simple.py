"""Simple arrival processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, In, check_fields
from c2c.workloads.blocks import RequestBlock
from c2c.workloads.streams import stream_of

__all__ = [
    "SteadyTrace",
    "deterministic_blocks",
    "poisson_blocks",
    "queued_blocks",
    "zipf_shares",
]

_BLOCK_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyTrace:
    """Settings of a generator with a constant mean rate.

    Attributes:
      rate_rps: of all models.
      zipf_exponent: rank r (from 1) has a share of r^-exponent; 0: equal.
    """

    requests: Count = 10_000
    models: Count = 1
    rate_rps: AboveZero = 1.0
    zipf_exponent: Annotated[float, In("[0, 10]")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "workload")


def zipf_shares(models: int, exponent: float) -> NDArray[np.float64]:
    """Return each rank's share, proportional to rank^-exponent."""
    weights = np.arange(1, models + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


def poisson_blocks(trace: SteadyTrace, seed: int) -> Iterator[RequestBlock]:
    """Yield a Poisson process without lengths (zeros)."""
    gaps, choices = stream_of(seed, "gaps"), stream_of(seed, "models")
    edges = np.cumsum(zipf_shares(trace.models, trace.zipf_exponent))[:-1]
    now_s = 0.0
    for first in range(0, trace.requests, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, trace.requests - first)
        arrival_s = now_s + np.cumsum(gaps.standard_exponential(count)) / trace.rate_rps
        now_s = float(arrival_s[-1])
        model = np.searchsorted(edges, choices.random(count), side="right").astype(np.int32)
        yield _without_lengths(arrival_s, model)


def queued_blocks(trace: SteadyTrace, seed: int) -> Iterator[RequestBlock]:
    """Yield requests at time 0, for closed loops."""
    choices = stream_of(seed, "models")
    edges = np.cumsum(zipf_shares(trace.models, trace.zipf_exponent))[:-1]
    for first in range(0, trace.requests, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, trace.requests - first)
        model = np.searchsorted(edges, choices.random(count), side="right").astype(np.int32)
        yield _without_lengths(np.zeros(count), model)


def deterministic_blocks(trace: SteadyTrace) -> Iterator[RequestBlock]:
    """Yield request i at i / rate, for model i mod models, without lengths (zeros)."""
    if trace.zipf_exponent:
        raise SettingError(
            "workload.zipf_exponent", trace.zipf_exponent, "0 with kind=deterministic"
        )
    for first in range(0, trace.requests, _BLOCK_ROWS):
        index = np.arange(first, min(first + _BLOCK_ROWS, trace.requests))
        yield _without_lengths(index / trace.rate_rps, (index % trace.models).astype(np.int32))


def _without_lengths(arrival_s: NDArray[np.float64], model: NDArray[np.int32]) -> RequestBlock:
    none = np.zeros(arrival_s.size, np.int32)
    return RequestBlock(arrival_s=arrival_s, model=model, prompt_tokens=none, output_tokens=none)
