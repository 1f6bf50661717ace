"""Public functions of attention: check the arguments, choose a kernel, launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from pallas_kernels.arguments import Choice, Number, resolve_backend, sm_count, without_derivative
from pallas_kernels.attention import checks, library
from pallas_kernels.attention.config import DecodeConfig, PrefillConfig
from pallas_kernels.attention.heuristics import choose_decode
from pallas_kernels.attention.launch import (
    Launch,
    decode_spec,
    gather_pages,
    run_decode,
    run_paged_prefill,
    run_prefill,
)
from pallas_kernels.attention.partial import Partial
from pallas_kernels.attention.specs import (
    GROUP_ROWS,
    UNBOUNDED,
    check_kernel_sizes,
    page_problem,
)
from pallas_kernels.capability import Backend, KernelUnavailable, capabilities

Operand = Any  # an array of jax or NumPy; checked here, with the argument's name

Rows = Any  # a whole number or int32 [B], concrete or traced

PrefillChoice = Literal["auto", "cudnn", "sm90", "interpret", "reference"]


def prefill_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    causal: bool = True,
    window: Number | None = None,
    q_offset: Rows = 0,
    kv_lengths: Rows | None = None,
    scale: float | None = None,
    config: PrefillConfig | None = None,
    backend: PrefillChoice = "auto",
) -> jax.Array:
    """Attend from T queries of each row to S keys: a prompt, or one chunk of it over its past.

    Query t of row b is at position q_offset[b] + t, key s at position s. The query sees key s
    if s < kv_lengths[b], and with `causal` if s is not beyond its position, and with `window` if s
    is one of the last `window` positions up to its own. A query that sees no key gives 0.

    Query heads h of [g * Hq / Hkv, (g + 1) * Hq / Hkv) share KV head g. `window`, `q_offset` and
    `kv_lengths` are run-time values: changing them does not recompile (but cuDNN compiles a window
    in). NumPy and Python numbers are checked, arrays of jax are clamped to their range.

    Args:
      q: queries, bf16, f16 or (reference only) f32.
      k: keys of the same dtype; values beyond `kv_lengths` may be anything, NaN included.
      v: values, like k.
      causal: True if a query sees no key beyond its own position.
      window: positions that a query sees, its own included, from 1; None for all. Needs `causal`.
      q_offset: position of the first query, any whole number below 2**30 in magnitude, one for all
        rows or int32 [B]; negative where the keys begin after the queries.
      kv_lengths: keys of each row, from 0 to S, likewise; S by default.
      scale: factor of the scores, above 0, compiled in; 1 / sqrt(D) by default.
      config: tiles of our kernel instead of `heuristics.choose_prefill`.
      backend: "auto" is on sm_90 "cudnn" if `library.cudnn_problem` finds no problem, else
        "sm90" if it supports the sizes (D of 64 or 128), else "reference"; the others
        raise rather than fall back. "interpret" runs our kernel step by step on a CPU.

    Returns:
      The rows in the dtype of q, within `numerics.attention_error_bound` of the exact result.

    Raises:
      ValueError: an argument is outside its range, or the kernel does not support these sizes.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.
    """
    plain = isinstance(q_offset, int) and q_offset == 0 and kv_lengths is None
    bounds, scale = _prefill_arguments(q, k, v, causal, window, q_offset, kv_lengths, scale)
    q, k, v = without_derivative("prefill_attention", *map(jnp.asarray, (q, k, v)))
    if backend == "cudnn" or (backend == "auto" and resolve_backend("auto") == "sm90"):
        problem = "config is for our kernel"
        if config is None:
            problem = library.cudnn_problem(q, k, causal=causal, window=window, plain=plain)
        if not problem:
            return library.cudnn(q, k, v, causal=causal, window=window, scale=scale)
        if backend == "cudnn":
            instead = tuple(name for name, lack in capabilities().items() if not lack)
            raise KernelUnavailable("cudnn", problem, instead)
    dtype = str(q.dtype)
    launch = _prefill_launch(q, causal, scale, dtype, config, backend)
    out: jax.Array = run_prefill(bounds, q, k, v, launch=launch)[0]
    return out


def partial_prefill(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    causal: bool = True,
    window: Number | None = None,
    q_offset: Rows = 0,
    kv_lengths: Rows | None = None,
    scale: float | None = None,
    config: PrefillConfig | None = None,
    backend: Choice = "auto",
) -> Partial:
    """Attend to a part of the keys, with the log-sum-exp that `merge_partial` needs.

    As `prefill_attention`, with positions counted from the first key of this part: `q_offset` is
    the position of the first query minus that of the first key, negative for a part that begins
    after it. No library kernel supports this (see `library`).

    Returns:
      `out` [B, T, Hq, D] and `lse` [B, T, Hq] in float32; 0 and -inf where no key was seen.

    Raises:
      ValueError: as `prefill_attention`.
      KernelUnavailable: as `prefill_attention`.
      NotImplementedError: as `prefill_attention`.
    """
    bounds, scale = _prefill_arguments(q, k, v, causal, window, q_offset, kv_lengths, scale)
    q, k, v = without_derivative("partial_prefill", *map(jnp.asarray, (q, k, v)))
    launch = _prefill_launch(q, causal, scale, "float32", config, backend)
    out, lse = run_prefill(bounds, q, k, v, launch=launch)
    return Partial(out=out, lse=lse)


def paged_prefill_attention(
    q: Operand,
    k_pages: Operand,
    v_pages: Operand,
    block_tables: Operand,
    *,
    q_offset: Rows,
    kv_lengths: Rows,
    window: Number | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    config: PrefillConfig | None = None,
    backend: PrefillChoice = "auto",
) -> jax.Array:
    """Attend causally from T queries of each row to its keys in pages.

    As `prefill_attention`; key s of row b is row s % page of page block_tables[b, s // page]. The
    reference reads the pages that a query sees in place. The kernels support no block tables:
    for them all pages of the tables are gathered first.

    Args:
      q: queries, bf16, f16 or (reference only) f32.
      k_pages: pool of pages of the same dtype; rows beyond a length may be anything, NaN included.
      v_pages: values, like k_pages.
      block_tables: page numbers below P; entries beyond a row's length are not followed.
      q_offset: position of the first query, as `prefill_attention`.
      kv_lengths: keys of each row, from 0 to max_pages * page, one for all or int32 [B].
      window: as `prefill_attention`.
      scale: as `prefill_attention`.
      soft_cap: scores s become soft_cap * tanh(s / soft_cap), above 0, compiled in, by the
        reference alone; None for no cap.
      config: as `prefill_attention`.
      backend: as `prefill_attention`.

    Returns:
      The rows in the dtype of q, within `numerics.attention_error_bound` of the exact result.

    Raises:
      ValueError: as `prefill_attention`.
      KernelUnavailable: as `prefill_attention`.
      NotImplementedError: as `prefill_attention`.
    """
    checks.check_arrays(
        q=(q, 4, "[B, T, Hq, D]"),
        k_pages=(k_pages, 4, "[P, page, Hkv, D]"),
        v_pages=(v_pages, 4, "[P, page, Hkv, D]"),
    )
    if v_pages.shape != k_pages.shape:
        raise ValueError(f"v_pages of shape {v_pages.shape}: expected {k_pages.shape} as k_pages")
    checks.check_heads(q.shape[2], k_pages.shape[2], q.shape[3], k_pages.shape[3])
    checks.check_tables(block_tables, q.shape[0])
    backend = _capped(backend, soft_cap)
    if backend == "cudnn" or (backend == "auto" and resolve_backend("auto") == "sm90"):
        gathered = (gather_pages(jnp.asarray(pages), block_tables) for pages in (k_pages, v_pages))
        return prefill_attention(
            q, *gathered, window=window, q_offset=q_offset, kv_lengths=kv_lengths, scale=scale,
            config=config, backend=backend,
        )  # fmt: skip
    keys = block_tables.shape[1] * k_pages.shape[1]
    bounds, scale = _prefill_bounds(q, keys, True, window, q_offset, kv_lengths, scale)
    q, k_pages, v_pages = without_derivative(
        "paged_prefill_attention", *map(jnp.asarray, (q, k_pages, v_pages))
    )
    launch = _prefill_launch(q, True, scale, str(q.dtype), config, backend)
    launch = replace(launch, soft_cap=soft_cap)
    out: jax.Array = run_paged_prefill(bounds, block_tables, q, k_pages, v_pages, launch=launch)
    return out


def decode_attention(
    q: Operand,
    k_pages: Operand,
    v_pages: Operand,
    block_tables: Operand,
    lengths: Rows,
    *,
    window: Number | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    config: DecodeConfig | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Attend from the newest token of each sequence to all its keys in pages.

    Token i of sequence b is row i % page of page block_tables[b, i // page]. The query is token
    lengths[b] - 1; it sees the last `window` tokens, or all. A sequence of length 0 gives 0.

    Args:
      q: one query a sequence, bf16, f16 or (reference only) f32.
      k_pages: pool of pages of the same dtype; rows beyond a length may be anything, NaN included.
      v_pages: values, like k_pages.
      block_tables: page numbers below P; entries beyond a sequence's length are not read.
      lengths: tokens of each sequence, from 0 to max_pages * page, one for all or int32 [B].
      window: tokens that a query sees, its own included, from 1; None for all.
      scale: factor of the scores, above 0, compiled in; 1 / sqrt(D) by default.
      soft_cap: as `paged_prefill_attention`.
      config: tiles and splits instead of `heuristics.choose_decode`.
      backend: "auto" is "sm90" if it can run and supports the sizes (D of 64 or 128, pages of 16,
        32 or a multiple of 64 tokens, up to 64 query heads per KV head), else "reference".

    Returns:
      The rows in the dtype of q, within `numerics.attention_error_bound` of the exact result.

    Raises:
      ValueError: an argument is outside its range, or sizes that the kernel does not support.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.
    """
    part = partial_decode(
        q,
        k_pages,
        v_pages,
        block_tables,
        lengths,
        window=window,
        scale=scale,
        soft_cap=soft_cap,
        config=config,
        backend=backend,
    )
    out: jax.Array = part.out.astype(q.dtype)
    return out


def partial_decode(
    q: Operand,
    k_pages: Operand,
    v_pages: Operand,
    block_tables: Operand,
    lengths: Rows,
    *,
    q_positions: Rows | None = None,
    window: Number | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    config: DecodeConfig | None = None,
    backend: Choice = "auto",
) -> Partial:
    """Attend to a part of each sequence, with the log-sum-exp for `merge_partial`.

    As `decode_attention`, for the keys in these tables.

    Args:
      q: one query a sequence.
      k_pages: pool of pages.
      v_pages: values, like k_pages.
      block_tables: pages of this part.
      lengths: tokens of this part.
      q_positions: position of the query minus that of the part's first key, one for all or int32
        [B]; lengths - 1 by default. It limits `window`, and keys beyond it are not seen.
      window: as `decode_attention`.
      scale: as `decode_attention`.
      soft_cap: as `paged_prefill_attention`.
      config: as `decode_attention`.
      backend: as `decode_attention`.

    Returns:
      `out` [B, Hq, D] and `lse` [B, Hq] in float32; 0 and -inf where no key was seen.

    Raises:
      ValueError: as `decode_attention`.
      KernelUnavailable: as `decode_attention`.
      NotImplementedError: as `decode_attention`.
    """
    checks.check_arrays(
        q=(q, 3, "[B, Hq, D]"),
        k_pages=(k_pages, 4, "[P, page, Hkv, D]"),
        v_pages=(v_pages, 4, "[P, page, Hkv, D]"),
    )
    if v_pages.shape != k_pages.shape:
        raise ValueError(f"v_pages of shape {v_pages.shape}: expected {k_pages.shape} as k_pages")
    rows = q.shape[0]
    checks.check_heads(q.shape[1], k_pages.shape[2], q.shape[2], k_pages.shape[3])
    checks.check_tables(block_tables, rows)
    held = block_tables.shape[1] * k_pages.shape[1]
    length = checks.per_row("lengths", lengths, rows, 0, held)
    position = (
        length - 1
        if q_positions is None
        else checks.per_row("q_positions", q_positions, rows, 1 - UNBOUNDED, UNBOUNDED - 1)
    )
    bounded = checks.window_bound(window, causal=True)
    width = checks.per_row("window", bounded, rows, 1, UNBOUNDED)
    bounds = checks.stack_bounds(position, length, width)
    scale = checks.check_scale(scale, q.shape[2])
    chosen = _resolve(_capped(backend, soft_cap), _decode_problem(q, k_pages))
    if chosen != "reference" and config is None:
        config = choose_decode(
            decode_spec(q, k_pages, block_tables, scale), sm_count=sm_count(chosen)
        )
    q, k_pages, v_pages = without_derivative(
        "decode_attention", *map(jnp.asarray, (q, k_pages, v_pages))
    )
    config = None if chosen == "reference" else config
    launch = Launch(backend=chosen, scale=scale, soft_cap=soft_cap, decode=config)
    part: Partial = run_decode(bounds, block_tables, q, k_pages, v_pages, launch=launch)
    return part


def _prefill_arguments(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    window: Any,
    q_offset: Any,
    kv_lengths: Any,
    scale: Any,
) -> tuple[Any, float]:
    """Return (bounds, scale) of checked arguments."""
    checks.check_arrays(
        q=(q, 4, "[B, T, Hq, D]"), k=(k, 4, "[B, S, Hkv, D]"), v=(v, 4, "[B, S, Hkv, D]")
    )
    if v.shape != k.shape:
        raise ValueError(f"v of shape {v.shape}: expected {k.shape} as k")
    rows = q.shape[0]
    if k.shape[0] != rows:
        raise ValueError(f"k of shape {k.shape}: expected B={rows} as in q")
    checks.check_heads(q.shape[2], k.shape[2], q.shape[3], k.shape[3])
    return _prefill_bounds(q, k.shape[1], causal, window, q_offset, kv_lengths, scale)


def _prefill_bounds(
    q: Any,
    keys: int,
    causal: bool,
    window: Any,
    q_offset: Any,
    kv_lengths: Any,
    scale: Any,
) -> tuple[Any, float]:
    """Return (bounds, scale) of checked arrays with room for so many keys."""
    rows = q.shape[0]
    limit = UNBOUNDED - 1 - q.shape[1]
    offset = checks.per_row("q_offset", q_offset, rows, -limit, limit)
    length = checks.per_row("kv_lengths", keys if kv_lengths is None else kv_lengths, rows, 0, keys)
    bounded = checks.window_bound(window, causal=causal)
    width = checks.per_row("window", bounded, rows, 1, UNBOUNDED)
    return checks.stack_bounds(offset, length, width), checks.check_scale(scale, q.shape[3])


def _prefill_launch(
    q: jax.Array,
    causal: bool,
    scale: float,
    out_dtype: str,
    config: PrefillConfig | None,
    backend: str,
) -> Launch:
    problem = _size_problem(q.shape[3], str(q.dtype))
    chosen = _resolve(backend, problem)
    return Launch(backend=chosen, scale=scale, causal=causal, out_dtype=out_dtype, prefill=config)


def _capped[Name: str](backend: Name, soft_cap: float | None) -> Name | Literal["reference"]:
    """Return the backend for scores with or without a cap."""
    if soft_cap is None:
        return backend
    if not soft_cap > 0:
        raise ValueError(f"soft_cap={soft_cap}: expected a number above 0, or None")
    if backend not in ("auto", "reference"):
        raise ValueError(f"backend={backend!r}: expected 'auto' or 'reference' with a soft cap")
    return "reference"


def _resolve(backend: str, problem: ValueError | None) -> Backend:
    """Return the backend; "auto" is the reference for sizes that our kernels do not support."""
    chosen = resolve_backend(backend)
    if problem is None or chosen == "reference":
        return chosen
    if backend == "auto":
        return "reference"
    raise problem


def _size_problem(dim: int, dtype: str) -> ValueError | None:
    try:
        check_kernel_sizes(dim, dtype, "float32")
    except ValueError as error:
        return error
    return None


def _decode_problem(q: Any, k_pages: Any) -> ValueError | None:
    if (problem := _size_problem(q.shape[2], str(q.dtype))) is not None:
        return problem
    group = q.shape[1] // k_pages.shape[2]
    if group > GROUP_ROWS:
        return ValueError(f"q with {group} query heads a KV head: expected at most {GROUP_ROWS}")
    page = page_problem(k_pages.shape[1])
    return None if page is None else ValueError(f"k_pages: {page}")
