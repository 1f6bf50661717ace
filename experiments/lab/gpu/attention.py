"""Stage `attention`: our kernels over device memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.gpu.cases import Row
from experiments.lab.gpu.timing import time_launches
from experiments.lab.gpu.worker import Settings
from pallas_kernels.attention import decode_attention, prefill_attention

_PAGE: Final = 64


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Measure one case."""
    length, batch, head = spec["length"], spec["batch"], spec["head"]
    if spec["what"] == "decode":
        run, arrays, read = _decode(spec, settings)
        flops = 4.0 * batch * spec["q_heads"] * head * length
    else:
        run, arrays = _prefill(spec, settings)
        read = sum(2 * array.size for array in arrays)
        flops = 2.0 * batch * spec["q_heads"] * head * length * (length + 1)
    times = time_launches(
        lambda _: run(*arrays), target_s=settings.target_s, repetitions=settings.repetitions
    )
    return [{"flops": flops, "read_bytes": read, **times.columns()}]


def _decode(spec: Mapping[str, Any], settings: Settings) -> tuple[Any, tuple[Any, ...], int]:
    batch, length, head, kv_heads = (spec[name] for name in ("batch", "length", "head", "kv_heads"))
    pages = -(-length // _PAGE)
    order = np.random.default_rng(settings.seed).permutation(batch * pages).astype(np.int32)
    q = _normal((batch, spec["q_heads"], head), settings.seed)
    k, v = (_normal((batch * pages, _PAGE, kv_heads, head), settings.seed + i) for i in (1, 2))
    tables, lengths = jnp.asarray(order.reshape(batch, pages)), jnp.full(batch, length, jnp.int32)
    run = jax.jit(functools.partial(decode_attention, backend=settings.backend))
    return run, (q, k, v, tables, lengths), 2 * 2 * batch * length * kv_heads * head


def _prefill(spec: Mapping[str, Any], settings: Settings) -> tuple[Any, tuple[Any, ...]]:
    heads = (spec["q_heads"], spec["kv_heads"], spec["kv_heads"])
    arrays = tuple(
        _normal((spec["batch"], spec["length"], head_count, spec["head"]), settings.seed + i)
        for i, head_count in enumerate(heads)
    )
    _, _, rival = spec["what"].partition("_")
    call: Any = functools.partial(prefill_attention, causal=True, backend=settings.backend)
    if rival:
        call = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation=rival)
    return jax.jit(call), arrays


def _normal(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
