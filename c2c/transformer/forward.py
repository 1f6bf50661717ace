"""`forward`: tokens in, logits and the cache with their keys and values out.

One function for chunks of prompts, for decode steps and for batches of both. Pure; `run` is the
same compiled, once for each shape.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.models import ModelSpec
from c2c.transformer.cache import Cache, Pooled, Rows, rows_of
from c2c.transformer.embedding import Table, lookup
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layer import (
    Layer,
    needed,
    place_in,
    rms_norm,
    run_layer,
    turns_of,
    window_of,
)
from c2c.transformer.linear import Linear, Reference
from c2c.transformer.params import Params, Projections
from c2c.transformer.rope import angles
from c2c.transformer.weights.layout import feed_forward_places
from pallas_kernels.arguments import Choice

__all__ = ["BEGIN", "END", "end", "forward", "nameless", "run"]

_Cache = Cache | Pooled


def forward[C: (Cache, Pooled)](
    params: Params,
    tokens: Any,
    positions: Any,
    cache: C,
    spec: ModelSpec,
    *,
    linear: Linear | None = None,
    decode_rows: int = 0,
    wanted: Any = None,
    backend: Choice = "auto",
) -> tuple[jax.Array, C]:
    """Compute logits of `tokens`, and add their keys and values to the cache.

    Each row of `cache.tables` is a sequence. Its tokens of this call have consecutive positions,
    those before them are in the cache already, and padding follows them. A row may be all padding.
    No row's result depends on another row, on padding, or on how a prompt was cut into calls
    (beyond rounding).

    Args:
      params: of the model, placed as `linear` wants them.
      tokens: int32 [rows, T]; or [N], flat: rows of equal length, then `decode_rows` rows of one
        token, so that a prompt's chunk and decode steps share one call without padding.
      positions: int32 like tokens, from 0; -1 for padding.
      cache: pages of all layers, and the block tables of these rows; they hold pages for all
        positions given here, others are not stored.
      spec: the model.
      linear: how projections are multiplied; `Reference()` by default.
      decode_rows: rows of one token at the end of flat tokens; [rows, 1] are such anyway.
      wanted: int32 [R], which of the N tokens (rows flattened) to compute logits of; all by
        default.
      backend: of the attention kernels.

    Returns:
      float32 logits, [rows, T, vocab], [N, vocab] or [R, vocab], and the new cache.

    Raises:
      ValueError: shapes do not fit each other.
    """
    return _compute(
        params,
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(positions, jnp.int32),
        cache,
        spec=spec,
        linear=Reference() if linear is None else linear,
        decode_rows=decode_rows,
        wanted=wanted,
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
    wanted: Any = None,
    backend: Choice = "auto",
    executables: Executables | None = None,
    ahead: bool = False,
    has_logits: bool = True,
    between: Callable[[C], C] = lambda cache: cache,
) -> tuple[jax.Array, C]:
    """Do what `forward` does, compiled once a shape; `cache` is used up.

    Where each layer has arrays of its own, one executable serves all of them, so that compiling
    takes no longer for a deeper model; else all is one executable with a scan.

    Args:
      executables: where compiled stages come from; by default jax compiles for this process.
      ahead: only have `executables` ready; shapes are returned in place of arrays.
      has_logits: if not, what the last layer did is returned in their place, see `end`; they are
        computed all the same where all is one executable.
      between: is given the cache after each layer and returns it, where a layer is an executable;
        meanwhile it may give the arrays away.
    """
    linear = Reference() if linear is None else linear
    spec = nameless(spec)

    def compiled(stage: Stage) -> Callable[..., Any]:
        if executables is None:
            return stage.jitted
        return executables.bind_ahead(stage) if ahead else executables.bind(stage)

    given = params, tokens, positions, cache
    static: dict[str, Any] = {"spec": spec, "decode_rows": decode_rows, "backend": backend}
    if not linear.placement.by_layer:
        whole: tuple[jax.Array, C] = compiled(_WHOLE)(*given, linear, wanted, **static)
        return whole
    end = compiled(END) if has_logits else _without_logits
    stages = _Stages(begin=compiled(BEGIN), layer=compiled(_LAYER), end=end, between=between)
    return _compute(*given, linear=linear, wanted=wanted, stages=stages, **static)


def end(
    params: Params,
    x: Any,
    wanted: Any,
    spec: ModelSpec,
    *,
    linear: Linear,
    executables: Executables | None = None,
) -> jax.Array:
    """Return the logits of some tokens, of what `run` gave without logits.

    That is for models whose layers have arrays of their own.
    """
    compiled = END.jitted if executables is None else executables.bind(END)
    head = params.projections.get("head", params.embed.data)
    logits: jax.Array = compiled(
        x, params.final_norm, head, wanted, linear, spec=nameless(spec), shape=()
    )
    return logits


@functools.lru_cache(maxsize=64)
def nameless(spec: ModelSpec) -> ModelSpec:
    """Return the spec under a name of no model: equal architectures share executables."""
    return replace(spec, name="any")


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
    """Return embedded tokens, where they stand, and the angles there."""
    rows = rows_of(positions, count, decode_rows)
    x = lookup(embed, tokens, linear.rows, dtype=dtype)
    if spec.embedding_scale != 1.0:
        x = x * jnp.asarray(spec.embedding_scale, x.dtype)
    return x, rows, angles(jnp.maximum(positions, 0), rows.lengths, spec)


def _layer(
    x: jax.Array,
    cache: _Cache,
    layers: Mapping[str, Any],
    projections: Projections,
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
    """Run one layer over N tokens.

    Args:
      x: activations [N, hidden].
      cache: of all layers.
      layers: stacks of all layers, small.
      projections: of this layer, or stacks of all.
      number: of the layer in `layers` and in the cache, may be traced.
      which: the same for stacks of projections, None where they are of this layer.
      place: of the layer in stacks of its kind of feed-forward block; None where all are alike.
      rows: where the tokens stand.
      turns: cosine and sine there, of all kinds of layers.
      linear: how projections are multiplied.
      spec: the model.
      backend: of the attention kernels.
      sparse: whether the feed-forward block is a mixture of experts.
    """
    layer = Layer(
        small=layers, projections=projections, linear=linear, at=number, which=which, place=place
    )
    return run_layer(
        layer,
        x,
        cache,
        rows,
        turns_of(turns, spec, number),
        page=number,
        window=window_of(spec, number),
        spec=spec,
        backend=backend,
        sparse=sparse,
    )


def _end(
    x: jax.Array,
    norm: jax.Array,
    head: Any,
    wanted: Any,
    linear: Linear,
    spec: ModelSpec,
    shape: tuple[int, ...],
) -> jax.Array:
    """Return the logits of the tokens that are wanted; of all, in this shape, if None is said."""
    if wanted is not None:
        x = x[wanted]
    x = rms_norm(x, norm, spec.norm_eps, spec.norm_offset)
    projections = linear.prepare({"head": head})
    logits = linear(projections, "head", None, x, out_dtype=jnp.float32)
    if spec.logit_scale != 1.0:
        logits = logits * spec.logit_scale
    if spec.logit_cap:
        logits = spec.logit_cap * jnp.tanh(logits / spec.logit_cap)
    return logits if wanted is not None else logits.reshape(*shape, spec.vocab)


def _without_logits(x: jax.Array, *_given: Any, **_static: Any) -> jax.Array:
    """Return what the last layer did, in place of logits that nobody draws from."""
    return x


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """Functions that `_compute` calls: the functions themselves, or compiled."""

    begin: Callable[..., Any]
    layer: Callable[..., Any]
    end: Callable[..., Any]
    between: Callable[[Any], Any] = lambda cache: cache


_PLAIN = _Stages(begin=_begin, layer=_layer, end=_end)
BEGIN = Stage(name="begin", function=_begin, static=("count", "decode_rows", "spec", "dtype"))
_LAYER = Stage(name="layer", function=_layer, donated=(0, 1), static=("spec", "backend", "sparse"))
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
    wanted: Any,
    backend: Choice,
    stages: _Stages = _PLAIN,
) -> tuple[jax.Array, Any]:
    shape, count = tokens.shape, cache.tables.shape[0]
    decode_rows = _check_shapes(tokens, positions, count, decode_rows)
    # An array that is flat already is left alone: reshaping one on a device compiles something.
    flat = tuple(each if len(shape) == 1 else each.reshape(-1) for each in (tokens, positions))
    x, rows, turns = stages.begin(
        params.embed,
        *flat,
        linear,
        count=count,
        decode_rows=decode_rows,
        spec=spec,
        dtype=str(params.dtype),
    )

    def layer(
        at: tuple[Any, Any, Any], sparse: bool, weights: Projections, x: jax.Array, cache: _Cache
    ) -> Any:
        return stages.layer(
            *(x, cache, params.layers, weights, *at, rows, turns, linear),
            spec=spec,
            backend=backend,
            sparse=sparse,
        )

    places = feed_forward_places(spec)
    layered = {name: w for name, w in params.projections.items() if name != "head"}
    if linear.placement.by_layer:
        for number, (sparse, place) in enumerate(places):
            weights = {
                name: each[place_in(name, number, place)]
                for name, each in layered.items()
                if needed(name, sparse)
            }
            at = np.int32(number), None, np.int32(place) if spec.dense_layers else None
            x, cache = layer(at, sparse, weights, x, cache)
            cache = stages.between(cache)
    else:
        stacks = linear.prepare(layered)

        def body(carry: Any, at: Any, *, sparse: bool) -> Any:
            x, k, v = carry
            number, place = at
            x, new = layer((number, number, place), sparse, stacks, x, replace(cache, k=k, v=v))
            return (x, new.k, new.v), None

        first = 0
        for sparse, alike in itertools.groupby(places, key=lambda each: each[0]):
            of = np.array([place for _, place in alike], np.int32)
            numbers = np.arange(first, first + len(of), dtype=np.int32)
            over = numbers, of if spec.dense_layers else None
            step = functools.partial(body, sparse=sparse)
            (x, k, v), _ = lax.scan(step, (x, cache.k, cache.v), over)
            cache = replace(cache, k=k, v=v)
            first += len(of)
    head = params.projections.get("head", params.embed.data)
    shape = () if wanted is not None else tuple(shape)
    return stages.end(x, params.final_norm, head, wanted, linear, spec=spec, shape=shape), cache


def _scanned(
    params: Params,
    tokens: Any,
    positions: Any,
    cache: _Cache,
    linear: Linear,
    wanted: Any,
    *,
    spec: ModelSpec,
    decode_rows: int,
    backend: Choice,
) -> tuple[jax.Array, Any]:
    """Do all of it, its settings in the order of a stage."""
    return _compute(
        params,
        tokens,
        positions,
        cache,
        spec=spec,
        linear=linear,
        decode_rows=decode_rows,
        wanted=wanted,
        backend=backend,
    )


_WHOLE = Stage(
    name="whole",
    function=_scanned,
    donated=(3,),
    static=("spec", "decode_rows", "backend"),
)


def _check_shapes(tokens: Any, positions: Any, count: int, decode_rows: int) -> int:
    """Return how many rows have one token.

    Raises:
      ValueError: shapes do not fit each other.
    """
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
