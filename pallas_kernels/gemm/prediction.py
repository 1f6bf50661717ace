"""Predicted time of a launch: the slowest of link, HBM, L2 and the busiest CTA."""

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

    - link: all of W at the link's rate, and no faster than the CTA with the most loads: it has at
      most its shared memory for W in flight per latency, and its share of the L2's ports.
    - HBM, L2: the bytes of `launch_traffic`; L2 ports scale with the working SMs.
    - tensor, issue: the busiest CTA, whose step takes the longest of its tensor time, `step_s` and
      its share of the latency of an X tile: a slot is loaded again when the next step begins, so
      that one tile less than the stages is in flight. An output takes another `tile_s`, and no less
      than its bytes at the SM's port: 64 KiB in 0.55 us, for which the accumulators wait; with
      `ping_pong` tensor work goes on, except for the last output.

    Not measured yet. It assumes full overlap of all resources, so it is a lower bound if its rates
    are right. It needs no jax, and is vectorised over alpha or any other field of a plan.

    Args:
      gemm: sizes and types; experts are assumed to have equally many rows.
      config: tiles.
      plan: concrete integers, or NumPy arrays that broadcast.
      machine: rates.
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
    """Return the seconds that a warpgroup needs to convert its weights of a K step."""
    if gemm.quantised is None:
        return 0.0
    return config.warpgroup_columns * config.tk / _WARPGROUP_THREADS * machine.convert_s


def plans(gemm: Gemm, config: Config, alphas: Any, sm_limit: int | None = None) -> Plan:
    """Return the plans of a launch for an array of alphas, with the balanced SM split.

    Args:
      gemm: sizes and types.
      config: tiles and grid.
      alphas: shares of the columns for SymGEMM.
      sm_limit: SMs of the launch; default all of the configuration's.
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
    """Return the mask of equally good launches in the flattened predictions.

    Of those within `MARGIN` of the fastest, the ones that leave most room on other resources
    (within `ROOM`: W is not read twice needlessly); of them, the ones that add fewest partial sums.
    """
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
    """Return the index of the best launch: the smallest sum of the `equals`.

    Ties go to the last one, which for rising alphas has the largest share of SymGEMM.
    """
    good = equals((prediction,))
    totals = np.broadcast_to(prediction.sum_s, np.shape(prediction.time_s))[good]
    return int(good[len(totals) - 1 - np.argmin(totals[::-1])])


@functools.lru_cache(maxsize=4096)
def best_alpha(
    gemm: Gemm, config: Config, machine: Machine, *, sm_limit: int | None = None
) -> float:
    """Return the alpha with the smallest predicted time, a whole number of strips.

    If several are equally fast, the best of the `equals`.

    Args:
      gemm: sizes and types.
      config: tiles and grid.
      machine: rates.
      sm_limit: SMs of the launch; default all of the configuration's.
    """
    strips = counts(config, gemm).strips
    alphas = reachable(np.linspace(0, 1, min(strips + 1, _ALPHAS)), config, gemm, sm_limit)
    return float(
        alphas[best_of(predict(gemm, config, plans(gemm, config, alphas, sm_limit), machine))]
    )


def reachable(
    alphas: Iterable[float], config: Config, gemm: Gemm, sm_limit: int | None = None
) -> np.ndarray:
    """Return the distinct alphas after rounding to whole strips; only 1.0 for a single strip.

    A single cluster runs one path, so mixtures are dropped, and an alpha that it can run is added.
    A kernel without AsymGEMM has 1.0.
    """
    if not config.asym:
        return np.ones(1)
    strips = counts(config, gemm).strips
    values = np.asarray(sorted(alphas), np.float64)
    shares = np.unique(sharing.sym_strips(strips, values)) / strips
    sms = config.sm_count if sm_limit is None else sm_limit
    return np.unique(np.round(shares)) if sms < 2 * config.cluster else shares
