"""Latency metrics, defined in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "PERCENTILES",
    "attainment",
    "e2e_s",
    "goodput_rps",
    "meets_tpot",
    "meets_ttft",
    "percentiles",
    "span_s",
    "tpot_s",
    "ttft_s",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PERCENTILES: tuple[float, ...] = (50.0, 95.0, 99.0)


# Arrays have one entry a request. A failed request has NaN times, so its latencies are NaN and it
# meets no target.
def ttft_s(arrival_s: Floats, first_token_s: Floats) -> Floats:
    """Return `first_token_s - arrival_s`."""
    return np.asarray(first_token_s - arrival_s, dtype=np.float64)


def tpot_s(first_token_s: Floats, finished_s: Floats, output_tokens: npt.NDArray[Any]) -> Floats:
    """Return the time per output token after the first; NaN for one token.

    >>> tpot_s(np.array([1.0, 1.0]), np.array([1.2, 1.0]), np.array([3, 1])).round(3).tolist()
    [0.1, nan]
    """
    gaps = np.asarray(output_tokens, dtype=np.float64) - 1.0
    out = np.full(gaps.shape, np.nan)
    np.divide(finished_s - first_token_s, gaps, out=out, where=gaps > 0)
    return out


def e2e_s(arrival_s: Floats, finished_s: Floats) -> Floats:
    """Return the end-to-end latency: `finished_s - arrival_s`."""
    return np.asarray(finished_s - arrival_s, dtype=np.float64)


def meets_ttft(ttft: Floats, ttft_slo_s: Floats | float) -> Bools:
    """Return whether requests met TTFT; failed (NaN) did not."""
    return np.asarray(ttft <= ttft_slo_s)


def meets_tpot(
    tpot: Floats, tpot_slo_s: Floats | float, output_tokens: npt.NDArray[Any], finished: Bools
) -> Bools:
    """Return whether requests met TPOT: with one output token, unless failed."""
    one_token = np.asarray(output_tokens) <= 1
    return np.asarray(finished & (one_token | (tpot <= tpot_slo_s)))


def attainment(met: Bools) -> float:
    """Return the share of requests that met a target, failed ones included; NaN if none.

    >>> attainment(np.array([True, True, False, True]))
    0.75
    """
    return float(np.count_nonzero(met) / len(met)) if len(met) else float("nan")


def span_s(arrival_s: Floats, finished_s: Floats) -> float:
    """Return seconds from first arrival to last event."""
    if not len(arrival_s):
        return 0.0
    done = finished_s[np.isfinite(finished_s)]
    last = max(float(np.max(arrival_s)), float(np.max(done)) if len(done) else -np.inf)
    return last - float(np.min(arrival_s))


def goodput_rps(met_both: Bools, span: float) -> float:
    """Return requests within both targets a second; 0 without span."""
    return float(np.count_nonzero(met_both) / span) if span > 0 else 0.0


def percentiles(
    values: Floats,
    ps: Sequence[float] = PERCENTILES,
    *,
    mean: float | None = None,
    overwrite: bool = False,
) -> dict[str, float]:
    """Return {"mean", "p50", ...} of the values that are not NaN; all NaN if none.

    Args:
      ps: in percent, interpolated linearly.
      mean: known mean; None: it is computed.
      overwrite: whether the values, without NaN, may be reordered.
    """
    numbers = values if overwrite else values[~np.isnan(values)]
    if not len(numbers):
        return {"mean": float("nan")} | {f"p{p:g}": float("nan") for p in ps}
    if mean is None:
        mean = float(numbers.mean())
    quantiles = _order_statistics(numbers, ps)
    return {"mean": mean} | {f"p{p:g}": float(v) for p, v in zip(ps, quantiles, strict=True)}


def _order_statistics(values: Floats, ps: Sequence[float]) -> Floats:
    """Return percentiles equal to `np.percentile`'s bits; reorders values."""
    ranks = (len(values) - 1) * (np.asarray(ps, np.float64) / 100.0)
    below = ranks.astype(np.intp)
    above = np.minimum(below + 1, len(values) - 1)
    values.partition(np.unique(np.concatenate([below, above])))
    low, high, part = values[below], values[above], ranks - below
    gap = high - low
    return np.asarray(np.where(part >= 0.5, high - gap * (1.0 - part), low + gap * part))
