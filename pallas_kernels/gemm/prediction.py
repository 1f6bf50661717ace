"""Predicted time of a launch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pallas_kernels.gemm import sharing
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.machine import Machine
from pallas_kernels.gemm.schedule import Plan, counts
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.gemm.times import Prediction, Seconds, busy_s, predicted
from pallas_kernels.gemm.traffic import launch_traffic

MARGIN = 0.01
"""Predicted times this close count as equal; the model is no better than that."""

ROOM = 0.1
"""Sums of all resources' times this close count as equal."""

_ALPHAS = 129  # at most so many splits are tried
_WARPGROUP_THREADS = 128


def predict(gemm: Gemm, config: Config, plan: Plan, machine: Machine) -> Prediction:
    """Predict a launch.

    - link: W at the link's rate, at most shared memory for W per latency and its share of L2 ports.
    - HBM, L2: the bytes of `launch_traffic`; L2 ports scale with the working SMs.
    - tensor, issue: the busiest CTA, whose step takes the longest of tensor time, `step_s` and an X
      tile's latency. An output takes `tile_s` more, or its bytes at the SM's port.

    All resources overlap: a lower bound if the rates are right.

    Args:
      gemm: sizes and types; experts have equally many rows.
      plan: concrete integers, or NumPy arrays that broadcast.
    """
    moved = launch_traffic(gemm, config, plan, l2_bytes=machine.l2_bytes)
    active = np.asarray(plan.active_clusters, np.float64)
    at_once = max(machine.sm_count // config.cluster, 1)
    waves, working = np.ceil(active / at_once), np.minimum(active, at_once) * config.cluster
    rates = machine.rates
    sm_l2 = machine.l2_gbps * 1e9 / machine.sm_count
    tensor_step = 2 * config.tm * config.tn * config.tk / rates.sm_flops
    x_tile_bytes = config.tm * config.x_columns * gemm.in_itemsize
    x_latency = machine.l2_latency_s + x_tile_bytes / rates.sm_store_bytes_s
    # while one warpgroup converts weights the tensor cores have those of the others
    warpgroup_s = tensor_step / config.warpgroups + _convert_s(gemm, config, machine)

    latency = config.x_steps * x_latency / (config.x_stages - 1)
    step_s = max(tensor_step, warpgroup_s, machine.step_s, latency)

    def busy(steps: Any, outputs: Any, nbytes: Any) -> Seconds:
        products = steps * step_s
        if not config.ping_pong:
            return busy_s(products, outputs, nbytes, rates)
        stored = busy_s(0.0, outputs, nbytes, rates)
        return np.maximum(products, stored) + stored / np.maximum(outputs, 1)  # the last one's

    def loading(cta_bytes: Any, deep: float) -> Seconds:
        in_flight = deep * config.tn * gemm.w_bits / 8
        return waves * cta_bytes / min(in_flight / machine.link_latency_s, sm_l2)

    one_cta = np.maximum(
        # of a multicast tile each CTA loads a share
        loading(moved.sym_cta_link_bytes, config.w_stages * config.tk / config.cluster),
        loading(moved.asym_cta_link_bytes, float(config.kc or config.tk)),
    )
    return predicted(
        moved,
        link_s=np.maximum(moved.link_bytes / rates.link_bytes_s, one_cta),
        hbm_s=moved.hbm_bytes / rates.hbm_bytes_s,
        l2_s=moved.l2_bytes / (sm_l2 * working),
        tensor_s=waves * tensor_step * moved.cta_steps,
        issue_s=waves
        * np.maximum(
            busy(moved.sym_cta_steps, moved.sym_cta_outputs, moved.sym_cta_store_bytes),
            busy(moved.asym_cta_steps, moved.asym_cta_outputs, moved.asym_cta_store_bytes),
        ),
        launch_s=rates.launch_s,
    )


def _convert_s(gemm: Gemm, config: Config, machine: Machine) -> float:
    if gemm.quantised is None:
        return 0.0
    return config.warpgroup_columns * config.tk / _WARPGROUP_THREADS * machine.convert_s


def plans(gemm: Gemm, config: Config, alphas: Any, sm_limit: int | None = None) -> Plan:
    """Return a launch's plans for an array of alphas, with balanced SM split.

    Args:
      alphas: shares of columns for SymGEMM.
      sm_limit: SMs of the launch; all by default.
    """
    return sharing.traced_plan(
        config,
        counts(config, gemm),
        alpha=np.asarray(alphas, np.float64),
        sm_split=None,
        sm_limit=config.sm_count if sm_limit is None else sm_limit,
        layer=0,
        xp=np,
    )


def equals(predictions: Sequence[Prediction]) -> np.ndarray:
    """Return the mask of equally good launches."""
    times, totals, sums = (
        np.concatenate([np.atleast_1d(key(one)) for one in predictions])
        for key in (
            lambda p: p.time_s,
            lambda p: np.broadcast_to(p.sum_s, np.shape(p.time_s)),
            lambda p: np.broadcast_to(p.traffic.sums_store_bytes, np.shape(p.time_s)),
        )
    )
    fast = times <= (1 + MARGIN) * times.min()
    roomy = fast & (totals <= (1 + ROOM) * totals[fast].min())
    return np.flatnonzero(roomy & (sums <= sums[roomy].min()))


def best_of(prediction: Prediction) -> int:
    """Return the best launch's index, of equals the last."""
    good = equals((prediction,))
    totals = np.broadcast_to(prediction.sum_s, np.shape(prediction.time_s))[good]
    return int(good[len(totals) - 1 - np.argmin(totals[::-1])])


@functools.lru_cache(maxsize=4096)
def best_alpha(
    gemm: Gemm, config: Config, machine: Machine, *, sm_limit: int | None = None
) -> float:
    """Return the predicted fastest alpha, in whole strips."""
    strips = counts(config, gemm).strips
    alphas = reachable(np.linspace(0, 1, min(strips + 1, _ALPHAS)), config, gemm, sm_limit)
    return float(
        alphas[best_of(predict(gemm, config, plans(gemm, config, alphas, sm_limit), machine))]
    )


def reachable(
    alphas: Iterable[float], config: Config, gemm: Gemm, sm_limit: int | None = None
) -> np.ndarray:
    """Return the distinct alphas of whole strips."""
    if not config.asym:
        return np.ones(1)
    strips = counts(config, gemm).strips
    values = np.asarray(sorted(alphas), np.float64)
    shares = np.unique(sharing.sym_strips(strips, values)) / strips
    sms = config.sm_count if sm_limit is None else sm_limit
    return np.unique(np.round(shares)) if sms < 2 * config.cluster else shares
