"""Stage `step`: decode of layers of Llama 8B's shape with weights in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import load_spec
from c2c.transformer import Hybrid, Linear, Staged, new_cache, random_params
from c2c.transformer.layers.forward import run
from c2c.transformer.layers.pages import PAGE_TOKENS
from experiments.lab.gpu.cases import Row
from experiments.lab.gpu.timing import time_launches
from experiments.lab.gpu.worker import Settings

# All layers of a model are alike.
_LAYERS: Final = 4


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Measure a decode of `rows` sequences of `context` tokens."""
    shape = replace(load_spec("llama-3-8b"), layers=_LAYERS, vocab=8192)
    if settings.tiny:
        shape = replace(
            shape, layers=2, vocab=320, hidden=128, heads=4, kv_heads=2, head_dim=32,
            intermediate=192,
        )  # fmt: skip
    linear: Linear = Staged() if spec["linear"] == "staged" else Hybrid(backend=settings.backend)
    draw = np.random.default_rng(settings.seed)
    params = random_params(shape, draw, dtype="bfloat16", placement=linear.placement)
    rows, pages = spec["rows"], -(-spec["context"] // PAGE_TOKENS)
    tables = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    cache = new_cache(
        shape, pages=rows * pages, page_tokens=PAGE_TOKENS, dtype="bfloat16", tables=tables
    )
    tokens = jnp.asarray(draw.integers(0, shape.vocab, rows, dtype=np.int32))
    positions = jnp.full(rows, spec["context"] - 1, jnp.int32)

    def step(_: int) -> jax.Array:
        nonlocal cache  # each step writes the same positions again
        logits, cache = run(
            params, tokens, positions, cache,
            spec=shape, linear=linear, decode_rows=rows, backend=settings.backend,
        )  # fmt: skip
        result: jax.Array = logits
        return result

    times = time_launches(step, target_s=settings.target_s, repetitions=settings.repetitions)
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(dict(params.projections)))
    return [{"weight_bytes": nbytes, "tokens_per_s": rows / times.median_s, **times.columns()}]
