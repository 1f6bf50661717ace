"""Decoder layer in parts, for different devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.errors import SettingError
from c2c.models import Latent, ModelSpec
from c2c.transformer.layers.activations import activate
from c2c.transformer.layers.cache import Cache, Pooled, Rows, attend, store
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.moe import mixture, route
from c2c.transformer.layers.params import Params, Projections
from c2c.transformer.layers.rope import rotate
from pallas_kernels.arguments import Choice

__all__ = [
    "Layer",
    "after_attention",
    "attention",
    "attention_out",
    "before_attention",
    "feed_forward",
    "layer_of",
    "needed",
    "place_in",
    "rms_norm",
    "run_layer",
    "turns_of",
    "window_of",
]

_barrier: Any = lax.optimization_barrier  # untyped
_LATENT_EPS = 1e-6  # whatever a config says of other norms, as in transformers
_UNBOUNDED = 2**30  # a window longer than any sequence
# Stacks over the layers with the same kind of feed-forward block only.
_BLOCKS = (
    *("router", "router_bias", "experts_gate_up", "experts_down"),
    *("shared_gate_up", "shared_down"),
    *("gate_up", "gate_up_bias", "down", "down_bias"),
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer.

    Attributes:
      small: norms, biases and routers, stacked.
      projections: of this layer, or stacks over layers.
      at: index in stacks of all layers, may be traced.
      which: in stacks of projections; None: the layer's own.
      place: in stacks of its kind; None: all are alike.
    """

    small: Mapping[str, Any]
    projections: Projections
    linear: Linear
    at: Any
    which: Any
    place: Any

    def weight(self, name: str) -> Any:
        """Return a small weight, or None."""
        stack = self.small.get(name)
        return None if stack is None else stack[place_in(name, self.at, self.place)]

    def project(self, name: str, x: jax.Array) -> jax.Array:
        """Return x [N, in] times a projection, with adapter and bias: [N, out]."""
        out = self.linear(self.projections, name, self._which(name), x, out_dtype=x.dtype)
        down, up = self.weight(f"{name}_lora_a"), self.weight(f"{name}_lora_b")
        if down is not None:
            high = lax.Precision.HIGHEST
            inner = jnp.matmul(x, down.T, precision=high)
            out = out + jnp.matmul(inner, up.T, precision=high)
        bias = self.weight(f"{name}_bias")
        return out if bias is None else out + bias

    def experts(self, name: str, x: jax.Array, sizes: jax.Array) -> jax.Array:
        """Return the grouped product with experts, `sizes` [experts] rows each."""
        return self.linear.experts(self.projections, name, self._which(name), x, sizes)

    def _which(self, name: str) -> Any:
        return None if self.which is None else place_in(name, self.which, self.place)


class Turns(NamedTuple):
    """Rotation of queries and keys: cosine and sine [N, pairs]."""

    cosine: jax.Array
    sine: jax.Array
    is_rotated: Any


def layer_of(params: Params, spec: ModelSpec, number: int, linear: Linear) -> Layer:
    """Return a layer as a value for `jax.device_put`.

    Stacks in host memory are not sliced; small weights are.
    """
    by_layer = linear.placement.by_layer
    if not by_layer and (linear.placement.memory != "host" or spec.dense_layers):
        allowed = "a strategy with an array per layer, or layers of one kind in host memory"
        raise SettingError("linear", linear, allowed)
    if not 0 <= number < spec.layers:
        raise SettingError("layer", number, f"a whole number from 0 to {spec.layers - 1}")
    sparse, place = feed_forward_places(spec)[number]
    small, projections = {}, {}
    for name, stack in params.layers.items():
        if needed(name, sparse):
            index = place_in(name, number, place)
            small[name] = np.asarray(stack)[index : index + 1]
    for name, matrices in params.projections.items():
        if name != "head" and needed(name, sparse):
            projections[name] = matrices[place_in(name, number, place)] if by_layer else matrices
    return Layer(
        small=small,
        projections=projections,
        linear=linear,
        at=np.int32(0),
        which=None if by_layer else np.int32(number),
        place=np.int32(0) if spec.dense_layers else None,
    )


