"""Predictions of the cost model for each measured call, in microseconds."""

from __future__ import annotations

from typing import Final

import numpy as np

from c2c.cost import (
    Routing,
    cache_read_s,
    decode_attention_s,
    elementwise_bytes_per_token,
    expert_layer_time,
    pair_s,
    prefill_attention_s,
    resident_gemm_time,
)
from c2c.errors import SettingError
from c2c.models import ModelSpec, gemms, load_spec
from experiments.bench.measured.chips import Chip
from experiments.bench.measured.rows import Rows

__all__ = ["LAYER_GEMMS", "attention_us", "elementwise_us", "gemm_us", "layer_gemm_us", "moe_us",
           "spec_of"]  # fmt: skip

HEAD_DIM: Final = 128  # of the attention rows
# Six weights in a graph that is replayed six times; see the head of gemm_bf16.csv.
GEMM_REPEATS: Final = 36.0
# Vidur's: two norms, rotary embedding, activation and one addition, none fused with another.
UNFUSED_KERNELS: Final = 5
LAYER_GEMMS: Final = ("qkv", "o", "gate_up", "down")

# The models of the measurements by their public names; shapes are in c2c/models/configs.
_MODELS: Final = {
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3-8b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}


def spec_of(model: str) -> ModelSpec | None:
    """Return the shape of a measured model, None where the project has none of that name."""
    try:
        return load_spec(_MODELS.get(model, model))
    except SettingError:
        return None


def gemm_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return the predicted time of GEMM rows of one chip."""
    found = resident_gemm_time(
        rows["m"], rows["n"], rows["k"], slice_=chip.slice_, constants=chip.constants,
        repeats=GEMM_REPEATS,
    )  # fmt: skip
    return 1e6 * found.total_s


def attention_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return the predicted time of attention rows of one chip, calls repeated on the same data."""
    # shapes of a few heads; counts of heads are scalars of the formulas
    found = np.zeros(len(rows))
    for heads, kv_heads in sorted(set(zip(rows["heads"], rows["kv_heads"], strict=True))):
        here = (rows["heads"] == heads) & (rows["kv_heads"] == kv_heads)
        of = rows.take(here)
        found[here] = np.where(
            of["kind"] == "context",
            _prefill(of, int(heads), int(kv_heads), chip),
            _decode(of, int(kv_heads), chip),
        )
    return 1e6 * found


def _prefill(rows: Rows, heads: int, kv_heads: int, chip: Chip) -> np.ndarray:
    batch, tokens = rows["batch"], rows["tokens"]
    pairs = batch * tokens * (tokens + 1) / 2
    calls = prefill_attention_s(
        batch * tokens, heads=heads, kv_heads=kv_heads, slice_=chip.slice_,
        constants=chip.constants, sequences=batch,
    )  # fmt: skip
    each_s = pair_s(heads, HEAD_DIM, slice_=chip.slice_, constants=chip.constants)
    return np.asarray(calls + pairs * each_s)


def _decode(rows: Rows, kv_heads: int, chip: Chip) -> np.ndarray:
    cached = rows["batch"] * rows["tokens"] * (2 * kv_heads * HEAD_DIM * 2)
    calls = decode_attention_s(
        rows["batch"], kv_heads=kv_heads, slice_=chip.slice_, constants=chip.constants
    )
    return calls + cache_read_s(cached, slice_=chip.slice_, constants=chip.constants, repeated=True)


def moe_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return the predicted time of fused experts of one chip; NaN for models without a shape."""
    found = np.full(len(rows), np.nan)
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
        found[here] = 1e6 * layer.total_s
    return found


def _routing(distribution: str) -> Routing | None:
    """Return how tokens choose their experts: balanced, uniform or power_law_<exponent>."""
    if distribution in ("balanced", "uniform"):
        return Routing(kind="balanced" if distribution == "balanced" else "independent")
    name, _, skew = distribution.rpartition("_")
    try:
        return Routing(kind="power_law", skew=float(skew)) if name == "power_law" else None
    except ValueError:
        return None


def layer_gemm_us(rows: Rows, which: str, chip: Chip) -> np.ndarray:
    """Return the predicted time of one of a layer's products; NaN for models without a shape."""
    found = np.full(len(rows), np.nan)
    for model in sorted(set(rows["model"])):
        if (spec := spec_of(model)) is None:
            continue
        here = rows["model"] == model
        gemm = next(g for g in gemms(spec) if g.name == which)
        product = resident_gemm_time(
            rows["tokens"][here], gemm.n, gemm.k, slice_=chip.slice_, constants=chip.constants
        )
        found[here] = 1e6 * product.total_s
    return found


def elementwise_us(rows: Rows, chip: Chip) -> np.ndarray:
    """Return the predicted time of what a layer does beside products and attention."""
    found = np.full(len(rows), np.nan)
    rate = chip.slice_.hbm_gbps * 1e9 * chip.constants.elementwise_efficiency
    for model in sorted(set(rows["model"])):
        if (spec := spec_of(model)) is None:
            continue
        here = rows["model"] == model
        moved = rows["tokens"][here] * (elementwise_bytes_per_token(spec) / spec.layers)
        floor_s = UNFUSED_KERNELS * chip.constants.elementwise_s
        found[here] = 1e6 * (floor_s + moved / rate)
    return found
