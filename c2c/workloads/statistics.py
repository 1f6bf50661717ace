"""Statistics of a workload, as in C2CServe's Fig. 2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.workloads.blocks import RequestBlock

__all__ = ["TraceStatistics", "trace_statistics"]

_HOUR_S = 3600.0
_SCALARS = (
    "requests",
    "span_s",
    "hours",
    "hours_with_requests",
    "rate_rps",
    "min_requests",
    "active_models",
    "median_idle_share",
    "rare_hours_share",
    "median_gap_cv",
    "bursty_share",
    "median_hourly_cv",
    "aggregate_gap_cv",
    "aggregate_hourly_cv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """Statistics of a trace, per model and for all requests.

    An active model has at least `min_requests` requests. Hours are bins of 3600 s from the first
    request, empty ones included. CV is standard deviation over mean (Poisson: 1); IoD(w) is
    variance over mean of the counts in windows of w seconds (Poisson: 1).

    Attributes:
      span_s: last minus first arrival.
      hours: hour bins of the span.
      hours_with_requests: bins with any request.
      models: with requests, by falling popularity, the order of all [m].
      share_of: f64[m], of all requests.
      active_hour_fraction: f64[m], share of hour bins with requests.
      gap_cv: f64[m], CV of gaps; NaN below three requests.
      hourly_cv: f64[m], CV of hourly counts.
      median_idle_share: median over active models of the share of hours without requests.
      rare_hours_share: share of active models with requests in under 20% of the hours.
      median_gap_cv: over active models.
      bursty_share: share of active models with a gap CV above 1.
      median_hourly_cv: over active models.
      aggregate_gap_cv: of all requests together.
      aggregate_hourly_cv: of all requests.
      iod: window in seconds -> IoD of all requests.
      top_shares: k -> share of the k most popular models.
      hourly: i64[k, hours], counts of the `series_models` most popular models.
    """

    requests: int
    span_s: float
    hours: int
    hours_with_requests: int
    rate_rps: float
    models: tuple[str, ...]
    requests_of: NDArray[np.int64]
    share_of: NDArray[np.float64]
    active_hour_fraction: NDArray[np.float64]
    gap_cv: NDArray[np.float64]
    hourly_cv: NDArray[np.float64]
    min_requests: int
    active_models: int
    median_idle_share: float
    rare_hours_share: float
    median_gap_cv: float
    bursty_share: float
    median_hourly_cv: float
    aggregate_gap_cv: float
    aggregate_hourly_cv: float
    iod: dict[float, float]
    top_shares: dict[int, float]
    hourly: NDArray[np.int64]

    def summary(self) -> dict[str, Any]:
        """Return the scalar statistics as plain data."""
        return {
            **{name: getattr(self, name) for name in _SCALARS},
            "models": len(self.models),
            "iod": {f"{window:g}s": value for window, value in self.iod.items()},
            "top_shares": {str(k): share for k, share in self.top_shares.items()},
        }


class _Gaps:
    def __init__(self, streams: int) -> None:
        self.last_s = np.full(streams, np.nan)
        self.count = np.zeros(streams, np.int64)
        self.total = np.zeros(streams)
        self.squares = np.zeros(streams)

    def add(self, stream: NDArray[np.int64], arrival_s: NDArray[np.float64]) -> None:
        order = np.argsort(stream, kind="stable")
        stream, arrival_s = stream[order], arrival_s[order]
        first = np.append(True, stream[1:] != stream[:-1])
        before = np.where(first, self.last_s[stream], np.append(np.nan, arrival_s[:-1]))
        gap = arrival_s - before
        mask = ~np.isnan(gap)
        gap, streams = gap[mask], stream[mask]
        size = self.count.size
        self.count += np.bincount(streams, minlength=size)
        self.total += np.bincount(streams, gap, minlength=size)
        self.squares += np.bincount(streams, gap * gap, minlength=size)
        last = np.append(first[1:], True)
        self.last_s[stream[last]] = arrival_s[last]

    def cv(self) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self.total / self.count
            cv = np.sqrt(np.maximum(self.squares / self.count - mean * mean, 0)) / mean
        return np.where(self.count >= 2, cv, np.nan)


class _Windows:
    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.open, self.in_open = 0, 0
        self.total = self.squares = 0

    def add(self, since_start_s: NDArray[np.float64]) -> None:
        window, counts = np.unique(
            (since_start_s // self.window_s).astype(np.int64), return_counts=True
        )
        if window[0] == self.open:
            counts[0] += self.in_open
        else:
            self._close(np.array([self.in_open]))
        self._close(counts[:-1])
        self.open, self.in_open = int(window[-1]), int(counts[-1])

    def _close(self, counts: NDArray[np.int64]) -> None:
        self.total += int(counts.sum())
        self.squares += int((counts * counts).sum())

    def iod(self) -> float:
        windows = self.open + 1
        mean = (self.total + self.in_open) / windows
        return ((self.squares + self.in_open**2) / windows - mean * mean) / mean


def trace_statistics(
    blocks: Iterable[RequestBlock],
    models: Sequence[str],
    *,
    min_requests: int = 10,
    windows_s: Sequence[float] = (1.0, 60.0, 3600.0),
    series_models: int = 5,
) -> TraceStatistics:
    """Compute a stream's statistics, block by block.

    Memory holds counts per model and hour.

    Args:
      blocks: ascending in arrival, e.g. `workload.blocks()`.
      models: indexed by `RequestBlock.model`.
      series_models: models with an hourly series.

    Raises:
      DataError: no request.

    Source: C2CServe section 2.1 and Fig. 2 (hours idle, share of models active in under 20% of the
    hours, hourly rates); 10 requests as the bound reproduces the 59 models of its caption.
    """
    per_model, together = _Gaps(len(models)), _Gaps(1)
    windows = [_Windows(window_s) for window_s in windows_s]
    requests_of = np.zeros(len(models), np.int64)
    cells: list[NDArray[np.int64]] = []  # rows (hour, model, requests)
    first_s = last_s = None
    for block in blocks:
        arrival_s = block.arrival_s
        model = block.model.astype(np.int64)
        first_s = float(arrival_s[0]) if first_s is None else first_s
        last_s = float(arrival_s[-1])
        since_start_s = arrival_s - first_s
        per_model.add(model, arrival_s)
        together.add(np.zeros(len(block), np.int64), arrival_s)
        for window in windows:
            window.add(since_start_s)
        requests_of += np.bincount(model, minlength=len(models))
        hour = (since_start_s // _HOUR_S).astype(np.int64)
        cell, counts = np.unique(hour * len(models) + model, return_counts=True)
        cells.append(np.stack([cell // len(models), cell % len(models), counts]))
    if first_s is None or last_s is None:
        raise DataError("workload", "no requests to measure")
    span_s = last_s - first_s
    hours = int(span_s // _HOUR_S) + 1
    order = np.argsort(-requests_of, kind="stable")[: np.count_nonzero(requests_of)]
    rank = np.full(len(models), -1)
    rank[order] = np.arange(order.size)
    # A block may end within an hour: cells of several blocks are added up here.
    hour, model, counts = np.concatenate(cells, axis=1)
    cell, inverse = np.unique(hour * order.size + rank[model], return_inverse=True)
    per_cell = np.bincount(inverse, counts).astype(np.int64)
    cell_hour, cell_rank = cell // order.size, cell % order.size
    requests_of = requests_of[order]
    active_hours = np.bincount(cell_rank, minlength=order.size)
    squares = np.bincount(cell_rank, per_cell.astype(np.float64) ** 2, minlength=order.size)
    mean = requests_of / hours
    hourly_cv = np.sqrt(np.maximum(squares / hours - mean * mean, 0)) / mean
    hour_totals = np.bincount(np.unique(cell_hour, return_inverse=True)[1], per_cell)
    total = int(requests_of.sum())
    total_mean = total / hours
    shown = min(series_models, order.size)
    hourly = np.zeros((shown, hours), np.int64)
    in_series = cell_rank < shown
    hourly[cell_rank[in_series], cell_hour[in_series]] = per_cell[in_series]
    fraction = active_hours / hours
    gap_cv = per_model.cv()[order]
    active = requests_of >= min_requests
    defined = active & ~np.isnan(gap_cv)
    shares = requests_of / total
    return TraceStatistics(
        requests=total,
        span_s=span_s,
        hours=hours,
        hours_with_requests=int(hour_totals.size),
        rate_rps=total / span_s if span_s > 0 else float("nan"),
        models=tuple(models[i] for i in order.tolist()),
        requests_of=requests_of,
        share_of=shares,
        active_hour_fraction=fraction,
        gap_cv=gap_cv,
        hourly_cv=hourly_cv,
        min_requests=min_requests,
        active_models=int(active.sum()),
        median_idle_share=_median(1 - fraction[active]),
        rare_hours_share=_share(fraction[active] < 0.2),
        median_gap_cv=_median(gap_cv[defined]),
        bursty_share=_share(gap_cv[defined] > 1),
        median_hourly_cv=_median(hourly_cv[active]),
        aggregate_gap_cv=float(together.cv()[0]),
        aggregate_hourly_cv=float(
            np.sqrt(max((hour_totals**2).sum() / hours - total_mean**2, 0)) / total_mean
        ),
        iod={window.window_s: window.iod() for window in windows},
        top_shares={k: float(shares[:k].sum()) for k in (1, 3, 10)},
        hourly=hourly,
    )


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _share(chosen: NDArray[np.bool_]) -> float:
    return float(chosen.mean()) if chosen.size else float("nan")
