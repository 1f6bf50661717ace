"""Section `transformer`: decode and prefill of a model of 8B shape, its weights in host memory.

Each step is that of generation: `forward` with its cache, compiled as the strategy does. Strategies
are `hybrid` (our kernels read weights in host memory), `staged` (each layer's weights are copied,
then multiplied by XLA) and `resident` (weights in device memory, XLA).
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import ModelSpec
from c2c.transformer import Cache, Hybrid, Linear, Params, Reference, Staged, forward, new_cache
from c2c.transformer.forward import run
from c2c.transformer.pages import PAGE_TOKENS
from experiments.children import answer_of
from experiments.gpu import Case, Context, Row, Scale, time_launches, wait
from experiments.gpu.cases import HostRead
from experiments.gpu.kernels import bounds
from experiments.gpu.transformer.splits import split_of
from experiments.gpu.transformer.weights import (
    QUANTIZATIONS,
    projection_bytes,
    random_weights,
    shape_of,
)

BATCHES, CONTEXT = (1, 8, 32), 1024
PROMPTS = (512, 2048)
SPLITS = ("chosen", "0", "1")
_SIZES: Mapping[Scale, tuple[tuple[int, ...], tuple[int, ...], int, tuple[str, ...]]] = {
    "full": (BATCHES, PROMPTS, CONTEXT, SPLITS),
    "quick": (BATCHES[:1], PROMPTS[:1], CONTEXT, SPLITS[:1]),
    "tiny": ((2,), (16,), 64, SPLITS[:2]),  # one executable's
}
_LIMIT_S = 280.0  # includes making the weights in the first case of a strategy
_CHILD_LIMIT_S = 270.0


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then cases by strategy, since making weights takes longest."""
    batches, prompts, context, splits = _SIZES[scale]
    found: list[dict[str, Any]] = []
    for linear, weights, split in _strategies(splits):
        common = {"linear": linear, "weights": weights, "split": split}
        found += [common | {"what": "decode", "rows": r, "context": context} for r in batches]
        # One executable takes Python out of the time, which matters for short steps only.
        if linear != "resident_whole":
            found += [common | {"what": "prefill", "rows": r, "context": r} for r in prompts]
    found.insert(0, {"what": "switch"})
    found.append({"what": "logits", "weights": "bf16", "rows": prompts[0]})
    cases = [Case(spec=spec, limit_s=_LIMIT_S, least_s=60.0, host=_host(spec)) for spec in found]
    if scale == "tiny":
        cases = [replace(case, least_s=1.0) for case in cases]
    return [*bounds.cases((132,) if scale != "tiny" else ()), *cases]


def _host(spec: Mapping[str, Any]) -> HostRead:
    if spec["what"] == "switch":
        return "only"
    return "either" if spec.get("linear", "hybrid") == "hybrid" else ""