def before_attention(
    layer: Layer, x: jax.Array, turns: Turns, spec: ModelSpec
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries [N, heads, dim], keys and values [N, kv_heads, dim]."""
    seen = _normed(layer, "attention_norm", x, spec)
    if spec.latent is not None:
        return _latent(layer, layer.project("qkv", seen), turns, spec, spec.latent)
    split = (spec.heads * spec.head_dim, (spec.heads + spec.kv_heads) * spec.head_dim)
    q, k, v = jnp.split(layer.project("qkv", seen), split, axis=-1)
    if spec.qk_norm_whole:
        q, k = (_normed(layer, name, array, spec) for name, array in (("q_norm", q), ("k_norm", k)))
    q, k, v = (part.reshape(x.shape[0], -1, spec.head_dim) for part in (q, k, v))
    if spec.qk_norm and not spec.qk_norm_whole:
        q, k = (_normed(layer, name, array, spec) for name, array in (("q_norm", q), ("k_norm", k)))
    if spec.qk_unit:
        unit = (rms_norm(part, jnp.ones((), x.dtype), spec.norm_eps) for part in (q, k))
        q, k = (jnp.where(turns.is_rotated, u, p) for u, p in zip(unit, (q, k), strict=True))
    q, k = (
        rotate(part, turns.cosine, turns.sine, interleaved=spec.rotary_interleaved)
        for part in (q, k)
    )
    if spec.attention_scale:  # attention multiplies by the default scale
        q = q * jnp.asarray(spec.attention_scale * spec.head_dim**0.5, q.dtype)
    return q, k, v


def _latent(
    layer: Layer, x: jax.Array, turns: Turns, spec: ModelSpec, form: Latent
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores are products with the cached vector: key matrices multiply queries."""
    turned = x.shape[1] - form.rope_dim
    q, vector, rope = jnp.split(x, (turned - form.kv_rank, turned), axis=-1)
    if form.q_rank:
        q = layer.project("q_b", rms_norm(q, layer.weight("q_a_norm"), _LATENT_EPS))
    q = q.reshape(x.shape[0], spec.heads, spec.head_dim)
    key = _einsum("nhd,hdr->nhr", q[..., : form.nope_dim], _up(layer, spec)[:, : form.nope_dim])
    vector = rms_norm(vector, layer.weight("kv_a_norm"), _LATENT_EPS)
    q, rope = (
        rotate(part, turns.cosine, turns.sine, interleaved=spec.rotary_interleaved)
        for part in (q[..., form.nope_dim :], rope[:, None])
    )
    q = jnp.concatenate([key, q], axis=-1)
    k = jnp.concatenate([vector[:, None], rope], axis=-1)
    scale = (spec.attention_scale or spec.head_dim**-0.5) * q.shape[-1] ** 0.5
    return q * jnp.asarray(scale, q.dtype), k, k


def _up(layer: Layer, spec: ModelSpec) -> jax.Array:
    up: jax.Array = layer.weight("kv_b")
    return up.reshape(spec.heads, -1, up.shape[-1])


def _einsum(form: str, x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.einsum(form, x, w, precision=lax.Precision.HIGHEST)


def attention(
    pages: Cache,
    rows: Rows,
    first: Any,
    window: Any,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    soft_cap: float | None = None,
    backend: Choice,
) -> tuple[jax.Array, Cache]:
    """Store keys and values; return the queries' attention and the cache.

    Args:
      first: the layer's first page, may be traced.
      window: tokens seen, may be traced; None: all.
      q: of `before_attention`, like k and v.
    """
    # Otherwise XLA repeats the store inside the reader of the cache, and copies all pages.
    pages = _barrier(store(pages, rows, first, k, v))
    seen = attend(pages, rows, first, q, window=window, soft_cap=soft_cap, backend=backend)
    return seen, pages


def after_attention(
    layer: Layer, x: jax.Array, mixed: jax.Array, rows: Rows, spec: ModelSpec, *, sparse: bool
) -> jax.Array:
    """Return the layer's output [N, hidden]."""
    return feed_forward(layer, attention_out(layer, x, mixed, spec), rows, spec, sparse=sparse)


def attention_out(layer: Layer, x: jax.Array, mixed: jax.Array, spec: ModelSpec) -> jax.Array:
    """Return the layer's input plus projected attention [N, hidden]."""
    if spec.latent is not None:
        up = _up(layer, spec)[:, spec.latent.nope_dim :]
        mixed = _einsum("nhr,hvr->nhv", mixed[..., : spec.latent.kv_rank].astype(x.dtype), up)
    out = layer.project("o", mixed.reshape(x.shape[0], -1).astype(x.dtype))
    return x + _added(layer, "attention_out_norm", out, spec)


def feed_forward(
    layer: Layer, x: jax.Array, rows: Rows, spec: ModelSpec, *, sparse: bool
) -> jax.Array:
    """Return the layer's output [N, hidden]."""
    seen = _normed(layer, "mlp_norm", x, spec)
    if sparse:
        routing = route(seen, layer.weight("router"), spec, layer.weight("router_bias"))
        out = mixture(seen, routing, rows.positions >= 0, layer.experts, spec)
        if spec.shared_intermediate:
            out = out + _gated(layer, "shared_gate_up", "shared_down", seen, spec)
    else:
        out = _gated(layer, "gate_up", "down", seen, spec)
    return x + _added(layer, "mlp_out_norm", out, spec)


def _gated(layer: Layer, into: str, back: str, x: jax.Array, spec: ModelSpec) -> jax.Array:
    gate, up = jnp.split(layer.project(into, x), 2, axis=-1)
    return layer.project(back, activate(spec.activation, gate) * up)


def _normed(layer: Layer, name: str, x: jax.Array, spec: ModelSpec) -> jax.Array:
    weight = layer.weight(name)
    return x if weight is None else rms_norm(x, weight, spec.norm_eps, spec.norm_offset)


def _added(layer: Layer, name: str, x: jax.Array, spec: ModelSpec) -> jax.Array:
    out = _normed(layer, name, x, spec)
    return out if spec.residual_scale == 1.0 else out * jnp.asarray(spec.residual_scale, x.dtype)


def run_layer(
    layer: Layer,
    x: jax.Array,
    cache: Cache | Pooled,
    rows: Rows,
    turns: Turns,
    *,
    page: Any,
    window: Any,
    spec: ModelSpec,
    backend: Choice,
    sparse: bool,
) -> tuple[jax.Array, Cache | Pooled]:
    """Run a layer over N tokens."""
    if isinstance(cache, Pooled):
        pages, first = cache.seen_by(spec), page
    else:
        pages, first = cache, page * (cache.k.shape[0] // spec.layers)
    q, k, v = before_attention(layer, x, turns, spec)
    cap = spec.attention_cap or None
    mixed, pages = attention(pages, rows, first, window, q, k, v, soft_cap=cap, backend=backend)
    after = cache.with_pages(pages) if isinstance(cache, Pooled) else pages
    return after_attention(layer, x, mixed, rows, spec, sparse=sparse), after


def place_in(name: str, number: Any, place: Any) -> Any:
    """Return a layer's index in this name's stack."""
    return place if place is not None and _projection(name) in _BLOCKS else number


def needed(name: str, sparse: bool) -> bool:
    """Return whether a layer of this kind has this weight."""
    is_block = _projection(name) in _BLOCKS
    return not is_block or name.startswith(("experts_", "router", "shared_")) == sparse


def _projection(name: str) -> str:
    return name.partition("_lora_")[0]


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, offset: float = 0.0) -> jax.Array:
    """Divide by the last axis' root mean square, in float32."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    if offset:
        return ((offset + weight.astype(jnp.float32)) * (wide * scale)).astype(x.dtype)
    return weight * (wide * scale).astype(x.dtype)


def window_of(spec: ModelSpec, number: Any) -> Any:
    """Return a layer's window; None if none has one."""
    if not spec.partial_window_layers:
        return spec.sliding_window or None
    windows = np.full(spec.layers, _UNBOUNDED, np.int32)
    windows[list(spec.window_layers)] = spec.partial_window
    return jnp.asarray(windows)[number]


def turns_of(turns: tuple[jax.Array, jax.Array], spec: ModelSpec, number: Any) -> Turns:
    """Return a layer's rotation, see `rope.angles`."""
    cosine, sine = turns
    if spec.unrotated_layers:
        is_rotated = jnp.asarray(~np.isin(np.arange(spec.layers), spec.unrotated_layers))[number]
        return Turns(jnp.where(is_rotated, cosine, 1.0), jnp.where(is_rotated, sine, 0.0),
                     is_rotated)  # fmt: skip
    if spec.local_rope_theta:
        is_local = np.isin(np.arange(spec.layers), spec.window_layers or range(spec.layers))
        kind = jnp.asarray(is_local.astype(np.int32))[number]
        cosine, sine = cosine[kind], sine[kind]
    return Turns(cosine, sine, True)
