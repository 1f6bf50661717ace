"""Forward pass: tokens in, logits and KV cache out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.models import ModelSpec
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layers.cache import Cache, Pooled, Rows, rows_of
from c2c.transformer.layers.embedding import Table, lookup
from c2c.transformer.layers.layer import (
    Layer,
    needed,
    place_in,
    rms_norm,
    run_layer,
    turns_of,
    window_of,
)
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Linear, Reference
from c2c.transformer.layers.params import Params, Projections
from c2c.transformer.layers.rope import angles
from pallas_kernels.arguments import Choice

__all__ = ["BEGIN", "END", "end", "forward", "nameless", "run"]

_Cache = Cache | Pooled
_AT_ONCE = 4  # layers of an executable: more save nothing further, and compile for longer
_barrier: Any = lax.optimization_barrier  # untyped


def forward[C: (Cache, Pooled)](
    params: Params,
    tokens: Any,
    positions: Any,
    cache: C,
    spec: ModelSpec,
    *,
    linear: Linear | None = None,
    decode_rows: int = 0,
    logit_indices: Any = None,
    backend: Choice = "auto",
) -> tuple[jax.Array, C]:
    """Compute logits of `tokens`, and add their keys and values to the cache.

    Each row of `cache.tables` is a sequence; its tokens here have consecutive positions, then
    padding. Up to rounding, a row's result depends on its tokens alone.

    Args:
      params: placed as `linear` requires.
      tokens: int32 [rows, T]; or flat [N]: rows of equal length, then `decode_rows` rows of one
        token.
      positions: int32 like tokens, from 0; -1 for padding.
      cache: with pages for all positions; others are not stored.
      decode_rows: one-token rows at the end of flat tokens; 0 for [rows, 1].
      logit_indices: int32 [R], among the N tokens; all by default.

    Returns:
      float32 logits, [rows, T, vocab], [N, vocab] or [R, vocab], and the new cache.

    Raises:
      ValueError: unequal shapes.
    """
    return _compute(
        params,
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(positions, jnp.int32),
        cache,
        spec=spec,
        linear=Reference() if linear is None else linear,
        decode_rows=decode_rows,
        logit_indices=logit_indices,
        backend=backend,
    )


def run[C: (Cache, Pooled)](
    params: Params,
    tokens: Any,
    positions: Any,
    cache: C,
    spec: ModelSpec,
    *,
    linear: Linear | None = None,
    decode_rows: int = 0,
    logit_indices: Any = None,
    backend: Choice = "auto",
    executables: Executables | None = None,
    ahead: bool = False,
    has_logits: bool = True,
    between: Callable[[C], C] | None = None,
) -> tuple[jax.Array, C]:
    """Compute `forward`, compiled once per shape; `cache` is donated.

    One executable serves layers with own arrays (on a CPU up to four layers of decodes a call);
    else one scans them.

    Args:
      ahead: whether to prepare `executables` alone and return shapes.
      has_logits: False: return the last layer's output, see `end`.
      between: gets and returns the cache after each layer of its own executable; may donate arrays.
    """
    linear = Reference() if linear is None else linear
    spec = nameless(spec)

    def compiled(stage: Stage) -> Callable[..., Any]:
        if executables is None:
            return stage.jitted
        return executables.bind_ahead(stage) if ahead else executables.bind(stage)

    arguments = params, tokens, positions, cache
    static: dict[str, Any] = {"spec": spec, "decode_rows": decode_rows, "backend": backend}
    if not linear.placement.by_layer:
        whole: tuple[jax.Array, C] = compiled(_WHOLE)(*arguments, linear, logit_indices, **static)
        return whole
    end = compiled(END) if has_logits else _without_logits
    is_short = tokens.size == cache.tables.shape[0] and params.device.platform == "cpu"
    stages = _Stages(
        begin=compiled(BEGIN), layers=compiled(_LAYERS), end=end, between=between,
        at_once=_AT_ONCE if is_short and between is None else 1,
    )  # fmt: skip
    return _compute(*arguments, linear=linear, logit_indices=logit_indices, stages=stages, **static)


def end(
    params: Params,
    x: Any,
    logit_indices: Any,
    spec: ModelSpec,
    *,
    linear: Linear,
    executables: Executables | None = None,
    ahead: bool = False,
) -> Any:
    """Return logits from a layer's output, of layers with own arrays; `ahead`: their shape."""
    compiled: Any = END.jitted
    if executables is not None:
        compiled = executables.bind_ahead(END) if ahead else executables.bind(END)
    head = params.projections.get("head", params.embed.data)
    return compiled(
        x, params.final_norm, head, logit_indices, linear, spec=_SEEN_AT_END(spec), shape=()
    )


