"""Choice of configuration and alpha by the predicted time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from pallas_kernels.gemm import tiles
from pallas_kernels.gemm.config import Config, check_fits
from pallas_kernels.gemm.machine import Machine, machine_for
from pallas_kernels.gemm.prediction import best_alpha, equals, plans, predict, reachable
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.gemm.times import Prediction
from pallas_kernels.hopper import CLUSTERS, expect


def _family(tm: int, tn: int, x_stages: int, w_stages: int, **more: Any) -> Config:
    return Config(tm=tm, tn=tn, x_stages=x_stages, w_stages=w_stages, **more)


FAMILY: Mapping[str, Config] = MappingProxyType(
    {
        # decode: 64 rows, one compute warpgroup; at least 64 KiB of W in flight for each SM
        "64x64": _family(64, 64, 8, 8, warpgroups=1),
        "64x128": _family(64, 128, 8, 8, warpgroups=1),
        "64x256": _family(64, 256, 5, 5, warpgroups=1),
        # many slots of X hide its latency, many of W make few K passes of AsymGEMM
        "128x64": _family(128, 64, 8, 8),
        "128x64, kc 1024": _family(128, 64, 4, 16),
        "128x128": _family(128, 128, 6, 6),
        "128x128, kc 512": _family(128, 128, 4, 8),
        "128x256": _family(128, 256, 4, 4),
        # prefill: 256 x 128 is an accumulator of 128 float32 registers a thread
        "256x64": _family(256, 64, 4, 8),
        "256x64, kc 1024": _family(256, 64, 2, 16),
        "256x128": _family(256, 128, 4, 4),
        "256x128, kc 512": _family(256, 128, 2, 8),
        # a tile of one warpgroup each: many sums to store and add, between few K steps
        "128x128, ping-pong": _family(128, 128, 4, 8, ping_pong=True),
        "128x64, ping-pong": _family(128, 64, 4, 16, ping_pong=True),
        # of thousands of rows the latency of an X tile sets the pace: one more of them on its way
        "128x64, ping-pong, kc 896": _family(128, 64, 5, 14, ping_pong=True),
    }
)
"""Tiles of weights that are not quantised and rows that meet one matrix.

All are compiled ahead of time without spills (with any cluster and output type). 256 x 192 is not
among them: its accumulators leave no registers for reading sums back.
"""

_COARSE = tuple(i / 8 for i in range(9))  # alphas by which configurations are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A configuration and its alpha."""

    config: Config
    alpha: float
    time_s: float  # expected
    bound: str  # predicted


def choose(
    gemm: Gemm,
    machine: Machine | None = None,
    *,
    sm_count: int | None = None,
    cluster: int | None = 1,
    alpha: float | None = None,
) -> Config:
    """Return the predicted fastest configuration for `gemm`.

    Args:
      sm_count: SMs of the launch; all by default.
      cluster: CTAs along M that share a W tile; None: chosen.
      alpha: share of columns for SymGEMM; None: the best of each configuration.

    Raises:
      ValueError: an argument outside its range.
    """
    return choice(gemm, machine, sm_count=sm_count, cluster=cluster, alpha=alpha).config


def choice(
    gemm: Gemm,
    machine: Machine | None = None,
    *,
    sm_count: int | None = None,
    cluster: int | None = None,
    alpha: float | None = None,
) -> Chosen:
    """Return configuration and alpha within 1% of the fastest; as `choose`."""
    machine = machine_for() if machine is None else machine
    if sm_count is not None:
        expect(sm_count >= 1, "sm_count", sm_count, "a number above 0")
        machine = machine.with_sms(sm_count)
    if cluster is not None:
        expect(cluster in CLUSTERS, "cluster", cluster, "1, 2, 4, 8 or None")
        fits = cluster <= machine.sm_count
        expect(fits, "cluster", cluster, f"at most sm_count={machine.sm_count}")
    valid = alpha is None or 0 <= alpha <= 1
    expect(valid, "alpha", alpha, "a number in [0, 1] or None")
    return _choice(gemm, machine, cluster, alpha)


def explain(
    gemm: Gemm,
    machine: Machine | None = None,
    *,
    sm_count: int | None = None,
    cluster: int | None = None,
    alpha: float | None = None,
) -> str:
    """Return `choice`'s result, time and rates as text."""
    machine = machine_for() if machine is None else machine
    best = choice(gemm, machine, sm_count=sm_count, cluster=cluster, alpha=alpha)
    c = best.config
    lines = [
        f"O[{gemm.m}, {gemm.n}] = X W with K = {gemm.k}, {gemm.dtype} -> {gemm.out_dtype}, on "
        f"{c.sm_count} SMs of {machine.device}",
        f"tiles {c.tm} x {c.tn} x {c.tk}, kc {c.kc}, stages {c.x_stages} and {c.w_stages}, "
        f"cluster {c.cluster}, alpha {best.alpha:.3g}",
        f"predicted {best.time_s * 1e6:.1f} us, bound by {best.bound}",
        f"rates: {machine.source}",
    ]
    return "\n".join(lines)


def candidates(gemm: Gemm, machine: Machine, cluster: int | None = None) -> Iterator[Config]:
    """Yield configurations for every allowed cluster, if they fit."""
    for size in CLUSTERS if cluster is None else (cluster,):
        if size > machine.sm_count:
            continue
        sms = machine.sm_count  # those that fill no cluster stay idle
        shapes: Iterable[Config] = FAMILY.values()
        if gemm.quantised is not None or gemm.experts is not None:
            shapes = (tiles.by_rule(gemm, sm_count=sms, cluster=size),)
        for shape in shapes:
            config = replace(shape, cluster=size, sm_count=sms)
            try:
                check_fits(config, gemm)
            except ValueError:
                continue
            yield config


def smallest_cluster(rows: int, tm: int = 256) -> int:
    """Return the smallest cluster that reads W once, or 8."""
    return next((c for c in CLUSTERS if c * tm >= rows), CLUSTERS[-1])


@functools.lru_cache(maxsize=4096)
def _choice(gemm: Gemm, machine: Machine, cluster: int | None, alpha: float | None) -> Chosen:
    tried = [
        (_at(gemm, config, machine, _COARSE if alpha is None else (alpha,)), config)
        for config in candidates(gemm, machine, cluster)
    ]
    if not tried:
        raise ValueError(
            f"machine={machine.device!r} with {machine.sm_count} SMs: expected SMs for a cluster "
            f"of {cluster}"
        )
    sizes = [np.size(prediction.time_s) for prediction, _ in tried]
    which = np.repeat(np.arange(len(tried)), sizes)
    totals = np.concatenate([prediction.sum_s for prediction, _ in tried])
    best = min(
        equals([prediction for prediction, _ in tried]),
        key=lambda i: (tried[which[i]][1].cluster, totals[i]),
    )
    config = tried[which[best]][1]
    share = best_alpha(gemm, config, machine) if alpha is None else alpha
    final = _at(gemm, config, machine, (share,))
    return Chosen(
        config=config, alpha=share, time_s=float(final.time_s[0]), bound=str(final.bound[0])
    )


def _at(gemm: Gemm, config: Config, machine: Machine, alphas: Sequence[float]) -> Prediction:
    return predict(gemm, config, plans(gemm, config, reachable(alphas, config, gemm)), machine)
