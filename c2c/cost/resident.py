"""Time of GEMMs over weights in HBM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from c2c.cost.attention_time import l2_misses
from c2c.cost.constants import Constants
from c2c.cost.routing import Routing, expert_load
from c2c.hardware import Slice

__all__ = [
    "ResidentTime",
    "expert_layer_time",
    "resident_gemm_time",
    "routed_time",
    "soft_maximum",
    "throttled_s",
]

Values = npt.NDArray[np.float64]

# The menu: rows, columns, slices of K. 64 to 256 by 32 to 256 is what CUTLASS and cuBLAS ship.
TILES: Final = tuple((tm, tn) for tm in (64, 128, 256) for tn in (32, 64, 128, 256))
K_SLICES: Final = (1, 2, 4, 8)
# Fused expert kernels are written for small tiles too, and do not split K.
EXPERT_ROWS: Final = (16, 32, 64, 128)
EXPERT_COLUMNS: Final = (64, 128, 256)
K_STEP: Final = 64  # depth of one main-loop iteration
RESULT_BYTES: Final = 2  # an element of O, also if operands are narrower
PARTIAL_BYTES: Final = 8  # a float32 partial sum, written and read again
# Two resources that are both nearly full slow each other down: their times are joined by a power
# mean of this exponent. Infinity would be the roofline's sharp corner.
SHARPNESS: Final = 6.0
# Time scale after which busy tensor cores meet the power limit, and the sharpness of its onset.
BUSY_S: Final = 0.025
ONSET: Final = 4.0
# Above this number of tiles per SM, the last wave does not matter.
MANY_WAVES: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentTime:
    """Seconds and HBM bytes of GEMMs over resident weights, broadcast over inputs.

    `compute_s` and `hbm_s` are the chosen tile's; `total_s` combines them and adds the launch.
    """

    total_s: Values
    compute_s: Values
    hbm_s: Values
    hbm_bytes: Values


def soft_maximum(a: npt.ArrayLike, b: npt.ArrayLike) -> Values:
    """Return the power mean of two competing times, up to 1.13 times the larger one.

    >>> float(soft_maximum(0.0, 3.0)), round(float(soft_maximum(1.0, 1.0)), 3)
    (3.0, 1.122)
    """
    first, second = np.asarray(a, float), np.asarray(b, float)
    larger = np.maximum(first, second)
    some = larger > 0
    ratio = np.where(some, np.minimum(first, second) / np.where(some, larger, 1.0), 0.0)
    joined: Values = larger * (1.0 + ratio**SHARPNESS) ** (1.0 / SHARPNESS)
    return joined


# O[M,N] = X[M,K] W[K,N]. A library has kernels of several tile shapes, may split K, and selects
# about the fastest for each GEMM.
def resident_gemm_time(
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    *,
    slice_: Slice,
    constants: Constants,
    element_bytes: float = 2,
    repeats: float = 0.0,
    turns: int = 0,
    stored: float | None = None,
    tiles: Sequence[tuple[int, int]] = TILES,
    k_slices: Sequence[int] = K_SLICES,
) -> ResidentTime:
    """Return the time of a GEMM over resident weights at its best tile and split of K.

    Args:
      m: rows; 0 takes no time. m, n and k broadcast.
      n: output columns.
      k: depth.
      element_bytes: of X and W; O has 2 or more.
      repeats: back-to-back runs, at the power limit; 0: the caller adds that.
      turns: weight matrices of such runs, some in the L2; 0: none.
      stored: of a stored weight; default `element_bytes`.
      tiles: (rows, columns) of each tile.
      k_slices: allowed numbers of parts of K.
    """
    rows, columns, deep = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (m, n, k)))
    sm_flops = _sm_flops(slice_, constants.gemm_mma_efficiency, element_bytes)
    hbm_rate = slice_.hbm_gbps * 1e9 * constants.gemm_hbm_efficiency
    weights = (element_bytes if stored is None else stored) * deep * columns
    result_bytes = max(RESULT_BYTES, element_bytes)
    once = element_bytes * rows * deep + weights + result_bytes * rows * columns
    hit_share = 1.0 - l2_misses(turns * weights, slice_.l2_bytes) if turns else 0.0
    spared = weights * hit_share * (constants.l2_gain / (1.0 + constants.l2_gain))
    best = ResidentTime(
        total_s=np.full(rows.shape, np.inf), compute_s=rows, hbm_s=rows, hbm_bytes=once
    )
    for tm, tn in tiles:
        rate = _tile_rate(sm_flops, tm, tn, constants.gemm_intensity, element_bytes)
        count = np.ceil(rows / tm) * np.ceil(columns / tn)
        for slices_of_k in k_slices:
            depth = K_STEP * np.ceil(deep / (slices_of_k * K_STEP))
            waves = np.ceil(count * (slices_of_k / slice_.sm_count))
            compute_s = waves * (2.0 * tm * tn * depth / rate + constants.gemm_tile_s)
            moved = (
                once if slices_of_k == 1 else once + PARTIAL_BYTES * slices_of_k * columns * rows
            )
            hbm_s = (moved - spared) / hbm_rate
            best = _better(best, compute_s, hbm_s, moved)
    some = rows > 0
    longer_s = throttled_s(best.compute_s, repeats * best.compute_s, constants)
    return ResidentTime(
        total_s=np.where(some, best.total_s + longer_s + constants.gemm_launch_s, 0.0),
        compute_s=np.where(some, best.compute_s, 0.0),
        hbm_s=np.where(some, best.hbm_s, 0.0),
        hbm_bytes=np.where(some, best.hbm_bytes, 0.0),
    )


def throttled_s(compute_s: npt.ArrayLike, busy_s: npt.ArrayLike, constants: Constants) -> Values:
    """Return the extra compute seconds by the power limit."""
    onset = (np.asarray(busy_s, float) / BUSY_S) ** ONSET
    longer_s: Values = (
        np.asarray(compute_s, float) * constants.gemm_throttle * (onset / (1.0 + onset))
    )
    return longer_s


def expert_layer_time(
    tokens: npt.ArrayLike,
    *,
    hidden: int,
    intermediate: int,
    experts: int,
    experts_per_token: int,
    slice_: Slice,
    constants: Constants,
    element_bytes: float = 2,
    routing: Routing | None = None,
    stored: float | None = None,
    over: int = 1,
    gated: bool = True,
) -> ResidentTime:
    """Return the time of an MoE layer's fused experts.

    Args:
      tokens: any shape; 0 takes no time.
      hidden, intermediate: widths of model and expert.
      experts, experts_per_token: in all and per token.
      routing: default: independent.
      stored: of a stored weight; default `element_bytes`.
      over: GPUs that share the experts equally.
      gated: whether experts have gates.
    """
    count = np.asarray(tokens, dtype=np.float64)
    load = expert_load(count, experts, experts_per_token, routing or Routing())
    return routed_time(
        load.active / over, count * experts_per_token / over,
        {tm: load.tiles(tm) / over for tm in EXPERT_ROWS}, hidden=hidden,
        intermediate=intermediate, slice_=slice_, constants=constants,
        element_bytes=element_bytes, stored=stored, gated=gated,
    )  # fmt: skip


def routed_time(
    active: Values, routed: Values, tiles_of: Mapping[int, Values], *, hidden: npt.ArrayLike,
    intermediate: npt.ArrayLike, slice_: Slice, constants: Constants, element_bytes: float = 2,
    stored: float | None = None, gated: bool = True,
) -> ResidentTime:  # fmt: skip
    """Return `expert_layer_time` of known loads; all arguments broadcast.

    Args:
      active: experts with rows.
      routed: rows of all experts; 0 takes no time.
      tiles_of: tiles by a tile's rows in `EXPERT_ROWS`.
      hidden, intermediate, slice_, constants, element_bytes, stored, gated: see
        `expert_layer_time`.
    """
    sm_flops = _sm_flops(slice_, constants.expert_mma_efficiency, element_bytes)
    hbm_rate = slice_.hbm_gbps * 1e9 * constants.expert_hbm_efficiency
    wide, inner = np.asarray(hidden, np.float64), np.asarray(intermediate, np.float64)
    shapes = ((wide, (1 + gated) * inner), (inner, wide))
    weight_bytes = element_bytes if stored is None else stored
    result_bytes = max(RESULT_BYTES, element_bytes)
    moved = [
        weight_bytes * active * k * n + routed * (element_bytes * k + result_bytes * n)
        for k, n in shapes
    ]
    best_s, compute_s = np.full(routed.shape, np.inf), np.zeros(routed.shape)
    for tm in EXPERT_ROWS:
        for tn in EXPERT_COLUMNS:
            rate = _tile_rate(sm_flops, tm, tn, constants.expert_intensity, element_bytes)
            total, busy = np.zeros(routed.shape), np.zeros(routed.shape)
            for (k, n), bytes_ in zip(shapes, moved, strict=True):
                waves = tiles_of[tm] * (np.ceil(n / tn) / slice_.sm_count)
                waves = np.where(waves < MANY_WAVES, np.ceil(waves), waves)
                one = waves * (2.0 * tm * tn * k / rate + constants.expert_tile_s)
                total = total + soft_maximum(one, bytes_ / hbm_rate)
                busy = busy + one
            compute_s = np.where(total < best_s, busy, compute_s)
            best_s = np.minimum(best_s, total)
    some = routed > 0
    bytes_of_both = moved[0] + moved[1]
    return ResidentTime(
        total_s=np.where(some, best_s + constants.expert_floor_s, 0.0),
        compute_s=np.where(some, compute_s, 0.0),
        hbm_s=np.where(some, bytes_of_both / hbm_rate, 0.0),
        hbm_bytes=np.where(some, bytes_of_both, 0.0),
    )


def _sm_flops(slice_: Slice, efficiency: float, element_bytes: float) -> float:
    return slice_.bf16_tflops * 1e12 * efficiency / slice_.sm_count * (2.0 / element_bytes)


def _tile_rate(sm_flops: float, tm: int, tn: int, intensity: float, element_bytes: float) -> Any:
    per_byte = 2.0 * tm * tn / ((tm + tn) * element_bytes)
    needed = intensity * 2.0 / element_bytes  # wider elements need operands at a higher rate
    return sm_flops / (1.0 + (needed / per_byte) ** SHARPNESS) ** (1.0 / SHARPNESS)


def _better(best: ResidentTime, compute_s: Values, hbm_s: Values, moved: Values) -> ResidentTime:
    total_s = soft_maximum(compute_s, hbm_s)
    wins = total_s < best.total_s
    return ResidentTime(
        total_s=np.where(wins, total_s, best.total_s),
        compute_s=np.where(wins, compute_s, best.compute_s),
        hbm_s=np.where(wins, hbm_s, best.hbm_s),
        hbm_bytes=np.where(wins, moved, best.hbm_bytes),
    )
