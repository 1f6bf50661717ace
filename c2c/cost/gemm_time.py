"""Time of one GEMM over host-resident weights: the slowest of SMs, link and HBM."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from c2c.cost.arrays import Array, ArrayLike, numeric
from c2c.cost.traffic import KernelTiles, Traffic, gemm_traffic
from c2c.hardware import Slice

__all__ = [
    "GemmTime",
    "KernelConstants",
    "gemm_time",
    "kernel_link_gbps",
    "time_of",
]


class KernelConstants(Protocol):
    """The part of `Constants` a GEMM's time depends on; calibration passes JAX scalars."""

    @property
    def mma_efficiency(self) -> Any:
        """Sustained share of the tensor-core peak."""

    @property
    def link_efficiency(self) -> Any:
        """Share of the slice's link cap one kernel attains."""

    @property
    def reduce_gbps_per_sm(self) -> Any:
        """Partial sums an SM pushes into O."""

    @property
    def asym_issue_s(self) -> Any:
        """Issue of one partial tile's reduction."""

    @property
    def hbm_efficiency(self) -> Any:
        """Sustained share of HBM bandwidth."""

    @property
    def launch_s(self) -> Any:
        """One kernel launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTime:
    """Seconds each resource needs for a GEMM; `total_s` is the largest plus the launch."""

    total_s: Array
    sm_s: Array
    link_s: Array
    hbm_s: Array
    traffic: Traffic


def kernel_link_gbps(
    slice_: Slice, constants: KernelConstants, link_gbps: ArrayLike, *, xp: Any = None
) -> Array:
    """Return what one streaming kernel, alone on the link, draws from it (GB/s).

    A kernel attains `link_efficiency` of what its slice may draw, and never more than the link
    carries. The link itself carries `link_gbps` when several slices stream at once, so two
    link-bound kernels together get more than one alone.
    """
    return numeric(xp).minimum(link_gbps, constants.link_efficiency * slice_.link_cap_gbps)


def gemm_time(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    alpha: ArrayLike,
    *,
    slice_: Slice,
    constants: KernelConstants,
    link_gbps: float,
    tiles: KernelTiles | None = None,
    sm_split: ArrayLike | None = None,
    element_bytes: int = 2,
    groups: ArrayLike = 1.0,
    resident: float = 0.0,
    xp: Any = None,
) -> GemmTime:
    """Return the time of a hybrid GEMM on one slice, alone on the link at `link_gbps`.

    Args:
      m: rows (tokens).
      n: output columns.
      k: depth.
      alpha: share of columns for SymGEMM, in [0, 1].
      slice_: the MIG slice (`c2c.hardware.Slice`).
      constants: calibration constants.
      link_gbps: the link's capacity, or this slice's share of it.
      tiles: tile shapes; default `KernelTiles()`.
      sm_split: share of SMs for SymGEMM; None balances the two paths. The paper uses one number
        for columns and SMs; they balance only if both paths cost the same a column.
      element_bytes: bytes of one element.
      groups: equal GEMMs in one launch (experts).
      resident: share of W in HBM, in [0, 1]; one launch draws on HBM for it and on the link for
        the rest, from beginning to end, as `pallas_kernels.gemm.Resident` does.
      xp: numpy (default) or jax.numpy.

    Returns:
      Total and per-resource seconds with the traffic behind them.
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
        xp=xp,
    )
    if resident > 0.0:
        there = resident * traffic.link_bytes  # what is read twice over the link is so from HBM
        traffic = replace(
            traffic, link_bytes=traffic.link_bytes - there, hbm_bytes=traffic.hbm_bytes + there
        )
    rate = kernel_link_gbps(slice_, constants, link_gbps, xp=xp)
    return time_of(
        traffic, slice_=slice_, constants=constants, link_rate_gbps=rate, sm_split=sm_split, xp=xp
    )


def time_of(
    traffic: Traffic,
    *,
    slice_: Slice,
    constants: KernelConstants,
    link_rate_gbps: ArrayLike,
    sm_split: ArrayLike | None = None,
    xp: Any = None,
) -> GemmTime:
    """Return the time of counted traffic.

    SM time: an SM works through its share of tiles; in AsymGEMM pushing a partial tile into O
    (reduction) does not overlap the next tile's math, because both need the accumulators. The two
    paths run on different SMs at once, so balanced they take (work_sym + work_asym) / SMs, but
    never less than the longest tile that one CTA has to finish alone: GEMMs with fewer tiles than
    SMs leave SMs idle.

    Source: C2CServe Fig. 4(a); that bandwidths alone do not give its crossover is derived in the
    notes of claims c2cserve.fig4a.*.
    """
    xp = numeric(xp)
    rate_sm = slice_.bf16_tflops * 1e12 * constants.mma_efficiency / slice_.sm_count
    reduce_sm = constants.reduce_gbps_per_sm * 1e9
    issue = constants.asym_issue_s

    sym_work = traffic.sym_mma_flops / rate_sm
    asym_work = (
        traffic.asym_mma_flops / rate_sm
        + traffic.reduction_bytes / reduce_sm
        + traffic.asym_steps * issue
    )
    longest = xp.maximum(
        traffic.sym_tile_flops / rate_sm,
        traffic.asym_tile_flops / rate_sm
        + traffic.asym_tile_reduction_bytes / reduce_sm
        + traffic.asym_tile_steps * issue,
    )
    if sm_split is None:
        spread = (sym_work + asym_work) / slice_.sm_count
    else:
        spread = xp.maximum(
            _on_share(sym_work, sm_split * slice_.sm_count, xp),
            _on_share(asym_work, (1.0 - sm_split) * slice_.sm_count, xp),
        )
    sm_s = xp.maximum(spread, longest)
    link_s = traffic.link_bytes / (link_rate_gbps * 1e9)
    hbm_s = traffic.hbm_bytes / (slice_.hbm_gbps * 1e9 * constants.hbm_efficiency)
    launch = xp.where(traffic.flops > 0, constants.launch_s, 0.0)
    total = xp.maximum(xp.maximum(sm_s, link_s), hbm_s) + launch
    return GemmTime(total_s=total, sm_s=sm_s, link_s=link_s, hbm_s=hbm_s, traffic=traffic)


def _on_share(work: Array, sms: Array, xp: Any) -> Array:
    """Seconds of `work` SM-seconds on `sms` SMs: zero work takes none, even without SMs."""
    some = xp.where(sms > 0, sms, 1.0)
    return xp.where(work > 0, xp.where(sms > 0, work / some, xp.inf), 0.0)
