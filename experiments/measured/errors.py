"""Relative errors of predictions: median, 90th percentile, bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Error", "error_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Errors of `count` predictions: median, 90th percentile, mean of p/m - 1."""

    count: int
    median: float
    p90: float
    bias: float

    @property
    def in_words(self) -> str:
        """Return the errors as one line, in percent."""
        return (
            f"median {100 * self.median:.1f} %, p90 {100 * self.p90:.1f} %, "
            f"bias {100 * self.bias:+.1f} %, {self.count} rows"
        )


def error_of(predicted: np.ndarray, measured: np.ndarray) -> Error | None:
    """Return errors of predictions without NaN, or None."""
    mask = np.isfinite(predicted)
    error = predicted[mask] / measured[mask] - 1.0
    if not len(error):
        return None
    size = np.abs(error)
    return Error(
        count=len(error),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(error.mean()),
    )
