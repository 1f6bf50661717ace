"""Counts from a model's shape."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c2c.errors import SettingError
from c2c.models.mixers import Cache, mixers
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
    "read_shape",
    "state_bytes",
    "streamed_bytes",
    "weight_bytes",
]

Kind = Literal["dense", "expert", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A weight matrix [k, n], multiplied `count` times (once a layer, or once).

    `kind`: "dense": every token, "expert": one of `ModelSpec.experts` matrices, "head": rows that
    need logits.
    """

    name: str
    k: int
    n: int
    kind: Kind
    parts: tuple[tuple[str, int], ...]  # fused modules of a layer, and the columns of each
    layers: tuple[int, ...]  # -1: none of them
    forms: tuple[WeightFormat | None, ...]  # stored format of each part

    @property
    def count(self) -> int:
        """Number of matrices, an expert's once a layer."""
        return len(self.layers)


@lru_cache(maxsize=256)
def gemms(spec: ModelSpec) -> tuple[Gemm, ...]:
    """Return a forward pass's GEMMs in a layer's order, the head last.

    As in engines, q, k, v are fused, and gate and up.
    """
    products: dict[tuple[str, int, tuple[tuple[str, int], ...]], list[int]] = {}
    for mixer in mixers(spec):
        for one in mixer.products:
            shape = (one.name, one.k, tuple(one.parts.items()))
            products.setdefault(shape, []).extend(mixer.layers)
    result: list[Gemm] = []

    def add(
        name: str, k: int, parts: Iterable[tuple[str, int]], layers: Iterable[int],
        kind: Kind = "dense",
    ) -> None:  # fmt: skip
        split = tuple(parts)
        for forms, some in _by_format(spec, kind, [module for module, _ in split], layers).items():
            result.append(
                Gemm(name=name, k=k, n=sum(n for _, n in split), kind=kind, parts=split,
                     layers=tuple(some), forms=forms)
            )  # fmt: skip

    for (name, k, columns), layers in products.items():
        add(name, k, columns, sorted(layers))
    h, sparse = spec.hidden, spec.expert_layers
    width, inner = spec.expert_hidden or h, spec.moe_intermediate
    prefix = "mlp.experts"
    add("router", h, [("mlp.gate", spec.experts)], sparse)
    if spec.expert_hidden:
        add("experts_in", h, [("mlp.experts_in", width)], sparse)
    for name, k, parts in _feed_forward(spec, "expert_", prefix, width, inner):
        add(name, k, parts, sparse, "expert")
    if spec.expert_hidden:
        add("experts_out", width, [("mlp.experts_out", h)], sparse)
    if spec.shared_intermediate:
        prefix = "mlp.shared_experts"
        for name, k, parts in _feed_forward(spec, "shared_", prefix, h, spec.shared_intermediate):
            add(name, k, parts, sparse)
        if spec.shared_gate:
            add("shared_gate", h, [("mlp.shared_expert_gate", 1)], sparse)
    others = {*sparse, *spec.without_feed_forward}
    dense = [layer for layer in range(spec.layers) if layer not in others]
    for m in dict.fromkeys(spec.widths[i] if spec.widths else spec.intermediate for i in dense):
        some = [i for i in dense if not spec.widths or spec.widths[i] == m]
        for name, k, parts in _feed_forward(spec, "", "mlp", h, m):
            add(name, k, parts, some)
    add("lm_head", h, [("lm_head", spec.vocab)], (-1,), "head")
    return tuple(result)


def _feed_forward(
    spec: ModelSpec, start: str, prefix: str, width: int, inner: int
) -> list[tuple[str, int, list[tuple[str, int]]]]:
    up = [(f"{prefix}.up_proj", inner)]
    if spec.gated_mlp:
        up = [(f"{prefix}.gate_proj", inner), *up]
    name = f"{start}gate_up" if spec.gated_mlp else f"{start}up"
    return [(name, width, up), (f"{start}down", inner, [(f"{prefix}.down_proj", width)])]


def _by_format(
    spec: ModelSpec, kind: Kind, modules: list[str], layers: Iterable[int]
) -> Mapping[tuple[WeightFormat | None, ...], list[int]]:
    result: dict[tuple[WeightFormat | None, ...], list[int]] = {}
    main = spec.weights
    others = {module: [] for module in modules} if main is None else {
        module: [o for o in main.others if o.module == module] for module in modules
    }  # fmt: skip
    usual = {
        module: main if main is not None and is_quantised(main, kind, module) else None
        for module in modules
    }
    for layer in layers:
        forms = tuple(
            next((o.form for o in others[module] if o.layers is None or layer in o.layers),
                 usual[module])
            for module in modules
        )  # fmt: skip
        result.setdefault(forms, []).append(layer)
    return result


