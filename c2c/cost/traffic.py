"""Tile-exact byte and operation counts of the published HybridGEMM."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.cost.tiles import KernelTiles, Tiles
from pallas_kernels.hopper import WGMMA_ROWS

__all__ = [
    "Array",
    "ArrayLike",
    "Traffic",
    "asym_accumulation_steps",
    "gemm_traffic",
    "onchip_bytes",
    "split_columns",
]

Array = Any  # one formula for NumPy arrays, JAX arrays and tracers, which share no static type
ArrayLike = Any

_EPILOGUE_BYTES = 32 * 1024  # output staging of two compute warpgroups, two slots each
_SUM_BYTES = 4  # of an accumulator, float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Traffic and work of one GEMM; every field broadcasts over the inputs' shapes.

    `*_mma_flops` include padding, `flops` do not. `*_tile_*` are of a CTA's largest piece.
    """

    link_bytes: Array
    hbm_bytes: Array
    x_bytes: Array
    o_bytes: Array
    flops: Array
    sym_mma_flops: Array
    asym_mma_flops: Array
    reduction_bytes: Array
    asym_steps: Array
    sym_tile_flops: Array
    asym_tile_flops: Array
    asym_tile_reduction_bytes: Array
    asym_tile_steps: Array


def split_columns(n: ArrayLike, alpha: ArrayLike) -> tuple[Array, Array]:
    """Return (N_sym, N_asym) with N_sym = floor(alpha * N).

    Source: C2CServe, Algorithm 1.
    """
    n = np.asarray(n, dtype=float)
    n_sym = np.floor(alpha * n)
    return n_sym, n - n_sym


def gemm_traffic(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    alpha: ArrayLike,
    *,
    tiles: KernelTiles,
    sm_count: int,
    l2_bytes: ArrayLike,
    element_bytes: int = 2,
    groups: ArrayLike = 1.0,
) -> Traffic:
    """Return bytes and operations of a hybrid GEMM `O[M,N] = X[M,K] W[K,N]`, W in host memory.

    Link: SymGEMM reads its columns of W once per M tile (or cluster), AsymGEMM once.

    HBM, SymGEMM: X once per near-square wave of output tiles, O once.

    HBM, AsymGEMM: X once if a K slice (m x kc) or X fits L2, else once per wave of strips; O once
    per K slice, or once if it fits L2 beside one.

    Args:
      m: rows, 0 allowed; arguments broadcast.
      alpha: share of columns for SymGEMM, in [0, 1].
      sm_count: SMs of the slice.
      l2_bytes: L2 share of the slice.
      groups: equal GEMMs in one launch; L2 holds one at a time.

    Source: C2CServe sections 3.2.1 and 5.2, Fig. 4(b); the rules of L2 are ours.
    """
    sym, asym = tiles.sym, tiles.asym
    e = float(element_bytes)
    m, k = (np.asarray(v, dtype=float) for v in (m, k))
    n_sym, n_asym = split_columns(n, alpha)
    some = np.where(m > 0, groups, 0.0)  # empty GEMMs move nothing

    rows = WGMMA_ROWS * np.ceil(m / WGMMA_ROWS)
    sym_strips = np.ceil(n_sym / sym.tn)
    asym_strips = np.ceil(n_asym / asym.tn)
    slices = np.ceil(k / asym.kc)

    sym_reads_of_w = np.ceil(m / (sym.tm * tiles.cluster))
    link = some * e * k * (n_sym * sym_reads_of_w + n_asym)

    side = -int(-(sm_count**0.5) // 1)
    x_once = e * m * k
    x_fits = x_once <= l2_bytes
    x_slice = e * m * asym.kc
    waves = np.ceil(asym_strips / sm_count)
    asym_reads = np.where(x_slice <= l2_bytes, np.minimum(asym_strips, 1), waves)
    sym_reads = np.ceil(sym_strips / side)
    x_bytes = some * x_once * np.where(x_fits, 1.0, sym_reads + asym_reads)

    o_fits = e * m * n_asym + x_slice <= l2_bytes
    o_touches = np.where(o_fits, 1.0, 2 * slices - 1)
    o_bytes = some * e * m * (n_sym + n_asym * o_touches)

    depth = sym.tk * np.ceil(k / sym.tk)
    m_tiles = np.ceil(m / sym.tm)
    # CTAs of a cluster that have no rows still hold their SM for as long as a full tile
    idle = tiles.cluster * sym_reads_of_w - m_tiles
    tile_rows = np.minimum(rows, float(sym.tm))
    sym_mma = some * 2 * (rows + idle * tile_rows) * sym.tn * sym_strips * depth
    asym_depth = asym.tk * np.ceil(k / asym.tk)
    asym_mma = some * 2 * rows * asym.tn * asym_strips * asym_depth
    steps = np.ceil(m / asym.tm)
    has_sym, has_asym = np.minimum(sym_strips, 1) * (m > 0), np.minimum(asym_strips, 1) * (m > 0)
    return Traffic(
        link_bytes=link,
        hbm_bytes=x_bytes + o_bytes,
        x_bytes=x_bytes,
        o_bytes=o_bytes,
        flops=some * 2 * m * (n_sym + n_asym) * k,
        sym_mma_flops=sym_mma,
        asym_mma_flops=asym_mma,
        reduction_bytes=some * e * m * n_asym * slices,
        asym_steps=some * steps * asym_strips * slices,
        sym_tile_flops=has_sym * 2 * tile_rows * sym.tn * depth,
        asym_tile_flops=has_asym * 2 * rows * asym.tn * np.minimum(asym_depth, float(asym.kc)),
        asym_tile_reduction_bytes=e * m * np.minimum(n_asym, float(asym.tn)),
        asym_tile_steps=has_asym * steps,
    )


def asym_accumulation_steps(m: ArrayLike, n: ArrayLike, k: ArrayLike, tiles: Tiles) -> Array:
    """Return AsymGEMM's partial tiles: M tiles x column strips x K slices.

    Source: C2CServe section 5.2.3, Fig. 8; its HBM transactions are taken as their number.
    """
    m, n, k = (np.asarray(v, dtype=float) for v in (m, n, k))
    return np.ceil(m / tiles.tm) * np.ceil(n / tiles.tn) * np.ceil(k / tiles.kc)


def onchip_bytes(
    tiles: Tiles, *, weight_stationary: bool, element_bytes: int = 2
) -> tuple[int, int]:
    """Return (shared memory, accumulator registers) of a CTA, bytes."""
    if weight_stationary:
        loads = tiles.stages * tiles.tm * tiles.tk + tiles.kc * tiles.tn
    else:
        loads = tiles.stages * (tiles.tm + tiles.tn) * tiles.tk
    return loads * element_bytes + _EPILOGUE_BYTES, tiles.tm * tiles.tn * _SUM_BYTES
