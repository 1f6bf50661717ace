"""Section `attention`: prefill and paged decode against XLA, cuDNN and the memory's rate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.kernels import bounds
from pallas_kernels.attention import decode_attention, prefill_attention

HEADS = (("llama-3.1-8b", 32, 8, 128), ("qwen3-30b-a3b", 32, 4, 128), ("llama-3.1-70b", 64, 8, 128))
PAGE = 64


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then prefill and decode by heads and lengths."""
    if scale == "tiny":
        size = {"shape": "tiny", "q_heads": 4, "kv_heads": 2, "head": 64, "batch": 1}
        specs: list[dict[str, Any]] = [
            {"what": "prefill", **size, "length": 128, "window": 0},
            {"what": "prefill_xla", **size, "length": 128, "window": 0},
            {"what": "decode", **size, "length": 128, "window": 0},
        ]
        return [*bounds.cases(()), *(Case(spec=s) for s in specs)]
    specs = []
    for model, q_heads, kv_heads, head in HEADS:
        size = {"shape": model, "q_heads": q_heads, "kv_heads": kv_heads, "head": head}
        for length, window in ((4096, 0), (512, 0), (8192, 0), (8192, 1024), (2048, 0)):
            specs += [
                {"what": what, **size, "batch": 1, "length": length, "window": window}
                for what in ("prefill", "prefill_cudnn", "prefill_xla")
            ]
        specs += [
            {"what": "decode", **size, "batch": batch, "length": length, "window": 0}
            for batch, length in ((1, 4096), (16, 4096), (64, 2048), (16, 32768), (64, 512))
        ]
    found = [Case(spec=spec, limit_s=120.0) for spec in specs]
    return [*bounds.cases(()), *(found[:8] if scale == "quick" else found)]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case; K and V are in device memory."""
    if spec["what"] == "bound":
        return bounds.measure(spec, context)
    build = decode if spec["what"] == "decode" else prefill
    launch, amounts = build(spec, context)
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    return [amounts | times.columns()]


def prefill(spec: Mapping[str, Any], context: Context) -> tuple[Callable[[int], Any], Row]:
    """Return a launch of causal attention of a prompt with itself, and its operations."""
    batch, length, head = spec["batch"], spec["length"], spec["head"]
    window = spec["window"] or None
    q, k, v = (
        normal((batch, length, heads, head), context.seed + i)
        for i, heads in enumerate((spec["q_heads"], spec["kv_heads"], spec["kv_heads"]))
    )
    run: Any
    if spec["what"] == "prefill":
        run = jax.jit(
            functools.partial(
                prefill_attention, causal=True, window=window, backend=context.backend
            )
        )
    else:
        implementation = spec["what"].partition("_")[2]
        run = jax.jit(
            functools.partial(
                jax.nn.dot_product_attention,
                is_causal=True,
                local_window_size=(window - 1, 0) if window else None,
                implementation=implementation,
            )
        )
    seen = np.minimum(np.arange(1, length + 1), window or length).sum()
    flops = 4.0 * batch * spec["q_heads"] * head * float(seen)
    moved = 2 * (2 * q.size + k.size + v.size)
    return lambda _: run(q, k, v), {"flops": flops, "activation_bytes": moved, "weight_bytes": 0}


def decode(spec: Mapping[str, Any], context: Context) -> tuple[Callable[[int], Any], Row]:
    """Return a launch of one token's attention over pages in random order, and its bytes."""
    batch, length, head, kv_heads = (spec[n] for n in ("batch", "length", "head", "kv_heads"))
    each = -(-length // PAGE)
    order = np.random.default_rng(context.seed).permutation(batch * each).astype(np.int32)
    tables = jnp.asarray(order.reshape(batch, each))
    lengths = jnp.full(batch, length, jnp.int32)
    q = normal((batch, spec["q_heads"], head), context.seed)
    k, v = (normal((batch * each, PAGE, kv_heads, head), context.seed + i) for i in (1, 2))
    run = jax.jit(functools.partial(decode_attention, backend=context.backend))
    read = 2 * 2 * batch * length * kv_heads * head
    flops = 4.0 * batch * spec["q_heads"] * head * length
    amounts = {"flops": flops, "activation_bytes": read, "weight_bytes": 0}
    return lambda _: run(q, k, v, tables, lengths), amounts


def normal(shape: tuple[int, ...], seed: int) -> jax.Array:
    """Return unit normal bf16 values in device memory."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