def is_quantised(form: WeightFormat, kind: str, module: str) -> bool:
    """Return whether a format quantises a module; routers and heads never."""
    if kind == "head" or module in ("mlp.gate", "mlp.shared_expert_gate"):
        return False
    is_wide = module.endswith("weights_proj") or ".compressor." in module
    return kind == "expert" or not (form.experts_only or is_wide)


@lru_cache(maxsize=4096)
def gemm_bytes(spec: ModelSpec, gemm: Gemm) -> int:
    """Return a matrix's stored bytes."""
    return sum(
        _stored_bytes(form, gemm.k, n, spec.dtype_bytes)
        for (_, n), form in zip(gemm.parts, gemm.forms, strict=True)
    )


def _stored_bytes(form: WeightFormat | None, k: int, n: int, wide: int) -> int:
    if form is None:
        return k * n * wide
    rows, columns = form.block
    scales = (-(-n // rows) if rows else 1) * (-(-k // columns) if columns else 1)
    zeros = scales * form.bits // 8 if form.has_zeros else 0
    beside = scales * form.scale_bytes + zeros + k * form.input_bytes + form.matrix_bytes
    return k * n * form.bits // 8 + beside


@lru_cache(maxsize=256)
def param_count(spec: ModelSpec) -> int:
    """Return the parameters; tied embeddings count once."""
    return _matrices(spec) + _others(spec) + _router_biases(spec)


def _copies(spec: ModelSpec, gemm: Gemm) -> int:
    return gemm.count * (spec.experts if gemm.kind == "expert" else 1)


def _matrices(spec: ModelSpec) -> int:
    return sum(g.k * g.n * _copies(spec, g) for g in gemms(spec) if g.kind != "head")


def _router_biases(spec: ModelSpec) -> int:
    return spec.router_bias * spec.experts * len(spec.expert_layers)


def _others(spec: ModelSpec) -> int:
    h = spec.hidden
    norm = h * (2 if spec.norm_bias else 1)
    halves = len(spec.without_attention) + len(spec.without_feed_forward)
    total = norm * (1 + spec.norms_per_layer * spec.layers - spec.norms_per_layer // 2 * halves)
    if spec.experts:
        one = 2 * spec.moe_intermediate + h
        total += spec.layers * spec.expert_bias * spec.experts * (1 + one)
    else:
        total += spec.layers * spec.mlp_bias * ((1 + spec.gated_mlp) * spec.intermediate + h)
    total += sum(len(mixer.layers) * mixer.parameters for mixer in mixers(spec))
    return total + spec.more_parameters + h * spec.vocab * (1 if spec.tie_embeddings else 2)


@lru_cache(maxsize=256)
def weight_bytes(spec: ModelSpec) -> int:
    """Return the stored bytes of all parameters."""
    stored = [gemm_bytes(spec, g) * _copies(spec, g) for g in gemms(spec) if g.kind != "head"]
    beside = _router_biases(spec) * 4 + spec.more_bytes + _packed_head(spec)
    return sum(stored) + _others(spec) * spec.dtype_bytes + beside


def _packed_head(spec: ModelSpec) -> int:
    (head,) = (g for g in gemms(spec) if g.kind == "head")
    return 0 if spec.tie_embeddings else gemm_bytes(spec, head) - head.k * head.n * spec.dtype_bytes


class CacheShape(NamedTuple):
    """Cache positions of a sequence: full * t + windowed * min(t, window) + state for t tokens.

    The unit is the greatest common divisor of the bytes per token of full layers, windowed layers
    and state; else one position a token.
    """

    full: int  # per token, layers without a window
    windowed: int  # per token, layers with a window
    window: int  # in tokens; 0 if no layer has a window
    state: int  # per sequence


def _caches(spec: ModelSpec) -> list[tuple[Cache, int]]:
    width = spec.kv_dtype_bytes or spec.dtype_bytes
    return [
        (cache, len(mixer.layers) * cache.values * width // cache.ratio)
        for mixer in mixers(spec)
        for cache in mixer.caches
    ]


def cache_shape(spec: ModelSpec) -> CacheShape:
    """Return what a sequence holds, in units of kv_bytes_per_token / (full + windowed) bytes."""
    return _shapes(spec)[0]


def read_shape(spec: ModelSpec) -> CacheShape:
    """Return what attention reads of a sequence, in the unit of `cache_shape`.

    Sparse attention reads a window of its best positions.
    """
    return _shapes(spec)[1]


def _shapes(spec: ModelSpec) -> tuple[CacheShape, CacheShape]:
    caches, state = _caches(spec), state_bytes(spec)
    spans = [(cache.held, nbytes) for cache, nbytes in caches]
    longest = max((cache.limit for cache, _ in caches), default=0)
    read = [
        (longest, nbytes * cache.limit // longest) if cache.limit else (0, nbytes)
        for cache, nbytes in caches
    ]
    sizes = [
        (sum(nbytes for w, nbytes in some if not w), sum(nbytes for w, nbytes in some if w),
         max((w for w, _ in some), default=0))
        for some in (spans, read)
    ]  # fmt: skip
    place = math.gcd(state, *(size for full, windowed, _ in sizes for size in (full, windowed)))
    place = place or 1
    first, second = (
        CacheShape(full // place, windowed // place, window, state // place)
        for full, windowed, window in sizes
    )
    return first, second


def kv_bytes_per_token(spec: ModelSpec, position: int = 0) -> int:
    """Return the bytes that the token at a position, from 0, adds to the cache.

    A token beyond a window overwrites the oldest one; a state does not grow.
    """
    return sum(nbytes for cache, nbytes in _caches(spec) if not cache.held or position < cache.held)


def kv_bytes(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.int64]:
    """Return the bytes of cache and state of sequences; `tokens` of any shape.

    Raises:
      SettingError: negative or NaN tokens.
    """
    count = _tokens(tokens).astype(np.int64)
    cached = np.zeros_like(count)
    for cache, nbytes in _caches(spec):
        cached = cached + nbytes * (np.minimum(count, cache.held) if cache.held else count)
    return np.asarray(cached + np.where(count > 0, state_bytes(spec), 0))


def state_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a sequence's states (float32 by default) and convolution inputs, or 0."""
    return sum(len(mixer.layers) * mixer.state_bytes for mixer in mixers(spec))


def check_plain_layers(spec: ModelSpec) -> None:
    """Refuse layers unlike q, k, v and o, then one dense block or experts.

    Raises:
      SettingError: also for quantised weights.
    """
    other = (spec.latent, spec.linear, spec.index, spec.compressed, spec.windowed_heads,
             spec.value_dim, spec.without_attention, spec.without_feed_forward, spec.widths,
             spec.attention_gate, spec.head_gate, spec.shared_intermediate)  # fmt: skip
    if any(other):
        raise SettingError(
            f"model.{spec.name}.family", spec.family, "a family with keys and values of its own in "
            "each layer, without gates and shared experts",
        )  # fmt: skip
    if spec.weights is not None:
        field = f"model.{spec.name}.quantization_config.quant_method"
        raise SettingError(field, spec.weights.kind, "unquantised weights")


def expected_active_experts(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return a layer's expected active experts; `tokens` of any shape.

    Uniform, independent choices: E * (1 - (1 - k/E)**tokens), an upper estimate.

    Raises:
      SettingError: negative or NaN tokens.
    """
    count = _tokens(tokens)
    if not spec.experts:
        return np.zeros_like(count)
    idle = 1.0 - spec.experts_per_token / spec.experts
    return np.asarray(spec.experts * (1.0 - np.power(idle, count)))


def streamed_bytes(spec: ModelSpec, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return a forward pass's least weight bytes; `tokens` of any shape.

    Norms, biases and embedding rows do not count.

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
    """Return a token's FLOPs (a multiply-add is two) in layers and head.

    Args:
      context: keys attended to, with its own; any shape.

    Raises:
      SettingError: negative or NaN context.
    """
    keys = _tokens(context, "context")
    used = {"dense": 1, "head": 1, "expert": spec.experts_per_token}
    matrices = sum(2 * g.k * g.n * g.count * used[g.kind] for g in gemms(spec))
    seen = [
        (len(mixer.layers) * cache.pair, cache) for mixer in mixers(spec) for cache in mixer.caches
    ]
    pairs = sum(
        2.0 * width * (np.minimum(keys, cache.limit) if cache.limit else keys) / cache.ratio
        for width, cache in seen
    )
    states = sum(len(mixer.layers) * mixer.state_flops for mixer in mixers(spec))
    return np.asarray(matrices + pairs + states)


def _tokens(tokens: ArrayLike, name: str = "tokens") -> NDArray[np.float64]:
    count = np.asarray(tokens, dtype=np.float64)
    if not np.all(count >= 0):  # also refuses NaN
        raise SettingError(name, tokens, "numbers of at least 0")
    return count