@functools.lru_cache(maxsize=64)
def nameless(spec: ModelSpec) -> ModelSpec:
    """Return the spec without its name, to share executables."""
    return replace(spec, name="any")


def _seen(name: str, fields: str) -> Callable[[ModelSpec], Any]:
    """Return a function that keeps these fields; others raise."""
    names = fields.split()
    kind = make_dataclass(name, names, frozen=True)
    return functools.lru_cache(maxsize=64)(lambda spec: kind(*(getattr(spec, n) for n in names)))


_SEEN_AT_BEGIN = _seen(
    "Embedded", "embedding_scale head_dim latent local_rope_theta max_position rope_scaling "
    "rope_theta rotary_fraction",
)  # fmt: skip
_SEEN_BY_LAYERS = _seen(
    "Layered", "activation attention_cap attention_scale dense_layers expert_groups experts "
    "experts_per_token groups_per_token head_dim heads kv_heads latent layers local_rope_theta "
    "norm_eps norm_offset norm_topk partial_window partial_window_layers qk_norm qk_norm_whole "
    "qk_unit residual_scale rotary_interleaved routed_scale router_sigmoid shared_intermediate "
    "sliding_window unrotated_layers weighted_inputs window_layers",
)  # fmt: skip
_SEEN_AT_END = _seen("Ended", "logit_cap logit_scale norm_eps norm_offset vocab")


def _begin(
    embed: Table,
    tokens: Any,
    positions: Any,
    linear: Linear,
    count: int,
    decode_rows: int,
    spec: ModelSpec,
    dtype: str,
) -> tuple[jax.Array, Rows, tuple[jax.Array, jax.Array]]:
    rows = rows_of(positions, count, decode_rows)
    x = lookup(embed, tokens, linear.rows, dtype=dtype)
    if spec.embedding_scale != 1.0:
        x = x * jnp.asarray(spec.embedding_scale, x.dtype)
    return x, rows, angles(jnp.maximum(positions, 0), rows.lengths, spec)


def _layers(
    x: jax.Array,
    cache: _Cache,
    layers: Mapping[str, Any],
    projections: Sequence[Projections],
    number: Any,
    which: Any,
    place: Any,
    rows: Rows,
    turns: tuple[jax.Array, jax.Array],
    linear: Linear,
    spec: ModelSpec,
    backend: Choice,
    sparse: bool,
) -> tuple[jax.Array, Any]:
    for k, matrices in enumerate(projections):
        index, to = number + k, None if place is None else place + k
        layer = Layer(
            small=layers, projections=matrices, linear=linear, at=index, which=which, place=to
        )
        x, cache = run_layer(
            layer,
            x,
            cache,
            rows,
            turns_of(turns, spec, index),
            page=index,
            window=window_of(spec, index),
            spec=spec,
            backend=backend,
            sparse=sparse,
        )
        if k + 1 < len(projections):  # nothing is fused over it: the bits are those of single calls
            x, cache = _barrier((x, cache))
    return x, cache


def _end(
    x: jax.Array,
    norm: jax.Array,
    head: Any,
    logit_indices: Any,
    linear: Linear,
    spec: ModelSpec,
    shape: tuple[int, ...],
) -> jax.Array:
    if logit_indices is not None:
        x = x[logit_indices]
    x = rms_norm(x, norm, spec.norm_eps, spec.norm_offset)
    projections = linear.prepare({"head": head})
    logits = linear(projections, "head", None, x, out_dtype=jnp.float32)
    if spec.logit_scale != 1.0:
        logits = logits * spec.logit_scale
    if spec.logit_cap:
        logits = spec.logit_cap * jnp.tanh(logits / spec.logit_cap)
    return logits if logit_indices is not None else logits.reshape(*shape, spec.vocab)


def _without_logits(x: jax.Array, *_given: Any, **_static: Any) -> jax.Array:
    return x


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    begin: Callable[..., Any]
    layers: Callable[..., Any]
    end: Callable[..., Any]
    between: Callable[[Any], Any] | None = None
    at_once: int = 1  # most layers of a call, if each has its own arrays


_PLAIN = _Stages(begin=_begin, layers=_layers, end=_end)
BEGIN = Stage(name="begin", function=_begin, static=("count", "decode_rows", "spec", "dtype"))
_LAYERS = Stage(
    name="layers", function=_layers, donated=(0, 1), static=("spec", "backend", "sparse")
)
END = Stage(name="end", function=_end, static=("spec", "shape"))


