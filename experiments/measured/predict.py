"""Predictions of the cost model for each measured call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from c2c.cost import (
    EXPERT_ROWS,
    Routing,
    cache_read_s,
    decode_attention_s,
    elementwise_bytes_per_token,
    expert_layer_time,
    expert_load,
    pair_s,
    prefill_attention_s,
    resident_gemm_time,
    routed_time,
)
from c2c.models import gemms
from experiments.measured.chips import Chip
from experiments.measured.rows import Rows
from experiments.names import model_of as spec_of

__all__ = ["LAYER_GEMMS", "decode_us", "elementwise_us", "experts_us", "gemm_us", "layer_gemm_us",
           "moe_us", "prefill_us", "spec_of"]  # fmt: skip

HEAD_DIM: Final = 128  # head dimension of the attention rows
# Six weights in a graph that is replayed six times; see the head of gemm_bf16.csv.
GEMM_REPEATS: Final = 36.0
GEMM_TURNS: Final = 6
# Vidur's kernels: two norms, rotary embedding, activation and one addition, none fused.
UNFUSED_KERNELS: Final = 5
LAYER_GEMMS: Final = ("qkv", "o", "gate_up", "down")


def gemm_us(
    rows: Rows, chip: Chip, *, element_bytes: float = 2, stored: float | None = None
) -> Any:
    """Return a chip's predicted microseconds of GEMM rows."""
    estimate = resident_gemm_time(
        rows["m"], rows["n"], rows["k"], slice_=chip.slice_, constants=chip.constants,
        repeats=GEMM_REPEATS, turns=GEMM_TURNS, element_bytes=element_bytes, stored=stored,
    )  # fmt: skip
    return 1e6 * estimate.total_s


def prefill_us(rows: Rows, chip: Chip) -> Any:
    """Return a chip's predicted microseconds of prefill attention."""
    batch, tokens, heads = rows["batch"], rows["tokens"], rows["heads"]
    pairs = batch * tokens * (tokens + 1) / 2
    calls = prefill_attention_s(
        batch * tokens, heads=heads, kv_heads=rows["kv_heads"], slice_=chip.slice_,
        constants=chip.constants, sequences=batch,
    )  # fmt: skip
    each_s = pair_s(heads, HEAD_DIM, slice_=chip.slice_, constants=chip.constants)
    return np.asarray(1e6 * (calls + pairs * each_s))


def decode_us(rows: Rows, chip: Chip) -> Any:
    """Return predicted microseconds of decode attention, repeated on the same data."""
    kv_heads = rows["kv_heads"]
    cached = rows["batch"] * rows["tokens"] * (2 * kv_heads * HEAD_DIM * 2)
    calls = decode_attention_s(
        rows["batch"], kv_heads=kv_heads, slice_=chip.slice_, constants=chip.constants
    )
    read_s = cache_read_s(cached, slice_=chip.slice_, constants=chip.constants, repeated=True)
    return np.asarray(1e6 * (calls + read_s))


def _joined(parts: Sequence[tuple[np.ndarray, Any]], count: int) -> np.ndarray:
    masks = [mask for mask, _ in parts]
    rest = ~np.logical_or.reduce([*masks, np.zeros(count, bool)])
    order = np.argsort(np.concatenate([np.flatnonzero(m) for m in (*masks, rest)]))
    joined: np.ndarray = np.concatenate([*(v for _, v in parts), np.full(rest.sum(), np.nan)])
    return joined[order]


def moe_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return microseconds of fused experts; NaN: unknown models."""
    parts = []
    for model, distribution in sorted(set(zip(rows["model"], rows["distribution"], strict=True))):
        spec, routing = spec_of(model), _routing(distribution)
        if spec is None or not spec.experts or routing is None:
            continue
        here = (rows["model"] == model) & (rows["distribution"] == distribution)
        layer = expert_layer_time(
            rows["tokens"][here], hidden=spec.hidden, intermediate=spec.moe_intermediate,
            experts=spec.experts, experts_per_token=spec.experts_per_token, slice_=chip.slice_,
            constants=chip.constants, routing=routing,
        )  # fmt: skip
        parts.append((here, 1e6 * layer.total_s))
    return _joined(parts, len(rows))


def experts_us(
    rows: Rows, chip: Chip, *, element_bytes: float = 2, stored: float | None = None
) -> np.ndarray:
    """Return predicted microseconds of fused experts with shapes in the rows."""
    loads = [
        expert_load([tokens], int(experts), int(topk), _routing(distribution) or Routing())
        for tokens, experts, topk, distribution in zip(
            rows["tokens"], rows["experts"], rows["topk"], rows["distribution"], strict=True
        )
    ]
    layer = routed_time(
        np.concatenate([load.active for load in loads]), rows["tokens"] * rows["topk"],
        {tm: np.concatenate([load.tiles(tm) for load in loads]) for tm in EXPERT_ROWS},
        hidden=rows["hidden"], intermediate=rows["inter"], slice_=chip.slice_,
        constants=chip.constants, element_bytes=element_bytes, stored=stored,
    )  # fmt: skip
    total: np.ndarray = np.asarray(1e6 * layer.total_s)
    return total


def _routing(distribution: str) -> Routing | None:
    if distribution in ("balanced", "uniform"):
        return Routing(kind="balanced" if distribution == "balanced" else "independent")
    name, _, skew = distribution.rpartition("_")
    try:
        return Routing(kind="power_law", skew=float(skew)) if name == "power_law" else None
    except ValueError:
        return None


def layer_gemm_us(rows: Rows, which: str, chip: Chip) -> np.ndarray:
    """Return microseconds of a layer's product; NaN: unknown models."""
    parts = []
    for model in sorted(set(rows["model"])):
        if (spec := spec_of(model)) is None:
            continue
        here = rows["model"] == model
        gemm = next(g for g in gemms(spec) if g.name == which)
        product = resident_gemm_time(
            rows["tokens"][here], gemm.n, gemm.k, slice_=chip.slice_, constants=chip.constants
        )
        parts.append((here, 1e6 * product.total_s))
    return _joined(parts, len(rows))


def elementwise_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return predicted microseconds of a layer's elementwise kernels; NaN if unknown."""
    parts = []
    rate = chip.slice_.hbm_gbps * 1e9 * chip.constants.elementwise_efficiency
    for model in sorted(set(rows["model"])):
        if (spec := spec_of(model)) is None:
            continue
        here = rows["model"] == model
        moved = rows["tokens"][here] * (elementwise_bytes_per_token(spec) / spec.layers)
        floor_s = UNFUSED_KERNELS * chip.constants.elementwise_s
        parts.append((here, 1e6 * (floor_s + moved / rate)))
    return _joined(parts, len(rows))
