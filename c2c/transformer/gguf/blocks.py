"""Quantised GGUF blocks as integers, scales and minima."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

if TYPE_CHECKING:
    from jaxtyping import Float32, Int8, UInt8

__all__ = ["QUANTIZED_KINDS", "QuantizedTensor", "centred", "unpack"]

_CHUNK_BYTES = 1 << 20  # packed rows at a time, so that temporaries stay in the cache

type _Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTensor:
    """A matrix w[n, k] = scales[n, k // group] * values[n, k] + minima[n, k // group].

    Scales and minima are float32; symmetric formats have no minima.

    Attributes:
      bits: of a value.
      group: neighbours along k with one scale.
      values: a byte each; signed without minima, else from 0 (`centred`: from -8).
    """

    kind: str
    bits: int
    group: int
    values: Int8[np.ndarray, "n k"]
    scales: Float32[np.ndarray, "n g"]
    minima: Float32[np.ndarray, "n g"] | None


# | kind | values     | group | minima | as symmetric integers        |
# | ---- | ---------- | ----- | ------ | ---------------------------- |
# | Q8_0 | -128 … 127 | 32    | no     | int8, exact                  |
# | Q4_0 | -8 … 7     | 32    | no     | int4, exact                  |
# | Q6_K | -32 … 31   | 16    | no     | int8, exact                  |
# | Q4_1 | 0 … 15     | 32    | yes    | int4 by `centred`, see there |
# | Q4_K | 0 … 15     | 32    | yes    | the same                     |
def unpack(rows: UInt8[np.ndarray, "n bytes"], kind: GGMLQuantizationType) -> QuantizedTensor:
    """Unpack a matrix of blocks by row; kinds are `QUANTIZED_KINDS`."""
    bits, group, read = _LAYOUTS[kind]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rows.shape[1] // block_bytes
    height, width = rows.shape[0], blocks * block
    values = np.empty((height, width), np.int8)
    scales = np.empty((height, width // group), np.float32)
    minima: np.ndarray | None = None
    step = max(1, _CHUNK_BYTES // max(1, rows.shape[1]))
    for top in range(0, height, step):
        part = slice(top, top + step)
        q, d, m = read(rows[part].reshape(-1, block_bytes))
        values[part] = q.reshape(-1, width)
        scales[part] = d.reshape(-1, width // group)
        if m is not None:
            minima = np.empty_like(scales) if minima is None else minima
            minima[part] = m.reshape(-1, width // group)
    return QuantizedTensor(
        kind=kind.name, bits=bits, group=group, values=values, scales=scales, minima=minima
    )


def centred(tensor: QuantizedTensor) -> QuantizedTensor:
    """Shift values of 0 … 15 to -8 … 7, for kernels with signed 4-bit weights.

    x @ w.T = x @ (scales * values).T + s @ minima.T, s[m, g] the sum of x[m] over group g; minima
    are float32 (relative error 2**-24).
    """
    if tensor.minima is None or tensor.values.min(initial=0) < 0:
        return tensor
    values = tensor.values - np.int8(8)
    return replace(tensor, values=values, minima=tensor.minima + np.float32(8) * tensor.scales)


def _half(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(column).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 0x0F, packed >> 4], axis=1).astype(np.int8)


def _q4_0(blocks: np.ndarray) -> _Parts:
    return _nibbles(blocks[:, 2:]) - np.int8(8), _half(blocks[:, :2]), None


def _q4_1(blocks: np.ndarray) -> _Parts:
    return _nibbles(blocks[:, 4:]), _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _q8_0(blocks: np.ndarray) -> _Parts:
    return blocks[:, 2:].view(np.int8), _half(blocks[:, :2]), None


def _q4_k(blocks: np.ndarray) -> _Parts:
    """Unpack blocks of 256: 2 halves, 12 bytes of 6-bit scales and minima of 8 groups, values.

    Groups 0-3 have six bits in one byte; 4-7 four in bytes 8-11 (scale low, minimum high) and two
    in the top of bytes 0-3 and 4-7.
    """
    low, mid, high = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scale = np.concatenate([low & 0x3F, (high & 0x0F) | (low >> 6 << 4)], axis=1)
    least = np.concatenate([mid & 0x3F, (high >> 4) | (mid >> 6 << 4)], axis=1)
    # 32 bytes hold group 2i in their low halves and 2i + 1 in the high ones.
    values = _nibbles(blocks[:, 16:].reshape(-1, 32))
    scales = _half(blocks[:, :2]) * scale.astype(np.float32)
    return values, scales, -(_half(blocks[:, 2:4]) * least.astype(np.float32))


def _q6_k(blocks: np.ndarray) -> _Parts:
    """Unpack blocks of 256: 128 bytes of low halves, 64 of top bits, 16 scales, one float16.

    Each half of a block takes 64 bytes and 32: bits 2i and 2i + 1 of byte j belong to value 32 * i
    + j.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 4, 32)
    packed = blocks[:, 128:192].reshape(-1, 1, 32)
    top = (packed >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    values = (low | (top << 4).astype(np.int8)) - np.int8(32)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return values, _half(blocks[:, 208:210]) * scale, None


_LAYOUTS: dict[GGMLQuantizationType, tuple[int, int, Callable[[np.ndarray], _Parts]]] = {
    GGMLQuantizationType.Q4_0: (4, 32, _q4_0),
    GGMLQuantizationType.Q4_1: (4, 32, _q4_1),
    GGMLQuantizationType.Q8_0: (8, 32, _q8_0),
    GGMLQuantizationType.Q4_K: (4, 32, _q4_k),
    GGMLQuantizationType.Q6_K: (6, 16, _q6_k),
}

QUANTIZED_KINDS = tuple(kind.name for kind in _LAYOUTS)
