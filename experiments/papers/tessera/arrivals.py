"""Requests for the online figures."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from c2c.workloads import RequestBlock
from experiments.figure import Context
from experiments.papers.tessera.workloads import MEDIANS

__all__ = ["TRACE", "of_trace", "poisson", "source"]

TRACE: Final = "azure2023_conv.parquet"


def _block(at_s: Any, prompt: Any, output: Any) -> RequestBlock:
    count = len(at_s)
    prompts, outputs = (np.broadcast_to(x, count).astype(np.int32) for x in (prompt, output))
    return RequestBlock(
        arrival_s=np.asarray(at_s, np.float64), model=np.zeros(count, np.int32),
        prompt_tokens=prompts, output_tokens=outputs,
    )  # fmt: skip


def poisson(context: Context, rate_rps: float, requests: int, seed: int = 0) -> RequestBlock:
    """Return Poisson arrivals with the trace's or median lengths."""
    rng = np.random.default_rng([seed, 7])
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, requests))
    columns = _columns(context)
    if columns is None:
        return _block(arrival_s, *MEDIANS)
    chosen = np.random.default_rng([seed, 8]).integers(0, len(columns[0]), requests)
    return _block(arrival_s, columns[1][chosen], columns[2][chosen])


def of_trace(context: Context, seconds: float, rate_rps: float, piece: int = 0) -> RequestBlock:
    """Return a piece of the trace, or bursts, scaled to a mean rate."""
    columns = _columns(context)
    if columns is None:
        rng = np.random.default_rng([piece, 5])
        times_s: list[float] = []
        t = 0.0
        while t < seconds:
            rate = rate_rps * (0.5 if int(t / 20) % 3 else 2.0)
            t += float(rng.exponential(1 / rate))
            times_s.append(t)
        return _block(times_s, *MEDIANS)
    count = int(seconds * rate_rps)
    first = piece * count % (len(columns[0]) - count + 1)
    arrival_s, prompt, output = (column[first : first + count] for column in columns)
    return _block(
        (arrival_s - arrival_s[0]) * (seconds / float(arrival_s[-1] - arrival_s[0])), prompt, output
    )


def source(context: Context) -> str:
    """Return the requests' origin, as figures name it."""
    if _columns(context) is None:
        return "the medians of Azure's conversation trace, which is not available"
    return "Azure's conversation trace"


def _columns(context: Context) -> tuple[Any, Any, Any] | None:
    path = None if context.traces is None else context.traces / TRACE
    return _read(path) if path is not None and path.is_file() else None


@cache
def _read(path: Path) -> tuple[Any, Any, Any]:
    table = pq.read_table(path, columns=["arrival_s", "prompt_tokens", "output_tokens"])
    arrival_s, prompt, output = (column.to_numpy() for column in table.columns)
    keep = (prompt > 0) & (output > 0)
    return arrival_s[keep], prompt[keep], output[keep]
