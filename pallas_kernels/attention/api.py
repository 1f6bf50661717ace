"""Public functions of attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.arguments import Choice, Number, resolve_backend, sm_count, without_derivative
from pallas_kernels.attention import checks
from pallas_kernels.attention.config import DecodeConfig, PrefillConfig, choose_decode
from pallas_kernels.attention.launch import (
    Launch,
    decode_spec,
    run_decode,
    run_paged_prefill,
    run_prefill,
)
from pallas_kernels.attention.specs import GROUP_ROWS, UNBOUNDED, check_kernel_sizes, page_problem
from pallas_kernels.capability import Backend

Operand = Any  # an array of jax or NumPy; checked here, with the argument's name

Rows = Any  # a whole number or int32 [B], concrete or traced


def prefill_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    causal: bool = True,
    window: Number | None = None,
    q_offset: Rows = 0,
    kv_lengths: Rows | None = None,
    config: PrefillConfig | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Attend from T queries of each row to S keys: a prompt, or one chunk of it over its past.

    Query t of row b is at position q_offset[b] + t, key s at s. It sees key s if s < kv_lengths[b],
    with `causal` if s is not beyond it, with `window` if s is one of the last `window` positions. A
    query that sees no key gives 0. Scores are scaled by 1 / sqrt(D).

    Query heads [g * Hq / Hkv, (g + 1) * Hq / Hkv) share KV head g. `window`, `q_offset` and
    `kv_lengths` do not recompile. NumPy and Python numbers are checked, jax arrays clamped.

    Args:
      q: [B, T, Hq, D], bf16, f16 or (reference only) f32.
      k: [B, S, Hkv, D] of the same dtype; values beyond `kv_lengths` may be NaN.
      v: like k.
      causal: whether a query sees no key beyond its position.
      window: positions seen, with a query's own, from 1; None: all. Needs `causal`.
      q_offset: of the first query, below 2**30 in magnitude, one for all rows or int32 [B];
        negative if keys begin after queries.
      kv_lengths: keys of each row, from 0 to S, likewise; S by default.
      config: tiles instead of `choose_prefill`.
      backend: "auto" is "sm90" if it can run and D is 64 or 128, else "reference"; "sm90" never
        falls back; "interpret" runs the kernel on a CPU.

    Raises:
      ValueError: an argument outside its range, or unsupported sizes.
      KernelUnavailable: the device cannot run `backend`.
      NotImplementedError: differentiation.
    """
    checks.check_arrays(
        q=(q, 4, "[B, T, Hq, D]"), k=(k, 4, "[B, S, Hkv, D]"), v=(v, 4, "[B, S, Hkv, D]")
    )
    if v.shape != k.shape:
        raise ValueError(f"v of shape {v.shape}: expected {k.shape} as k")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k of shape {k.shape}: expected B={q.shape[0]} as in q")
    checks.check_heads(q.shape[2], k.shape[2], q.shape[3], k.shape[3])
    bounds = _prefill_bounds(q, k.shape[1], causal, window, q_offset, kv_lengths)
    launch = Launch(
        backend=_resolve(backend, _size_problem(q.shape[3], str(q.dtype))),
        causal=causal,
        prefill=config,
    )
    arrays = without_derivative("prefill_attention", *map(jnp.asarray, (q, k, v)))
    out: jax.Array = run_prefill(bounds, *arrays, launch=launch)
    return out


