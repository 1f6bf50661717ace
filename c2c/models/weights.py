"""Counts from a model's shape: parameters, GEMMs, bytes and FLOPs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c2c.errors import SettingError
from c2c.models.spec import ModelSpec, WeightFormat

__all__ = [
    "CacheShape",
    "Gemm",
    "cache_shape",
    "check_plain_layers",
    "expected_active_experts",
    "flops_per_token",
    "gemm_bytes",
    "gemms",
    "is_quantised",
    "kv_bytes",
    "kv_bytes_per_token",
    "param_count",
    "state_bytes",
    "streamed_bytes",
    "weight_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A weight matrix [k, n] that a forward pass multiplies `count` times (once a layer, or once).

    `kind`: "dense" processes every token, "expert" is one of `ModelSpec.experts` equal matrices
    (`experts_per_token` for each token), "head" processes only the rows that need logits.
    """

    name: str
    k: int
    n: int
    count: int
    kind: Literal["dense", "expert", "head"]
    parts: tuple[tuple[str, int], ...]  # fused modules of a layer, and the columns of each


@lru_cache(maxsize=256)
def gemms(spec: ModelSpec) -> tuple[Gemm, ...]:
    """Return all GEMMs of a forward pass, in the order of a layer, the head last.

    Matrices with the same input are fused into one GEMM, as in engines: q, k, v; gate and up.
    """
    h, layers = spec.hidden, spec.layers
    sparse = layers - len(spec.dense_layers) if spec.experts else 0
    found: list[Gemm] = []

    def add(
        name: str,
        k: int,
        parts: Mapping[str, int],
        count: int,
        kind: Literal["dense", "expert", "head"] = "dense",
    ) -> None:
        if count:
            n, split = sum(parts.values()), tuple(parts.items())
            found.append(Gemm(name=name, k=k, n=n, count=count, kind=kind, parts=split))

    for name, k, parts in _attention(spec):
        add(name, k, parts, spec.cached_layers)
    if (linear := spec.linear) is not None:
        values, count = linear.value_heads * linear.value_dim, len(linear.layers)
        into = {"in_proj_qkvz": linear.channels + values, "in_proj_ba": 2 * linear.value_heads}
        add("linear_in", h, {f"linear_attn.{name}": n for name, n in into.items()}, count)
        add("linear_out", values, {"linear_attn.out_proj": h}, count)
    m, shared = spec.moe_intermediate, spec.shared_intermediate
    add("router", h, {"mlp.gate": spec.experts}, sparse)
    add("expert_gate_up", h, _gate_up("mlp.experts", m), sparse, "expert")
    add("expert_down", m, {"mlp.experts.down_proj": h}, sparse, "expert")
    if shared:
        add("shared_gate_up", h, _gate_up("mlp.shared_experts", shared), sparse)
        add("shared_down", shared, {"mlp.shared_experts.down_proj": h}, sparse)
        if spec.shared_gate:
            add("shared_gate", h, {"mlp.shared_expert_gate": 1}, sparse)
    m = spec.intermediate
    if spec.gated_mlp:
        add("gate_up", h, _gate_up("mlp", m), layers - sparse)
    else:
        add("up", h, {"mlp.up_proj": m}, layers - sparse)
    add("down", m, {"mlp.down_proj": h}, layers - sparse)
    add("lm_head", h, {"lm_head": spec.vocab}, 1, "head")
    return tuple(found)


def _gate_up(folder: str, width: int) -> dict[str, int]:
    return {f"{folder}.gate_proj": width, f"{folder}.up_proj": width}


def _attention(spec: ModelSpec) -> list[tuple[str, int, dict[str, int]]]:
    """Return (name, depth, columns by module) of attention's GEMMs."""
    h, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    at = "self_attn"
    if (latent := spec.latent) is None:
        into = {"q_proj": q * (1 + spec.attention_gate), "k_proj": kv, "v_proj": kv}
        out = ("o", q, {f"{at}.o_proj": h})
        return [("qkv", h, {f"{at}.{name}": n for name, n in into.items()}), out]
    first = {f"{at}.q_a_proj": latent.q_rank} if latent.q_rank else {f"{at}.q_proj": q}
    first[f"{at}.kv_a_proj_with_mqa"] = latent.kv_rank + latent.rope_dim
    second = [("q_b", latent.q_rank, {f"{at}.q_b_proj": q})] if latent.q_rank else []
    keys_and_values = spec.heads * (latent.nope_dim + latent.value_dim)
    return [
        ("qkv_a", h, first),
        *second,
        ("kv_b", latent.kv_rank, {f"{at}.kv_b_proj": keys_and_values}),
        ("o", spec.heads * latent.value_dim, {f"{at}.o_proj": h}),
    ]