def _strategies(splits: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return (strategy, weights, split of the columns), ordered so that weights are shared."""
    return [
        *(("hybrid", "bf16", split) for split in splits),
        ("staged", "bf16", "none"),
        ("resident", "bf16", "none"),
        ("resident_whole", "bf16", "none"),
        ("hybrid", "int8", "none"),
        ("hybrid", "int4", "none"),
    ]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case."""
    if spec["what"] == "bound":
        return bounds.measure(spec, context)
    if spec["what"] == "switch":
        return _switch(context)
    if spec["what"] == "logits":
        return [_compare(spec, context)]
    return [_step(spec, context)]


def strategy(
    spec: Mapping[str, Any], shape: ModelSpec, context: Context
) -> tuple[Linear, dict[str, Any]]:
    """Return the strategy of a case's products, and the columns that describe it."""
    if spec["linear"] == "staged":
        return Staged(), {}
    if spec["linear"].startswith("resident"):
        return Reference(), {}
    rows = spec["rows"]
    if spec["weights"] != "bf16":
        return Hybrid(backend=context.backend), {}
    tokens_of_head = rows if spec["what"] == "decode" else 1
    split = split_of(spec["split"], shape, rows, tokens_of_head, backend=context.backend)
    choices = {"clusters": split.clusters, "alphas": split.alphas}
    return split.linear, {name: json.dumps(dict(by_kind)) for name, by_kind in choices.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Weights that consecutive cases share."""

    key: tuple[Any, ...]
    params: Params
    made_s: float


_held: list[Held] = []


def weights_for(linear: Linear, weights: str, shape: ModelSpec, context: Context) -> Held:
    """Return random weights in the memory that `linear` needs; only the last ones are cached.

    Two cached models would leave no room for a third while it is made.
    """
    key = (linear.placement, weights, shape, context.seed, context.weights)
    if not _held or _held[0].key != key:
        _held.clear()
        start = time.perf_counter()
        params = random_weights(shape, linear, weights, seed=context.seed, place=context.weights)
        wait(params)
        _held.append(Held(key=key, params=params, made_s=time.perf_counter() - start))
    return _held[0]


def filled_cache(shape: ModelSpec, rows: int, context: int, dtype: Any, seed: int) -> Cache:
    """Return a KV cache of random numbers, with separate pages for each of `rows` sequences."""
    pages = -(-context // PAGE_TOKENS)
    tables = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    empty = new_cache(
        shape, pages=rows * pages, page_tokens=PAGE_TOKENS, dtype=dtype, tables=tables
    )
    keys = jax.random.split(jax.random.key(seed))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2))
    k, v = (normal(key, empty.k.shape, jnp.dtype(dtype)) for key in keys)
    return replace(empty, k=k, v=v)


def inputs(spec: Mapping[str, Any], shape: ModelSpec, seed: int) -> dict[str, Any]:
    """Return the arguments of `forward` for one step: tokens, positions and others."""
    rng = np.random.default_rng(seed)
    rows = spec["rows"]
    ids = rng.integers(0, shape.vocab, rows, dtype=np.int32)
    if spec["what"] == "decode":
        positions = np.full(rows, spec["context"] - 1, np.int32)
        return {"tokens": ids, "positions": positions, "decode_rows": rows}
    positions = np.arange(rows, dtype=np.int32)[None]
    last = np.array([rows - 1], np.int32)
    return {"tokens": ids[None], "positions": positions, "wanted": last}


def stepper(
    params: Params,
    linear: Linear,
    spec: Mapping[str, Any],
    shape: ModelSpec,
    context: Context,
) -> Callable[[int], jax.Array]:
    """Return a function that starts one step and returns its logits.

    Each step writes the same positions again, so that all steps do the same work.
    """
    sequences = spec["rows"] if spec["what"] == "decode" else 1
    cache = filled_cache(shape, sequences, spec["context"], params.dtype, context.seed)
    given = jax.device_put(inputs(spec, shape, context.seed))
    decode_rows = spec["rows"] if spec["what"] == "decode" else 0
    given.pop("decode_rows", None)
    settings: dict[str, Any] = {"decode_rows": decode_rows, "backend": context.backend}
    call: Any = functools.partial(run, spec=shape, linear=linear, **settings)
    if spec["linear"] == "resident_whole":

        def whole(params: Any, tokens: Any, positions: Any, cache: Any, wanted: Any = None) -> Any:
            return forward(
                params, tokens, positions, cache, shape, linear=linear, wanted=wanted, **settings
            )

        call = jax.jit(whole, donate_argnums=3)
    tokens, positions = given.pop("tokens"), given.pop("positions")

    def step(_: int) -> jax.Array:
        nonlocal cache
        logits, cache = call(params, tokens, positions, cache, **given)
        out: jax.Array = logits
        return out

    return step


def _step(spec: Mapping[str, Any], context: Context) -> Row:
    """Time a decode step or the prefill of a prompt."""
    shape = shape_of(context.scale)
    linear, said = strategy(spec, shape, context)
    held = weights_for(linear, spec["weights"], shape, context)
    step = stepper(held.params, linear, spec, shape, context)
    start = time.perf_counter()
    wait(step(0))
    first_s = time.perf_counter() - start
    times = time_launches(step, target_s=context.target_s, repetitions=context.repetitions)
    return {
        "model": shape.name,
        **said,
        **amounts(spec, shape, held.params),
        **times.columns(),
        "tokens_per_s": spec["rows"] / times.median_s,
        "first_s": first_s,
        "made_s": held.made_s,
    }


def amounts(spec: Mapping[str, Any], shape: ModelSpec, params: Params) -> Row:
    """Return the bytes and operations of a step, without padding.

    `weight_bytes` counts all projections once, `kv_bytes` the keys and values that are read.
    """
    rows, context, decode = spec["rows"], spec["context"], spec["what"] == "decode"
    per_token = shape.layers * 2 * shape.kv_heads * shape.head_dim
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = shape.hidden * (width + shape.heads * shape.head_dim + 3 * shape.intermediate)
    heads_of = rows if decode else 1
    seen = rows * context if decode else rows * (rows + 1) // 2
    return {
        "weight_bytes": projection_bytes(params),
        "kv_bytes": per_token * params.dtype.itemsize * (rows * context if decode else rows),
        "flops": 2.0 * (rows * shape.layers * layer + heads_of * shape.hidden * shape.vocab)
        + 4.0 * shape.layers * shape.heads * shape.head_dim * seen,
    }


def _compare(spec: Mapping[str, Any], context: Context) -> Row:
    """Compare a prompt's logits by our kernels with those of weights in device memory.

    Both round to bf16 at the same points; only the order of sums differs.
    """
    shape = shape_of(context.scale)
    told = {**spec, "what": "prefill", "context": spec["rows"]}
    found: dict[str, np.ndarray] = {}
    for name in ("hybrid", "resident"):
        of = {**told, "linear": name, "split": "chosen"}
        linear, _ = strategy(of, shape, context)
        held = weights_for(linear, spec["weights"], shape, context)
        found[name] = np.asarray(stepper(held.params, linear, of, shape, context)(0), np.float64)
    error, size = found["hybrid"] - found["resident"], found["resident"]
    return {
        "model": shape.name,
        "layers": shape.layers,
        "relative_error": float(np.linalg.norm(error) / np.linalg.norm(size)),
        "largest_error": float(np.abs(error).max() / size.std()),
        "same_token": bool(found["hybrid"].argmax() == size.argmax()),
        "finite": bool(np.isfinite(found["hybrid"]).all()),
    }


def _switch(context: Context) -> list[Row]:
    """Switch between two models in a process of its own, which then has its own memory peak.

    Raises:
      RuntimeError: the process fails; the message has its last output.
    """
    _held.clear()
    settings = {"backend": context.backend, "scale": context.scale, "seed": context.seed}
    line = [sys.executable, "-m", "experiments.gpu.transformer.switching", json.dumps(settings)]
    rows: list[Row] = answer_of(line, RuntimeError, limit_s=_CHILD_LIMIT_S, apart=False)
    return rows


assert set(QUANTIZATIONS) >= {weights for _, weights, _ in _strategies(())}
