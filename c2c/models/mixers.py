"""Mixers: parts of layers that pass values between positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from c2c.models.spec import Compressed, Heads, LinearAttention, ModelSpec

__all__ = ["Cache", "Mixer", "Product", "mixers"]


class Product(NamedTuple):
    """Product with weights [k, n]; `parts` are fused modules and columns."""

    name: str
    k: int
    parts: Mapping[str, int]


class Cache(NamedTuple):
    """A cache of one layer; `values` are of an entry, which is of `ratio` positions.

    It has at most `held` positions, a query reads `read`; 0: all. `pair`: multiply-adds of a query
    with an entry, over all heads.
    """

    values: int
    pair: int
    held: int = 0
    read: int = 0
    ratio: int = 1

    @property
    def limit(self) -> int:
        """Positions that a query reads; 0: all."""
        return self.read or self.held


# Each kind of attention or state is its products with weights, the caches it reads, and a state.
# Counts of parameters, memory and time are sums over them.
@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """Equal mixers of some layers.

    Attributes:
      parameters: of a layer, outside of products.
      moved: values read and written a token, beside products and caches.
      heads: query heads; 0 for a state.
      readers: cache heads that decodes read apart.
      head_dim: of a query head.
      state_bytes: of a sequence's state in a layer.
      state_flops: of a token on it.
    """

    layers: tuple[int, ...]
    products: tuple[Product, ...]
    parameters: int
    moved: int
    caches: tuple[Cache, ...] = ()
    heads: int = 0
    kv_heads: int = 0
    readers: int = 0
    head_dim: int = 0
    state_bytes: int = 0
    state_flops: int = 0


@lru_cache(maxsize=256)
def mixers(spec: ModelSpec) -> tuple[Mixer, ...]:
    """Return the mixers, those with caches first."""
    result: list[Mixer] = []
    kinds: dict[tuple[bool, bool, bool, int], list[int]] = {}
    windows, window = _windowed(spec)
    for layer in spec.attention_layers:
        index = spec.index
        kind = (
            layer in windows,
            index is not None and layer in index.layers,
            index is not None and layer in index.sparse,
            spec.compressed.ratios[layer] if spec.compressed else 0,
        )
        kinds.setdefault(kind, []).append(layer)
    for (local, indexed, sparse, ratio), layers in kinds.items():
        if spec.compressed is not None:
            result.append(_compressed(spec, spec.compressed, tuple(layers), ratio))
            continue
        read = spec.index.top_k if spec.index is not None and sparse else 0
        span = window if local else 0
        make = _heads if spec.latent is None else _latent
        result.append(make(spec, tuple(layers), span, read, indexed))
    if spec.linear is not None:
        result.append(_state(spec, spec.linear))
    return tuple(result)


def _windowed(spec: ModelSpec) -> tuple[frozenset[int], int]:
    layers = spec.attention_layers
    if spec.sliding_window:
        return frozenset(layers), spec.sliding_window
    some = spec.window_layers or layers[: spec.partial_window_layers]
    return frozenset(layers) & frozenset(some), spec.partial_window


def _heads(
    spec: ModelSpec, layers: tuple[int, ...], window: int, read: int, indexed: bool
) -> Mixer:
    form = Heads(
        heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim,
        value_dim=spec.value_dim or spec.head_dim, sinks=spec.attention_sinks,
    )  # fmt: skip
    is_other = window > 0 and spec.windowed_heads is not None
    one = spec.windowed_heads if is_other and spec.windowed_heads else form
    prefix, gated = "self_attn", spec.attention_gate
    q, k = one.heads * one.head_dim, one.kv_heads * one.head_dim
    v, result = one.kv_heads * one.value_dim, one.heads * one.value_dim
    into = {f"{prefix}.q_proj": q + gated * result, f"{prefix}.k_proj": k}
    if is_other or not spec.keys_are_values:
        into[f"{prefix}.v_proj"] = v
    if spec.head_gate:
        into[f"{prefix}.g_proj"] = one.heads
    products = [Product("qkv", spec.hidden, into)]
    further = spec.qkv_bias * (q + k + v) + spec.o_bias * spec.hidden + one.sinks * one.heads
    if spec.qk_norm:
        further += q + k if spec.qk_norm_whole else 2 * one.head_dim
    caches = [Cache(k + v, one.heads * (one.head_dim + one.value_dim), window, read)]
    if indexed and spec.index is not None:
        index = spec.index
        products.append(
            Product("index", spec.hidden, {f"{prefix}.index_q_proj": index.heads * index.dim,
                                           f"{prefix}.index_k_proj": index.dim})
        )  # fmt: skip
        further += 2 * index.dim
        caches.append(Cache(index.dim, index.heads * index.dim))
    products.append(Product("o", result, {f"{prefix}.o_proj": spec.hidden}))
    return Mixer(
        layers=layers, products=tuple(products), parameters=further, caches=tuple(caches),
        moved=2 * (q + k) + 2 * v + q + result, heads=one.heads, kv_heads=one.kv_heads,
        readers=one.kv_heads, head_dim=one.head_dim,
    )  # fmt: skip


def _latent(
    spec: ModelSpec, layers: tuple[int, ...], window: int, read: int, indexed: bool
) -> Mixer:
    latent, prefix, h = spec.latent, "self_attn", spec.hidden
    assert latent is not None
    q, values = spec.heads * spec.head_dim, spec.heads * latent.value_dim
    first = {f"{prefix}.q_a_proj": latent.q_rank} if latent.q_rank else {f"{prefix}.q_proj": q}
    first[f"{prefix}.kv_a_proj_with_mqa"] = latent.kv_rank + latent.rope_dim
    if spec.attention_gate:
        first[f"{prefix}.g_proj"] = values
    products = [Product("qkv_a", h, first)]
    if latent.q_rank:
        products.append(Product("q_b", latent.q_rank, {f"{prefix}.q_b_proj": q}))
    keys_and_values = spec.heads * (latent.nope_dim + latent.value_dim)
    products += [
        Product("kv_b", latent.kv_rank, {f"{prefix}.kv_b_proj": keys_and_values}),
        Product("o", values, {f"{prefix}.o_proj": h}),
    ]
    further = latent.q_rank + latent.kv_rank  # a norm before each second product
    pair = spec.heads * (spec.head_dim + latent.value_dim)
    caches = [Cache(latent.kv_rank + latent.rope_dim, pair, window, read)]
    if indexed and spec.index is not None:
        index, prefix = spec.index, f"{prefix}.indexer"
        keys = {f"{prefix}.wk": index.dim}
        if index.is_weighted:
            keys[f"{prefix}.weights_proj"] = index.heads
        columns = {f"{prefix}.wq_b": index.heads * index.dim}
        products += [Product("index_q", latent.q_rank or h, columns), Product("index_k", h, keys)]
        further += 2 * index.dim  # a norm with a bias
        caches.append(Cache(index.dim, index.heads * index.dim))
    # heads share the rotated part of a key, and the copy
    return Mixer(
        layers=layers, products=tuple(products), parameters=further, caches=tuple(caches),
        moved=2 * (q + latent.rope_dim) + 2 * latent.kv_rank + 2 * q, heads=spec.heads,
        kv_heads=spec.kv_heads, readers=1, head_dim=spec.head_dim,
    )  # fmt: skip


def _compressed(spec: ModelSpec, form: Compressed, layers: tuple[int, ...], ratio: int) -> Mixer:
    prefix, h, d, heads = "attn", spec.hidden, spec.head_dim, spec.heads
    is_indexed = 0 < ratio == form.index_ratio
    twice = 1 + is_indexed  # entries of an indexed layer overlap their neighbours
    products = [
        Product("qkv_a", h, {f"{prefix}.wq_a": form.q_rank, f"{prefix}.wkv": d}),
        Product("q_b", form.q_rank, {f"{prefix}.wq_b": heads * d}),
    ]
    pair = heads * 2 * d
    caches = [Cache(d, pair, held=form.window)]
    further = form.q_rank + d + heads  # two norms, a learned logit a head
    if ratio:
        columns = {f"{prefix}.compressor.wkv": twice * d, f"{prefix}.compressor.wgate": twice * d}
        products.append(Product("compress", h, columns))
        further += ratio * twice * d + d  # a bias by position, a norm
        caches.append(Cache(d, pair, read=is_indexed * form.top_k * ratio, ratio=ratio))
    if is_indexed:
        index, width = f"{prefix}.indexer", form.index_dim
        keys = {f"{index}.compressor.wkv": 2 * width, f"{index}.compressor.wgate": 2 * width,
                f"{index}.weights_proj": form.index_heads}  # fmt: skip
        products += [
            Product("index_q", form.q_rank, {f"{index}.wq_b": form.index_heads * width}),
            Product("index_k", h, keys),
        ]
        further += ratio * 2 * width + width
        caches.append(Cache(width, form.index_heads * width, ratio=ratio))
    groups, narrow = form.out_groups, form.out_groups * form.out_rank
    products += [
        Product("o_a", heads * d // groups, {f"{prefix}.wo_a": narrow}),
        Product("o_b", narrow, {f"{prefix}.wo_b": h}),
    ]
    return Mixer(
        layers=layers, products=tuple(products), parameters=further, caches=tuple(caches),
        moved=2 * (heads * d + d) + 2 * d + 2 * heads * d, heads=heads, kv_heads=1, readers=1,
        head_dim=d,
    )  # fmt: skip


def _state(spec: ModelSpec, linear: LinearAttention) -> Mixer:
    values = linear.value_heads * linear.value_dim
    matrix = values * linear.key_dim
    past = spec.dtype_bytes * linear.channels * (linear.kernel - 1)
    inner = (Product("linear_inner", k, {module: n}) for module, k, n in linear.inner)
    return Mixer(
        layers=linear.layers,
        products=(
            Product("linear_in", spec.hidden, dict(linear.inputs)),
            *inner,
            Product("linear_out", values, {linear.output: spec.hidden}),
        ),
        parameters=linear.parameters,
        moved=3 * linear.channels + 4 * values,  # convolution, its result, then a gated norm
        state_bytes=linear.element_bytes * matrix + past,
        # read, write and decay of each state, and convolutions
        state_flops=7 * matrix + 2 * linear.channels * linear.kernel,
    )
