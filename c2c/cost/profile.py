"""Cost of candidate chunk sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from c2c.cost.constants import Constants
from c2c.cost.step import StepTable
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import ModelSpec, gemms
from c2c.ranges import AboveZero, Count, In, check_value
from pallas_kernels.hopper import WGMMA_ROWS

__all__ = ["ChunkProfile", "chunk_profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkProfile:
    """TTFT (in chunks of one size) and resource needs, by candidate chunk size.

    All over the TTFT target: `hbm_gbps_needed`: HBM bytes, `link_gbps_needed`: link bytes,
    `compute_share`: tensor-core time.
    """

    chunks: npt.NDArray[np.int64]
    ttft_s: npt.NDArray[np.float64]
    hbm_gbps_needed: npt.NDArray[np.float64]
    link_gbps_needed: npt.NDArray[np.float64]
    compute_share: npt.NDArray[np.float64]


def chunk_profile(
    table: StepTable,
    spec: ModelSpec,
    slice_: Slice,
    constants: Constants,
    *,
    chunks: Sequence[int] | npt.ArrayLike,
    prompt_tokens: int,
    ttft_target_s: float,
    rate_gbps: float | None = None,
    alpha_index: int = 0,
) -> ChunkProfile:
    """Return TTFT and resource needs of candidate chunk sizes for one prompt, alone.

    Args:
      ttft_target_s: L_TTFT.
      rate_gbps: of the slice; None: as much as it can draw.
      alpha_index: column of the table.

    Raises:
      SettingError: a chunk outside the table, an empty prompt or a target not above 0.

    Source: C2CServe section 6.3, BW_HBM = (gamma_X S_X + gamma_O S_O) / L_TTFT. The gammas are
    counted traffic, summed over the request's GEMMs.
    """
    sizes = np.asarray(chunks, dtype=np.int64)
    if sizes.ndim != 1 or not len(sizes) or (sizes < 1).any() or (sizes > table.max_tokens).any():
        raise SettingError("chunks", chunks, f"sizes from 1 to {table.max_tokens}")
    check_value(prompt_tokens, Count, "prompt_tokens")
    check_value(ttft_target_s, Annotated[float, In("(0, inf]")], "ttft_target_s")
    check_value(rate_gbps, AboveZero | None, "rate_gbps")

    steps = -(-prompt_tokens // sizes)
    # one flat row per (candidate, step)
    owner = np.repeat(np.arange(len(sizes)), steps)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(steps) - steps, steps)
    offset = index * sizes[owner]
    tokens = np.minimum(sizes[owner], prompt_tokens - offset)
    rows = (offset + tokens == prompt_tokens).astype(np.int64)

    a = alpha_index
    pairs, keys = _pairs_and_keys(offset, tokens, table)
    attention = np.maximum(table.attn_s_per_pair * pairs, table.kv_read_s_per_token * keys)
    attention = attention + table.prefill_attention_s[tokens]
    seconds = table.body_s[tokens, a] + table.head_s[rows, a] + table.step_overhead_s + attention
    link = table.body_link_bytes[tokens, a] + table.head_link_bytes[rows, a]
    hbm = table.body_hbm_bytes[tokens, a] + table.head_hbm_bytes[rows, a]
    states = 2 * table.cache.state / table.token_places  # read and written
    hbm = hbm + (keys + states) * table.kv_bytes_per_token
    if rate_gbps is not None:
        seconds = np.maximum(seconds, link / (rate_gbps * 1e9))

    issued = _total(WGMMA_ROWS * -(-tokens // WGMMA_ROWS), owner, len(sizes))  # rows, padded
    peak = slice_.bf16_tflops * 1e12 * constants.mma_efficiency
    gemm_s = 2.0 * issued * _weights_per_token(spec) / peak
    attention_s = _total(table.attn_s_per_pair * pairs, owner, len(sizes))
    return ChunkProfile(
        chunks=sizes,
        ttft_s=_total(seconds, owner, len(sizes)),
        hbm_gbps_needed=_total(hbm, owner, len(sizes)) / ttft_target_s / 1e9,
        link_gbps_needed=_total(link, owner, len(sizes)) / ttft_target_s / 1e9,
        compute_share=(gemm_s + attention_s) / ttft_target_s,
    )


def _total(
    values: npt.NDArray[Any], owner: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.float64]:
    return np.bincount(owner, weights=values, minlength=count)


def _weights_per_token(spec: ModelSpec) -> float:
    used = {"dense": 1, "expert": spec.experts_per_token, "head": 0}
    return float(sum(used[g.kind] * g.k * g.n * g.count for g in gemms(spec)))


def _pairs_and_keys(
    offset: npt.NDArray[np.int64], chunk: npt.NDArray[np.int64], table: StepTable
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    full, windowed, window, _ = table.reads
    pairs, keys = full * (chunk * offset + chunk * (chunk + 1) // 2), full * (offset + chunk)
    if windowed:
        rising = np.clip(window - offset, 0, chunk)  # queries that see all earlier tokens
        seen = rising * offset + rising * (rising + 1) // 2 + (chunk - rising) * window
        pairs = pairs + windowed * seen
        keys = keys + windowed * (np.minimum(offset, window - 1) + chunk)
    return pairs / table.token_places, keys / table.token_places
