"""Library kernels of attention on sm_90: supported features and gaps.

Compared in source: jax 0.11.2 itself (all that a GPU machine has here) and tokamax 0.0.17.

| feature | cuDNN (jax.nn) | attention_mgpu | paged_attention | tokamax |
| --- | --- | --- | --- | --- |
| causal, equal lengths | **yes: used** | queries in 128s | - | yes |
| GQA | yes | yes | yes | yes |
| sliding window | yes, if causal | no | no | as key ranges |
| key lengths per row | yes; a row of none is undefined | no | yes | as key ranges |
| queries offset over longer KV | no | no | no | as key ranges |
| log-sum-exp in float32 | rounded to q's type | base 2 | l and m | l and m |
| rows without keys: 0, -inf | undefined | NaN | finite, not -inf | 0 |
| pages [P, page, heads, dim] | private; no page shared or spare | no | [heads, P, ..] | no |
| NaN in memory never written | spreads | spreads | spreads | spreads |
| made with | cuDNN graph | Mosaic GPU | Triton; deprecated | Mosaic GPU |

attention_mgpu also needs the keys to be a multiple of its block. decode_attention (Triton,
deprecated) is paged_attention without pages.

So cuDNN computes `prefill_attention` if its result is defined and no log-sum-exp is needed
(`cudnn_problem`); it also supports head sizes that ours do not. Everything else on sm_90 is ours:
prefill with offsets, lengths or partial results (`sm90_prefill`), and paged decode
(`sm90_decode`). tokamax has the nearest prefill kernel, but reads the positions of every query
from arrays, has no pages, and is a further dependency beside jax.

cuDNN graphs cannot be compiled or run without a GPU: this path is checked on a GPU only.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention.specs import array_type


def cudnn_problem(
    q: Any,
    k: Any,
    *,
    causal: bool,
    window: Any,
    plain: bool,
) -> str:
    """Return the reason why cuDNN cannot compute this call; an empty string if it can."""
    if not plain:
        return "it takes no q_offset, and leaves rows without keys undefined under kv_lengths"
    if causal and q.shape[1] != k.shape[1]:
        return (
            f"causal attention of T={q.shape[1]} queries over S={k.shape[1]} keys: it has "
            "conventions of its own where they differ"
        )
    if window is not None and not isinstance(window, int):
        return "its window is a compile-time number"
    shapes = [array_type(a.shape, a.dtype) for a in (q, k, k)]
    try:
        # jax checks cuDNN's presence, the device, sizes and types while tracing
        jax.eval_shape(
            lambda q, k, v: cudnn(q, k, v, causal=causal, window=window, scale=1.0), *shapes
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error)
    return ""


def cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool, window: int | None, scale: float
) -> jax.Array:
    """Compute cuDNN's flash attention; see `cudnn_problem` for its limits."""
    out: jax.Array = jax.nn.dot_product_attention(
        jnp.asarray(q),
        jnp.asarray(k),
        jnp.asarray(v),
        scale=scale,
        is_causal=causal,
        # theirs counts the keys before the query's own
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
    return out