def paged_prefill_attention(
    q: Operand,
    k_pages: Operand,
    v_pages: Operand,
    block_tables: Operand,
    *,
    q_offset: Rows,
    kv_lengths: Rows,
    window: Number | None = None,
    soft_cap: float | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Attend causally from T queries of each row to its keys in pages.

    As `prefill_attention`; key s of row b is row s % page of page block_tables[b, s // page]. For
    the kernel all pages of the tables are gathered first.

    Args:
      q: bf16, f16 or (reference only) f32.
      k_pages: [P, page, Hkv, D] of the same dtype; rows beyond a length may be NaN.
      block_tables: page numbers below P; those beyond a row's length are not followed.
      kv_lengths: keys of each row, from 0 to max_pages * page, one for all or int32 [B].
      window: as `prefill_attention`.
      soft_cap: scores s become soft_cap * tanh(s / soft_cap), above 0, by the reference alone.

    Raises:
      ValueError: as `prefill_attention`.
      KernelUnavailable: as `prefill_attention`.
      NotImplementedError: as `prefill_attention`.
    """
    _check_pages(q, (4, "[B, T, Hq, D]"), k_pages, v_pages, block_tables)
    launch = Launch(
        backend=_resolve(backend, _size_problem(q.shape[3], str(q.dtype)), soft_cap),
        soft_cap=soft_cap,
    )
    keys = block_tables.shape[1] * k_pages.shape[1]
    bounds = _prefill_bounds(q, keys, True, window, q_offset, kv_lengths)
    arrays = without_derivative("paged_prefill_attention", *map(jnp.asarray, (q, k_pages, v_pages)))
    out: jax.Array = run_paged_prefill(bounds, block_tables, *arrays, launch=launch)
    return out


def decode_attention(
    q: Operand,
    k_pages: Operand,
    v_pages: Operand,
    block_tables: Operand,
    lengths: Rows,
    *,
    window: Number | None = None,
    soft_cap: float | None = None,
    config: DecodeConfig | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Attend from each sequence's newest token to its keys in pages.

    Token i of sequence b is row i % page of page block_tables[b, i // page]. The query is token
    lengths[b] - 1. Length 0 gives 0.

    Args:
      q: [B, Hq, D], bf16, f16 or (reference only) f32.
      k_pages: [P, page, Hkv, D] of the same dtype; rows beyond a length may be NaN.
      block_tables: page numbers below P; those beyond a length are not read.
      lengths: tokens, from 0 to max_pages * page, one for all or int32 [B].
      window: tokens seen, with a query's own, from 1; None: all.
      config: tiles and splits instead of `choose_decode`.
      backend: "auto" is "sm90" if it can run and supports the sizes (D of 64 or 128, pages of 16,
        32 or a multiple of 64, up to 64 query heads per KV head), else "reference".

    Raises:
      ValueError: an argument outside its range, or unsupported sizes.
      KernelUnavailable: the device cannot run `backend`.
      NotImplementedError: differentiation.
    """
    _check_pages(q, (3, "[B, Hq, D]"), k_pages, v_pages, block_tables)
    rows, capacity = q.shape[0], block_tables.shape[1] * k_pages.shape[1]
    length = checks.per_row("lengths", lengths, rows, 0, capacity)
    bounds = checks.stack_bounds(length - 1, length, checks.widths(window, rows, causal=True))
    chosen = _resolve(backend, _decode_problem(q, k_pages), soft_cap)
    if chosen == "reference":
        config = None
    elif config is None:
        spec = decode_spec(q, k_pages, block_tables)
        config = choose_decode(spec, sm_count=sm_count(chosen))
    arrays = without_derivative("decode_attention", *map(jnp.asarray, (q, k_pages, v_pages)))
    launch = Launch(backend=chosen, soft_cap=soft_cap, decode=config)
    out: jax.Array = run_decode(bounds, block_tables, *arrays, launch=launch)
    return out


def _check_pages(q: Any, of_q: tuple[int, str], k_pages: Any, v_pages: Any, tables: Any) -> None:
    checks.check_arrays(
        q=(q, *of_q),
        k_pages=(k_pages, 4, "[P, page, Hkv, D]"),
        v_pages=(v_pages, 4, "[P, page, Hkv, D]"),
    )
    if v_pages.shape != k_pages.shape:
        raise ValueError(f"v_pages of shape {v_pages.shape}: expected {k_pages.shape} as k_pages")
    checks.check_heads(q.shape[-2], k_pages.shape[2], q.shape[-1], k_pages.shape[3])
    checks.check_tables(tables, q.shape[0])


def _prefill_bounds(
    q: Any, keys: int, causal: bool, window: Any, q_offset: Any, kv_lengths: Any
) -> Any:
    rows, limit = q.shape[0], UNBOUNDED - 1 - q.shape[1]
    offset = checks.per_row("q_offset", q_offset, rows, -limit, limit)
    length = checks.per_row("kv_lengths", keys if kv_lengths is None else kv_lengths, rows, 0, keys)
    return checks.stack_bounds(offset, length, checks.widths(window, rows, causal=causal))


def _resolve(backend: str, problem: str, soft_cap: float | None = None) -> Backend:
    if soft_cap is not None:
        if not soft_cap > 0:
            raise ValueError(f"soft_cap={soft_cap}: expected a number above 0, or None")
        if backend not in ("auto", "reference"):
            raise ValueError(f"backend={backend!r}: expected 'auto' or 'reference' with a soft cap")
        return "reference"
    chosen = resolve_backend(backend)
    if problem and chosen != "reference":
        if backend != "auto":
            raise ValueError(problem)
        return "reference"
    return chosen


def _size_problem(dim: int, dtype: str) -> str:
    try:
        check_kernel_sizes(dim, dtype, dtype)
    except ValueError as error:
        return str(error)
    return ""


def _decode_problem(q: Any, k_pages: Any) -> str:
    if problem := _size_problem(q.shape[2], str(q.dtype)):
        return problem
    group = q.shape[1] // k_pages.shape[2]
    if group > GROUP_ROWS:
        return f"q with {group} query heads a KV head: expected at most {GROUP_ROWS}"
    page = page_problem(k_pages.shape[1])
    return "" if page is None else f"k_pages: {page}"
