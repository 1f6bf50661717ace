"""Synthetic multi-model trace with GenTD26's published statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from c2c.ranges import Count, In, check_fields
from c2c.workloads.blocks import RequestBlock
from c2c.workloads.streams import stream_of

__all__ = [
    "SyntheticTrace",
    "count_requests",
    "plan_requests",
    "popularity_shares",
    "synthetic_blocks",
]

_HOUR_S = 3600.0
_BLOCK_ROWS = 65_536

# GenTD26's 59 models with at least 10 requests: popularity rank -> share of all requests. Ranks 1
# to 10 are the published counts over 26,823. The other points, down to the 10 requests of rank 59,
# are of the curve; between them the logarithm is interpolated.
_SHARE_RANKS = np.array([*range(1, 11), 11, 12, 20, 30, 45, 59], np.float64)
_SHARES = (
    np.array(
        [8234, 4012, 2511, 2114, 2016, 1147, 961, 815, 719, 712, 576, 233, 99, 52, 28, 10],
        np.float64,
    )
    / 26_823
)
# The same 59 models: rank -> share of the hours with at least one request. Published: median
# 0.038, quartiles 0.022 and 0.108, ten models (17%) at 0.2 or more, largest 0.602.
_ACTIVE_RANKS = np.array([1, 2, 5, 10, 11, 15, 30, 45, 59], np.float64)
_ACTIVE = np.array([0.602, 0.45, 0.33, 0.266, 0.163, 0.108, 0.038, 0.022, 0.009], np.float64)
_ACTIVE_MODELS = 59
# Of a model's load over its active hours, ours: the standard deviation of its logarithm, and the
# hours over which its activity stays correlated.
_HOUR_SPREAD = 1.3
_SESSION_H = 1.0
# The other models of GenTD26 have fewer than 10 requests each. A larger trace does not scale these
# counts, which would turn rare models into active ones.
_RARE_COUNTS = (9, 8, 8, 8, 6, 5, 5, 5, 4, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTrace:
    """Settings as in `WorkloadConfig`; defaults reproduce GenTD26's statistics.

    Popularity and active hours hold at any number of requests, gaps at GenTD26's own 26,823 (median
    CV over models 2.35, aggregate 12, a request in 67% of the hours): the CV of gaps grows roughly
    with the square root of the number. 59 of 89 models are active (10 requests).
    """

    requests: Count = 350_000
    models: Count = 89
    days: Count = 21
    gap_cv: Annotated[float, In("[0.05, 1000)")] = 1.5
    day_night: Annotated[float, In("[0, 20]")] = 2.5

    def __post_init__(self) -> None:
        check_fields(self, "workload")


def _active_models(models: int) -> int:
    return max(1, round(models * _ACTIVE_MODELS / 89))


def _ranks(active: int) -> NDArray[np.float64]:
    if active == 1:
        return np.ones(1)
    return 1 + np.arange(active) * (_ACTIVE_MODELS - 1) / (active - 1)


def _curve(
    positions: NDArray[np.float64], ranks: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.exp(np.interp(positions, ranks, np.log(values))))


def popularity_shares(trace: SyntheticTrace) -> NDArray[np.float64]:
    """Return active models' shares of requests, falling, of sum 1."""
    shares = _curve(_ranks(_active_models(trace.models)), _SHARE_RANKS, _SHARES)
    return np.asarray(shares / shares.sum())


def _requests_per_model(trace: SyntheticTrace) -> NDArray[np.int64]:
    active = _active_models(trace.models)
    rare = np.resize(np.array(_RARE_COUNTS, np.int64), trace.models - active)
    rare = -np.sort(-rare)
    # A trace smaller than GenTD26 has fewer requests of rare models, too.
    rare = (rare * min(1.0, trace.requests / 26_823)).astype(np.int64)
    total = trace.requests - int(rare.sum())
    exact = popularity_shares(trace) * total
    counts = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return np.concatenate([counts, rare])


@lru_cache(maxsize=1)
def plan_requests(trace: SyntheticTrace, seed: int) -> NDArray[np.int64]:
    """Draw requests by model and hour.

    Active hours have the highest scores: a correlated Gaussian process plus a shared time of day.
    Each has a request; lognormal weights distribute the rest.
    """
    hours = 24 * trace.days
    counts = _requests_per_model(trace)
    active_share = _curve(_ranks(_active_models(trace.models)), _ACTIVE_RANKS, _ACTIVE)
    active_hours = np.maximum(1, np.rint(active_share * hours)).astype(np.int64)
    # A rare model's few requests come in about as many sessions as requests.
    active_hours = np.concatenate([active_hours, counts[active_hours.size :]])
    peak_h = stream_of(seed, "time of day").uniform(0, 24)
    time_of_day = trace.day_night * np.cos(2 * np.pi * (np.arange(hours) - peak_h) / 24)
    plan = np.zeros((trace.models, hours), np.int64)
    for model in range(trace.models):
        rng = stream_of(seed, "active hours", model)
        score = _correlated(rng, hours, _SESSION_H) + time_of_day
        if model == 0:
            score[0] = np.inf  # time 0 is the first request, so the first hour is not empty
        chosen = min(int(active_hours[model]), int(counts[model]), hours)
        if not chosen:
            continue
        picks = np.sort(np.argsort(-score, kind="stable")[:chosen])
        weights = np.exp(_HOUR_SPREAD * rng.standard_normal(chosen))
        plan[model, picks] = 1 + rng.multinomial(counts[model] - chosen, weights / weights.sum())
    plan.flags.writeable = False
    return plan


