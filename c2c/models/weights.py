"""Counts that follow from a model's shape: parameters, GEMMs, bytes, FLOPs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c2c.errors import SettingError
from c2c.models.spec import ModelSpec

__all__ = [
    "Gemm",
    "expected_active_experts",
    "flops_per_token",
    "gemms",
    "kv_bytes_per_token",
    "param_count",
    "streamed_bytes",
    "weight_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A weight matrix [k, n] that a forward pass multiplies `count` times (once a layer, or once).

    kind: "dense" sees every token, "expert" is one of `ModelSpec.experts` equal matrices of which
    a token takes `experts_per_token`, "head" sees only the rows whose logits are wanted.
    """

    name: str
    k: int
    n: int
    count: int
    kind: Literal["dense", "expert", "head"]


@lru_cache(maxsize=256)
def gemms(spec: ModelSpec) -> tuple[Gemm, ...]:
    """Return every GEMM of a forward pass, in the order of a layer, the head last.

    Matrices that read the same input are one GEMM, as engines fuse them: q, k, v; gate and up.
    """
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    h, layers = spec.hidden, spec.layers

    sparse = layers - len(spec.dense_layers)

    def dense(name: str, k: int, n: int, count: int = layers) -> Gemm:
        return Gemm(name=name, k=k, n=n, count=count, kind="dense")

    def expert(name: str, k: int, n: int) -> Gemm:
        return Gemm(name=name, k=k, n=n, count=sparse, kind="expert")

    attention = (dense("qkv", h, q + 2 * kv), dense("o", q, h))
    head = Gemm(name="lm_head", k=h, n=spec.vocab, count=1, kind="head")
    count = len(spec.dense_layers) if spec.experts else layers
    m = spec.intermediate
    into = ("gate_up", 2 * m) if spec.gated_mlp else ("up", m)
    block = (dense(into[0], h, into[1], count), dense("down", m, h, count)) if count else ()
    if spec.experts:
        m = spec.moe_intermediate
        mixture = (
            dense("router", h, spec.experts, sparse),
            expert("expert_gate_up", h, 2 * m),
            expert("expert_down", m, h),
        )
        return (*attention, *mixture, *block, head)
    return (*attention, *block, head)


@lru_cache(maxsize=256)
def param_count(spec: ModelSpec) -> int:
    """Return the number of parameters; tied embeddings count once."""
    h, q, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    norm = h * (2 if spec.norm_bias else 1)
    layer = spec.norms_per_layer * norm
    layer += spec.qkv_bias * (q + 2 * kv) + spec.o_bias * h
    layer += spec.qk_norm * 2 * spec.head_dim + spec.attention_sinks * spec.heads
    if spec.experts:
        layer += spec.expert_bias * (spec.experts + spec.experts * (2 * spec.moe_intermediate + h))
    else:
        layer += spec.mlp_bias * ((1 + spec.gated_mlp) * spec.intermediate + h)
    matrices = sum(
        g.k * g.n * g.count * (spec.experts if g.kind == "expert" else 1)
        for g in gemms(spec)
        if g.kind != "head"
    )
    embeddings = h * spec.vocab * (1 if spec.tie_embeddings else 2)
    return matrices + spec.layers * layer + norm + embeddings


def weight_bytes(spec: ModelSpec) -> int:
    """Return the bytes of all parameters."""
    return param_count(spec) * spec.dtype_bytes


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Return the bytes of one cached token: K and V, all layers."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * spec.dtype_bytes


def expected_active_experts(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return how many distinct experts of a layer some token takes, on average.

    Assumes that each token takes `experts_per_token` of the experts uniformly and independently
    of other tokens: E * (1 - (1 - k/E)**tokens). Real routing is more clustered, so this is an
    upper estimate. Zero for dense models.

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
    """Return the bytes of weights that one forward pass touches at least once.

    All dense matrices and the head, and of an MoE layer the experts that some token takes. Norms,
    biases and the rows of the embedding that are looked up stay out: they are no GEMM operands.
    Zero for a step without tokens.

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
        total = total + g.k * g.n * g.count * (active if g.kind == "expert" else 1.0)
    return np.asarray(np.where(count > 0, total * spec.dtype_bytes, 0.0))


def flops_per_token(spec: ModelSpec, context: ArrayLike) -> NDArray[np.float64]:
    """Return the FLOPs (a multiply-add is two) of one token through all layers and the head.

    Args:
      spec: the model.
      context: keys the token attends to, itself included; any shape. Windows clip it.

    Raises:
      SettingError: negative or NaN context.
    """
    keys = _tokens(context, "context")
    used = {"dense": 1, "head": 1, "expert": spec.experts_per_token}
    matrices = sum(2 * g.k * g.n * g.count * used[g.kind] for g in gemms(spec))
    window = spec.sliding_window or spec.partial_window
    windowed = spec.layers if spec.sliding_window else spec.partial_window_layers
    clipped = np.minimum(keys, window) if windowed else keys
    seen = windowed * clipped + (spec.layers - windowed) * keys
    return np.asarray(matrices + 4.0 * spec.heads * spec.head_dim * seen)


def _tokens(tokens: ArrayLike, name: str = "tokens") -> NDArray[np.float64]:
    count = np.asarray(tokens, dtype=np.float64)
    if not np.all(count >= 0):  # also refuses NaN
        raise SettingError(name, tokens, "numbers of at least 0")
    return count
