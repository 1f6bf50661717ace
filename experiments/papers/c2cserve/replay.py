"""Replays of the trace that the serving figures share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from c2c.config import SimulationResult, build, simulate
from experiments.figure import Context
from experiments.papers.c2cserve.settings import GH200, composed

__all__ = ["TRACES", "busy_share", "describe", "fit_load", "load_of_half", "replay",
           "replay_settings"]  # fmt: skip

ARRIVALS, LENGTHS = "gentd26_requests.parquet", "sharegpt_lengths.parquet"
TRACES = (ARRIVALS, LENGTHS)
HALF = 0.5
# Without the public files: the same number of requests and days, by the generator.
SYNTHETIC_REQUESTS, SYNTHETIC_DAYS = 26_823, 23


def replay(
    context: Context, compression: float, overrides: Sequence[str], seed: int
) -> SimulationResult:
    """Replay GenTD26's arrivals (or the generator's) on a GH200, time compressed."""
    return simulate(build(composed(*replay_settings(context, compression, overrides, seed))))


def replay_settings(
    context: Context, compression: float, overrides: Sequence[str], seed: int, *,
    chip: Sequence[str] = GH200,
) -> tuple[list[str], dict[str, Any]]:  # fmt: skip
    """Return a replay's overrides and values, for `composed`."""
    files = _files(context)
    if files is not None:
        source = [
            "workload=gentd26",
            f"workload.path='{files[0]}'",
            f"workload.lengths='{files[1]}'",
        ]
    else:
        source = [
            "workload=synthetic",
            f"workload.requests={SYNTHETIC_REQUESTS}",
            f"workload.days={SYNTHETIC_DAYS}",
        ]
    return (
        [*chip, *source, f"link={context.link_variant}", *overrides],
        {"workload.compression": compression, "seed": seed},
    )


def fit_load(
    context: Context,
    candidates: Sequence[float],
    overrides: Sequence[str],
    targets: Sequence[float],
    measure: Callable[[SimulationResult], Sequence[float]],
) -> float:
    """Return the time compression closest to printed numbers."""

    def distance(compression: float) -> float:
        ours = measure(replay(context, compression, overrides, context.seeds[0]))
        return max(abs(math.log(o / t)) for o, t in zip(ours, targets, strict=True))

    return min(candidates, key=distance)


def load_of_half(context: Context, overrides: Sequence[str]) -> float:
    """Return the compression at which a system is busy half the time."""
    return float(f"{HALF / busy_share(replay(context, 1.0, overrides, context.seeds[0])):.3g}")


def busy_share(result: SimulationResult) -> float:
    """Return slices' mean share of time in computing or loading."""
    return float(np.mean(result.stats.busy_s) / result.stats.end_s)


def describe(context: Context, *compressions: float) -> str:
    """Return a caption's text on the replayed trace and loads."""
    if _files(context) is not None:
        source = "GenTD26's public arrivals with ShareGPT lengths"
    else:
        source = (
            f"our generator's arrivals ({SYNTHETIC_REQUESTS:,} requests over {SYNTHETIC_DAYS} "
            "days; the public traces are not at hand) with synthetic lengths"
        )
    times = " or ".join(f"{factor:g}" for factor in compressions)
    return f"{source}, time compressed {times} times; seeds {list(context.seeds)}"


def _files(context: Context) -> tuple[Path, Path] | None:
    if context.traces is None:
        return None
    paths = context.traces / ARRIVALS, context.traces / LENGTHS
    return paths if all(path.is_file() for path in paths) else None