def count_requests(trace: SyntheticTrace, seed: int) -> tuple[dict[int, int], float]:
    """Return model -> requests, by first appearance, and the last arrival."""
    plan = plan_requests(trace, seed)
    by_day = plan.reshape(trace.models, trace.days, 24).any(axis=2)
    active = np.flatnonzero(by_day.any(axis=1))
    days = by_day.any(axis=0)
    opens_on, first_s = by_day.argmax(axis=1), np.empty(trace.models)
    for day in np.flatnonzero(days).tolist():
        new = np.flatnonzero(by_day[:, day] & (opens_on == day))
        at_s, counts = _arrivals_on(trace, plan, seed, new, day)
        first_s[new] = at_s[np.cumsum(counts) - counts]
    last_day = int(np.flatnonzero(days)[-1])
    at_s, _ = _arrivals_on(trace, plan, seed, np.flatnonzero(by_day[:, last_day]), last_day)
    last_s = float(at_s.max())
    order = active[np.argsort(first_s[active], kind="stable")]
    return {int(m): int(plan[m].sum()) for m in order}, last_s


def _arrivals_on(
    trace: SyntheticTrace, plan: NDArray[np.int64], seed: int, models: NDArray[np.int64], day: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    today = plan[models, 24 * day : 24 * (day + 1)]
    row, hour = np.nonzero(today)
    gaps_in = today[row, hour] + 1  # the last gap leads to the end of the hour
    ends = np.cumsum(gaps_in)
    starts = ends - gaps_in
    gaps, until = np.empty((2, int(ends[-1]) if len(ends) else 0))
    begin = 0
    last = np.cumsum((today + (today > 0)).sum(axis=1))
    for model, end in zip(models.tolist(), last.tolist(), strict=True):
        rng = stream_of(seed, "arrivals", model, day)
        rng.standard_gamma(1 / (trace.gap_cv * trace.gap_cv), out=gaps[begin:end])
        np.add.accumulate(gaps[begin:end], out=until[begin:end])
        begin = end
    totals = np.add.reduceat(gaps, starts) if len(starts) else gaps
    is_new = np.diff(row, prepend=-1) > 0
    before = np.where(is_new, 0.0, until[starts - 1])
    times = (until - np.repeat(before, gaps_in)) / np.repeat(totals, gaps_in)
    # Rounding must not carry a request into the next hour, where it would count as activity.
    times = np.clip(times, 0.0, 1 - 1e-9) * _HOUR_S + np.repeat(hour * _HOUR_S, gaps_in)
    times = np.delete(times, ends - 1)
    if day == 0 and len(models) and models[0] == 0:
        # Model 0 opens the trace: its first gap is taken out of the first hour.
        times[: today[0, 0]] -= times[0]
    return times + 24 * _HOUR_S * day, today.sum(axis=1)


def _correlated(rng: np.random.Generator, hours: int, session_h: float) -> NDArray[np.float64]:
    keep = np.exp(-1 / session_h)
    noise = rng.standard_normal(hours)
    noise[1:] *= np.sqrt(1 - keep * keep)
    # Python's numbers: NumPy scalars take six times as long.
    draws: list[float] = noise.tolist()
    weight = float(keep)
    return np.array(list(accumulate(draws, lambda last, new: new + weight * last)))


# A plan is drawn first: the number of requests of each model in each hour, which makes the total
# exact. Requests are then generated in order, with only one day's in memory.
def synthetic_blocks(trace: SyntheticTrace, seed: int) -> Iterator[RequestBlock]:
    """Yield the requests in order, without lengths (zeros); `model` is the popularity rank.

    Each model and day has a random stream.
    """
    plan = plan_requests(trace, seed)
    for day in range(trace.days):
        busy = np.flatnonzero(plan[:, 24 * day : 24 * (day + 1)].any(axis=1))
        if not len(busy):
            continue
        arrival_s, counts = _arrivals_on(trace, plan, seed, busy, day)
        model = np.repeat(busy.astype(np.int32), counts)
        order = np.argsort(arrival_s, kind="stable")
        arrival_s, model = arrival_s[order], model[order]
        for first in range(0, arrival_s.size, _BLOCK_ROWS):
            rows = slice(first, first + _BLOCK_ROWS)
            none = np.zeros(arrival_s[rows].size, np.int32)
            yield RequestBlock(
                arrival_s=arrival_s[rows], model=model[rows], prompt_tokens=none, output_tokens=none
            )