@lru_cache(maxsize=4096)
def gemm_bytes(spec: ModelSpec, gemm: Gemm) -> int:
    """Return the stored bytes of one matrix of a model's GEMM."""
    return sum(_stored_bytes(spec, gemm, module, n) for module, n in gemm.parts)


def _stored_bytes(spec: ModelSpec, gemm: Gemm, module: str, n: int) -> int:
    form, k = spec.weights, gemm.k
    if form is None or not is_quantised(form, gemm.kind, module):
        return k * n * spec.dtype_bytes
    rows, columns = form.block
    scales = (-(-n // rows) if rows else 1) * (-(-k // columns) if columns else 1)
    zeros = scales * form.bits // 8 if form.has_zeros else 0
    beside = scales * form.scale_bytes + zeros + k * form.input_bytes + form.matrix_bytes
    return k * n * form.bits // 8 + beside


def is_quantised(form: WeightFormat, kind: str, module: str) -> bool:
    """Return whether a format quantises a module of such a GEMM; routers and heads never."""
    never = kind == "head" or module in ("mlp.gate", "mlp.shared_expert_gate", *form.kept)
    return not never and (kind == "expert" or not form.experts_only)


@lru_cache(maxsize=256)
def param_count(spec: ModelSpec) -> int:
    """Return the number of parameters; tied embeddings count once."""
    return _matrices(spec) + _others(spec) + _router_biases(spec)


def _copies(spec: ModelSpec, gemm: Gemm) -> int:
    return gemm.count * (spec.experts if gemm.kind == "expert" else 1)


def _matrices(spec: ModelSpec) -> int:
    """Count the weights of all GEMMs but the head."""
    return sum(g.k * g.n * _copies(spec, g) for g in gemms(spec) if g.kind != "head")


def _router_biases(spec: ModelSpec) -> int:
    return spec.router_bias * spec.experts * (spec.layers - len(spec.dense_layers))


def _others(spec: ModelSpec) -> int:
    """Count norms, biases, sinks, convolutions, the embedding and the head."""
    h, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    norm = h * (2 if spec.norm_bias else 1)
    layer = spec.norms_per_layer * norm
    if spec.experts:
        layer += spec.expert_bias * (spec.experts + spec.experts * (2 * spec.moe_intermediate + h))
    else:
        layer += spec.mlp_bias * ((1 + spec.gated_mlp) * spec.intermediate + h)
    attention = spec.qkv_bias * (q + 2 * kv) + spec.o_bias * h + spec.attention_sinks * spec.heads
    if spec.qk_norm:
        attention += q + kv if spec.qk_norm_whole else 2 * spec.head_dim
    if spec.latent is not None:  # a norm before each second product
        attention += spec.latent.q_rank + spec.latent.kv_rank
    total = spec.layers * layer + spec.cached_layers * attention + norm
    if (linear := spec.linear) is not None:
        # convolution, two numbers a head, a norm of one head
        own = linear.channels * linear.kernel + 2 * linear.value_heads + linear.value_dim
        total += len(linear.layers) * own
    return total + h * spec.vocab * (1 if spec.tie_embeddings else 2)


@lru_cache(maxsize=256)
def weight_bytes(spec: ModelSpec) -> int:
    """Return the stored bytes of all parameters."""
    matrices = sum(gemm_bytes(spec, g) * _copies(spec, g) for g in gemms(spec) if g.kind != "head")
    return matrices + _others(spec) * spec.dtype_bytes + _router_biases(spec) * 4


class CacheShape(NamedTuple):
    """Cache positions of a sequence: full * t + windowed * min(t, window) + state for t tokens.

    The unit is the greatest common divisor of the bytes per token of full layers, of windowed
    layers, and of the linear-attention state. A model without windows or state has one position per
    token.
    """

    full: int  # per token, layers without a window
    windowed: int  # per token, layers with a window
    window: int  # in tokens; 0 if no layer has a window
    state: int  # per sequence


def cache_shape(spec: ModelSpec) -> CacheShape:
    """Return the cache shape, in units of kv_bytes_per_token / (full + windowed) bytes."""
    windowed, window = _windowed(spec)
    each, state = spec.cached_bytes, state_bytes(spec)
    full, windowed = (spec.cached_layers - windowed) * each, windowed * each
    place = math.gcd(full, windowed, state)
    return CacheShape(full // place, windowed // place, window if windowed else 0, state // place)


def kv_bytes_per_token(spec: ModelSpec, position: int = 0) -> int:
    """Return the bytes that the token at a position, from 0, adds to a sequence's cache.

    In a layer with a window, a token beyond it overwrites the oldest one. The state of linear
    attention does not grow, see `state_bytes`.
    """
    windowed, window = _windowed(spec)
    growing = spec.cached_layers - (windowed if position >= window else 0)
    return growing * spec.cached_bytes


def kv_bytes(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.int64]:
    """Return the bytes of cache and state for sequences of this many tokens.

    Args:
      spec: the model.
      tokens: tokens of each sequence, any shape; windows limit the count.

    Raises:
      SettingError: negative or NaN tokens.
    """
    count = _tokens(tokens).astype(np.int64)
    windowed, window = _windowed(spec)
    places = (spec.cached_layers - windowed) * count + windowed * np.minimum(count, window)
    cached = places * spec.cached_bytes
    return np.asarray(cached + np.where(count > 0, state_bytes(spec), 0))


def state_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a sequence's linear-attention state, for any length; 0 without one.

    One float32 matrix per value head, as in the reference, and the convolution's past inputs in the
    model's type.
    """
    if (linear := spec.linear) is None:
        return 0
    matrix = 4 * linear.value_heads * linear.key_dim * linear.value_dim
    past = spec.dtype_bytes * linear.channels * (linear.kernel - 1)
    return len(linear.layers) * (matrix + past)


def check_plain_layers(spec: ModelSpec) -> None:
    """Validate that a layer is q, k, v and o, then one dense block or experts alone.

    Raises:
      SettingError: attention is latent or linear or has a gate, there are shared experts, or
        weights are quantised.
    """
    if spec.latent or spec.linear or spec.attention_gate or spec.shared_intermediate:
        raise SettingError(
            f"model.{spec.name}.family", spec.family, "a family with keys and values of its own in "
            "each layer, without gates and shared experts",
        )  # fmt: skip
    if spec.weights is not None:
        field = f"model.{spec.name}.quantization_config.quant_method"
        raise SettingError(field, spec.weights.kind, "unquantised weights")


def _windowed(spec: ModelSpec) -> tuple[int, int]:
    """Return the number of layers with a window, and its length."""
    if spec.sliding_window:
        return spec.cached_layers, spec.sliding_window
    return spec.partial_window_layers, spec.partial_window


def expected_active_experts(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return the expected number of a layer's distinct active experts.

    Each token is assumed to choose `experts_per_token` experts uniformly and independently: E * (1
    - (1 - k/E)**tokens). Real routing is more clustered, so this is an upper estimate. Zero for
    dense models.

    Args:
      spec: the model.
      tokens: tokens in the step, any shape.

    Raises:
      SettingError: negative or NaN tokens.
    """
    count = _tokens(tokens)
    if not spec.experts:
        return np.zeros_like(count)
    idle = 1.0 - spec.experts_per_token / spec.experts
    return np.asarray(spec.experts * (1.0 - np.power(idle, count)))


def streamed_bytes(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return the weight bytes that one forward pass reads at least once.

    Counted are dense matrices, the head and the active experts of MoE layers. Norms, biases and
    embedding rows are excluded, since they are not GEMM operands. Zero for a step without tokens.

    Args:
      spec: the model.
      tokens: tokens in the step, any shape.

    Raises:
      SettingError: negative or NaN tokens.
    """
    count = _tokens(tokens)
    active = expected_active_experts(spec, count)
    total = np.zeros_like(count)
    for g in gemms(spec):
        total = total + gemm_bytes(spec, g) * g.count * (active if g.kind == "expert" else 1.0)
    return np.asarray(np.where(count > 0, total, 0.0))


def flops_per_token(spec: ModelSpec, context: ArrayLike) -> NDArray[np.float64]:
    """Return the FLOPs (a multiply-add is two) of one token through all layers and the head.

    Args:
      spec: the model.
      context: keys that the token attends to, itself included; any shape. Windows limit it.

    Raises:
      SettingError: negative or NaN context.
    """
    keys = _tokens(context, "context")
    used = {"dense": 1, "head": 1, "expert": spec.experts_per_token}
    matrices = sum(2 * g.k * g.n * g.count * used[g.kind] for g in gemms(spec))
    windowed, window = _windowed(spec)
    clipped = np.minimum(keys, window) if windowed else keys
    seen = windowed * clipped + (spec.cached_layers - windowed) * keys
    value_dim = spec.latent.value_dim if spec.latent else spec.head_dim
    pairs = 2.0 * spec.heads * (spec.head_dim + value_dim) * seen
    return np.asarray(matrices + pairs + _state_flops(spec))


def _state_flops(spec: ModelSpec) -> int:
    """Count FLOPs of linear attention: read, write and decay of each state, and convolutions."""
    if (linear := spec.linear) is None:
        return 0
    state = linear.value_heads * linear.key_dim * linear.value_dim
    return len(linear.layers) * (7 * state + 2 * linear.channels * linear.kernel)


def _tokens(tokens: ArrayLike, name: str = "tokens") -> NDArray[np.float64]:
    count = np.asarray(tokens, dtype=np.float64)
    if not np.all(count >= 0):  # also refuses NaN
        raise SettingError(name, tokens, "numbers of at least 0")
    return count
