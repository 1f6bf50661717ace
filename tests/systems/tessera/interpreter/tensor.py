"""Tensor-core instructions of a warp in XLA's GEMMs up to compute capability 8.9."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = ["MMA", "load_matrices", "multiply"]

Array = Any

# Source: PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
MMA: Final = "mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
_LANE = np.arange(32)
_GROUP, _PAIR = _LANE // 4, 2 * (_LANE % 4)


def multiply(kind: str, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
    """Return A x B + C of each warp, as fragments: four float32 registers.

    Args:
      kind: bf16 or f16.
      a: four registers of two elements each, [lanes], whole warps in order.
      b: two such registers.
      c: four float32 registers, [lanes].
    """
    left = np.zeros((len(a[0]) // 32, 16, 16))
    right = np.zeros((len(a[0]) // 32, 16, 8))
    sums = np.zeros((len(a[0]) // 32, 16, 8))
    for k, register in enumerate(a):
        for half, values in enumerate(_halves(register, kind)):
            left[:, _GROUP + 8 * (k % 2), _PAIR + 8 * (k // 2) + half] = values
    for k, register in enumerate(b):
        for half, values in enumerate(_halves(register, kind)):
            right[:, _PAIR + 8 * k + half, _GROUP] = values
    for k, values in enumerate(c):
        sums[:, _GROUP + 8 * (k // 2), _PAIR + k % 2] = values.reshape(-1, 32)
    made = (left @ right + sums).astype(np.float32)
    return [made[:, _GROUP + 8 * (k // 2), _PAIR + k % 2].ravel() for k in range(4)]


def load_matrices(rows: Array, *, transposed: bool) -> list[Array]:
    """Return the registers of 8 x 8 matrices of 16-bit elements, one a matrix, [lanes].

    Args:
      rows: [warp, matrix, row, 16 bytes].
      transposed: True to transpose each matrix.
    """
    elements = np.ascontiguousarray(rows).view(np.uint16)
    if transposed:
        elements = elements.swapaxes(2, 3)
    result = []
    for matrix in range(elements.shape[1]):
        low = elements[:, matrix, _GROUP, _PAIR].astype(np.uint32)
        high = elements[:, matrix, _GROUP, _PAIR + 1].astype(np.uint32)
        result.append((low | high << np.uint32(16)).ravel())
    return result


def _halves(register: Array, kind: str) -> tuple[Array, Array]:
    dtype = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
    both = np.ascontiguousarray(register).view(dtype).reshape(-1, 32, 2).astype(np.float64)
    return both[..., 0], both[..., 1]