def _compute(
    params: Params,
    tokens: Any,
    positions: Any,
    cache: _Cache,
    *,
    spec: ModelSpec,
    linear: Linear,
    decode_rows: int,
    logit_indices: Any,
    backend: Choice,
    stages: _Stages = _PLAIN,
) -> tuple[jax.Array, Any]:
    shape, count = tokens.shape, cache.tables.shape[0]
    decode_rows = _check_shapes(tokens, positions, count, decode_rows)
    # A flat array is not reshaped: reshaping on a device needs a compilation.
    flat = tuple(array if len(shape) == 1 else array.reshape(-1) for array in (tokens, positions))
    x, rows, turns = stages.begin(
        params.embed,
        *flat,
        linear,
        count=count,
        decode_rows=decode_rows,
        spec=_SEEN_AT_BEGIN(spec),
        dtype=str(params.dtype),
    )
    layered_spec = _SEEN_BY_LAYERS(spec)

    def run_layers(
        index: tuple[Any, Any, Any],
        sparse: bool,
        weights: Sequence[Projections],
        x: jax.Array,
        cache: _Cache,
    ) -> Any:
        return stages.layers(
            *(x, cache, params.layers, weights, *index, rows, turns, linear),
            spec=layered_spec,
            backend=backend,
            sparse=sparse,
        )

    places = feed_forward_places(spec)
    layered = {name: w for name, w in params.projections.items() if name != "head"}
    if linear.placement.by_layer:
        for group in _groups(places, stages.at_once):
            sparse, place = places[group[0]]
            weights = [
                {
                    name: array[place_in(name, number, places[number][1])]
                    for name, array in layered.items()
                    if needed(name, sparse)
                }
                for number in group
            ]
            indices = np.int32(group[0]), None, np.int32(place) if spec.dense_layers else None
            x, cache = run_layers(indices, sparse, weights, x, cache)
            if stages.between is not None:
                cache = stages.between(cache)
    else:
        stacks = linear.prepare(layered)

        def body(carry: Any, index: Any, *, sparse: bool) -> Any:
            x, k, v = carry
            number, place = index
            index = number, number, place
            x, new = run_layers(index, sparse, [stacks], x, replace(cache, k=k, v=v))
            return (x, new.k, new.v), None

        first = 0
        for sparse, alike in itertools.groupby(places, key=lambda pair: pair[0]):
            place_array = np.array([place for _, place in alike], np.int32)
            numbers = np.arange(first, first + len(place_array), dtype=np.int32)
            over = numbers, place_array if spec.dense_layers else None
            step = functools.partial(body, sparse=sparse)
            (x, k, v), _ = lax.scan(step, (x, cache.k, cache.v), over)
            cache = replace(cache, k=k, v=v)
            first += len(place_array)
    head = params.projections.get("head", params.embed.data)
    shape = () if logit_indices is not None else tuple(shape)
    ended = _SEEN_AT_END(spec)
    return stages.end(
        x, params.final_norm, head, logit_indices, linear, spec=ended, shape=shape
    ), cache


def _groups(places: Sequence[tuple[bool, int]], most: int) -> Iterator[range]:
    first = 0
    for _, alike in itertools.groupby(places, key=lambda pair: pair[0]):
        end = first + len(list(alike))
        size = next(n for n in range(most, 0, -1) if (end - first) % n == 0)
        yield from (range(begin, begin + size) for begin in range(first, end, size))
        first = end


def _scanned(
    params: Params,
    tokens: Any,
    positions: Any,
    cache: _Cache,
    linear: Linear,
    logit_indices: Any,
    *,
    spec: ModelSpec,
    decode_rows: int,
    backend: Choice,
) -> tuple[jax.Array, Any]:
    return _compute(
        params,
        tokens,
        positions,
        cache,
        spec=spec,
        linear=linear,
        decode_rows=decode_rows,
        logit_indices=logit_indices,
        backend=backend,
    )


_WHOLE = Stage(
    name="whole",
    function=_scanned,
    donated=(3,),
    static=("spec", "decode_rows", "backend"),
)


def _check_shapes(tokens: Any, positions: Any, count: int, decode_rows: int) -> int:
    shape = tokens.shape
    if shape != positions.shape or len(shape) not in (1, 2) or not tokens.size:
        raise ValueError(
            f"positions of shape {positions.shape}: expected that of tokens, {shape}, "
            "[rows, T] or [N], not empty"
        )
    if len(shape) == 1:
        return decode_rows
    if shape[0] != count or decode_rows:
        raise ValueError(
            f"tokens of shape {shape}: expected {count} rows as in cache.tables, and "
            f"decode_rows=0, got {decode_rows}; flat tokens may be of both kinds"
        )
    return count if shape[1] == 1 else 0
