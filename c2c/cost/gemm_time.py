"""Time of a GEMM over host-resident weights on a slice."""

from dataclasses import replace

import numpy as np

from c2c.cost.constants import Constants
from c2c.cost.tiles import KernelTiles
from c2c.cost.traffic import Array, ArrayLike, Traffic, gemm_traffic
from c2c.hardware import Slice
from pallas_kernels.gemm import Prediction, Rates, busy_s, predicted

__all__ = ["gemm_time", "kernel_link_gbps", "time_of"]


def kernel_link_gbps(slice_: Slice, constants: Constants, link_gbps: ArrayLike) -> Array:
    """Return the link rate of a streaming kernel alone (GB/s).

    It is `link_efficiency` of its slice's cap, and at most the link's capacity.
    """
    return np.minimum(link_gbps, constants.link_efficiency * slice_.link_cap_gbps)


# Bytes and operations are the published HybridGEMM's (`traffic`); seconds follow
# `pallas_kernels.gemm`'s formula, with constants fitted to the paper's times.
def gemm_time(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    alpha: ArrayLike,
    *,
    slice_: Slice,
    constants: Constants,
    link_gbps: float,
    tiles: KernelTiles | None = None,
    sm_split: ArrayLike | None = None,
    element_bytes: int = 2,
    groups: ArrayLike = 1.0,
    stored: float | None = None,
) -> Prediction:
    """Return the time of a hybrid GEMM on one slice, alone on the link.

    Args:
      alpha: share of columns for SymGEMM, in [0, 1].
      link_gbps: the link's capacity, or this slice's share.
      tiles: default `KernelTiles()`.
      sm_split: share of SMs for SymGEMM, the paper's alpha; None: balanced.
      element_bytes: of an element.
      groups: equal GEMMs in one launch (experts).
      stored: of a stored weight; default `element_bytes`.
    """
    tiles = KernelTiles() if tiles is None else tiles
    traffic = gemm_traffic(
        m,
        n,
        k,
        alpha,
        tiles=tiles,
        sm_count=slice_.sm_count,
        l2_bytes=slice_.l2_bytes,
        element_bytes=element_bytes,
        groups=groups,
    )
    if stored is not None and stored != element_bytes:
        traffic = replace(traffic, link_bytes=traffic.link_bytes * (stored / element_bytes))
    rates = Rates(
        sm_flops=slice_.bf16_tflops * 1e12 * constants.mma_efficiency / slice_.sm_count,
        link_bytes_s=kernel_link_gbps(slice_, constants, link_gbps) * 1e9,
        hbm_bytes_s=slice_.hbm_gbps * 1e9 * constants.hbm_efficiency,
        sm_store_bytes_s=constants.reduce_gbps_per_sm * 1e9,
        output_s=constants.asym_issue_s,
        launch_s=constants.launch_s,
        stores_overlap=False,
    )
    return time_of(traffic, rates, sm_count=slice_.sm_count, sm_split=sm_split)


def time_of(
    traffic: Traffic,
    rates: Rates,
    *,
    sm_count: int,
    sm_split: ArrayLike | None = None,
) -> Prediction:
    """Return the time of a GEMM from its counted traffic.

    Source: C2CServe Fig. 4(a), see the notes of claims c2cserve.fig4a.*.
    """
    sym_tensor_s = traffic.sym_mma_flops / rates.sm_flops
    asym_tensor_s = traffic.asym_mma_flops / rates.sm_flops
    sym_work = sym_tensor_s
    asym_work = busy_s(asym_tensor_s, traffic.asym_steps, traffic.reduction_bytes, rates)
    longest = np.maximum(
        traffic.sym_tile_flops / rates.sm_flops,
        busy_s(
            traffic.asym_tile_flops / rates.sm_flops,
            traffic.asym_tile_steps,
            traffic.asym_tile_reduction_bytes,
            rates,
        ),
    )
    if sm_split is None:
        spread = (sym_work + asym_work) / sm_count
    else:
        spread = np.maximum(
            _on_share(sym_work, sm_split * sm_count),
            _on_share(asym_work, (1.0 - sm_split) * sm_count),
        )
    return predicted(
        traffic,
        link_s=traffic.link_bytes / rates.link_bytes_s,
        hbm_s=traffic.hbm_bytes / rates.hbm_bytes_s,
        tensor_s=(sym_tensor_s + asym_tensor_s) / sm_count,
        issue_s=np.maximum(spread, longest),
        launch_s=np.where(traffic.flops > 0, rates.launch_s, 0.0),
    )


def _on_share(work: Array, sms: Array) -> Array:
    some = np.where(sms > 0, sms, 1.0)
    return np.where(work > 0, np.where(sms > 0, work / some, np.inf), 0.0)
