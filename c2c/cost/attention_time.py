"""Time of an attention layer over a cache in HBM."""

from typing import Any

import numpy as np
import numpy.typing as npt

from c2c.cost.constants import Constants
from c2c.hardware import Slice

__all__ = ["cache_read_s", "decode_attention_s", "l2_misses", "pair_s", "prefill_attention_s"]

Values = npt.NDArray[np.float64]

HEAD_DIM = 128  # head size of the fitted constants; other sizes scale in proportion
# The L2 keeps what a repeated call read, wholly up to the first and not at all from the second
# multiple of its size on.
L2_KEEPS, L2_LOSES = 0.7, 1.4


def l2_misses(bytes_: npt.ArrayLike, l2_bytes: float) -> Values:
    """Return the share of a working set outside an L2."""
    over = np.asarray(bytes_, float) / l2_bytes - L2_KEEPS
    return np.clip(over / (L2_LOSES - L2_KEEPS), 0.0, 1.0)


def pair_s(heads: npt.ArrayLike, head_dim: float, *, slice_: Slice, constants: Constants) -> Any:
    """Return the seconds of a (query, key) pair in all heads."""
    peak = slice_.bf16_tflops * 1e12 * constants.prefill_efficiency
    return 4.0 * np.asarray(heads, float) * head_dim / peak


# A call has a minimum time. Prefill computes pairs at a share of the tensor-core peak, plus a cost
# per head and per token, so short prompts stay far from the peak.
def prefill_attention_s(
    tokens: npt.ArrayLike,
    *,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    slice_: Slice,
    constants: Constants,
    sequences: npt.ArrayLike = 1.0,
    head_dim: int = HEAD_DIM,
    element_bytes: int = 2,
) -> Values:
    """Return the seconds of a prefill call without its (query, key) pairs.

    Args:
      tokens: of all prompts, any shape.
      element_bytes: of cache or activations.
    """
    count = np.asarray(tokens, dtype=np.float64)
    queries, keys = np.asarray(heads, float), np.asarray(kv_heads, float)
    work = queries + constants.prefill_kv_weight * keys
    wide = head_dim / HEAD_DIM
    sm_s = work * (
        constants.prefill_head_s * np.asarray(sequences, float)
        + constants.prefill_token_s * wide * count
    )
    moved = element_bytes * head_dim * (queries + keys) * count
    spilled = l2_misses(moved, slice_.l2_bytes) * moved * constants.prefill_spill
    total: Values = sm_s / slice_.sm_count + spilled / (slice_.hbm_gbps * 1e9)
    return (count > 0) * (total + constants.prefill_floor_s)


def decode_attention_s(
    sequences: npt.ArrayLike, *, kv_heads: npt.ArrayLike, slice_: Slice, constants: Constants
) -> Values:
    """Return the seconds of a decode call without cache reads."""
    count = np.asarray(sequences, dtype=np.float64)
    sm_s = constants.decode_head_s * np.asarray(kv_heads, float) * count
    return (count > 0) * (sm_s / slice_.sm_count + constants.decode_floor_s)


def cache_read_s(
    bytes_: npt.ArrayLike, *, slice_: Slice, constants: Constants, repeated: bool = False
) -> Values:
    """Return the seconds of a decode's read of the cache.

    Args:
      bytes_: of keys and values, any shape.
      repeated: whether the L2 holds a part of the previous read.
    """
    moved = np.asarray(bytes_, float)
    from_hbm_s: Values = moved / (slice_.hbm_gbps * 1e9 * constants.decode_hbm_efficiency)
    if not repeated:
        return from_hbm_s
    missed = l2_misses(moved, slice_.l2_bytes)
    return from_hbm_s * (missed + (1.0 - missed) / (1.0 + constants.l2_gain))
