"""Launch of attention on checked arrays."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.arguments import interpret_settings
from pallas_kernels.attention import reference
from pallas_kernels.attention.config import DecodeConfig, PrefillConfig, choose_prefill
from pallas_kernels.attention.partial import merge_stacked
from pallas_kernels.attention.specs import ROW_MULTIPLE, Decode, Prefill
from pallas_kernels.capability import Backend
from pallas_kernels.integer_math import round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Compile-time arguments of a call."""

    backend: Backend
    soft_cap: float | None = None  # of the reference
    causal: bool = True
    prefill: PrefillConfig | None = None
    decode: DecodeConfig | None = None


@functools.partial(jax.jit, static_argnames="launch")
def run_prefill(
    bounds: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, *, launch: Launch
) -> jax.Array:
    """Pad queries and keys to whole swizzled rows, run, cut."""
    queries = q.shape[1]
    if launch.backend == "reference":
        done = reference.prefill(q, k, v, bounds, causal=launch.causal)
        rows: jax.Array = done.out.astype(q.dtype)
        return rows
    from pallas_kernels.attention import sm90_prefill

    q, k, v = (_pad_rows(array) for array in (q, k, v))
    spec = prefill_spec(q, k, launch.causal)
    config = launch.prefill or choose_prefill(spec)
    kernel = sm90_prefill.build(spec, config, interpret=interpret_settings(launch.backend))
    return kernel(bounds, q, k, v)[:, :queries]


@functools.partial(jax.jit, static_argnames="launch")
def run_paged_prefill(
    bounds: jax.Array,
    tables: jax.Array,
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    *,
    launch: Launch,
) -> jax.Array:
    """Read pages in place (reference), or gather them."""
    if launch.backend == "reference":
        done = reference.paged_prefill(
            q, k_pages, v_pages, tables, bounds, soft_cap=launch.soft_cap
        )
        read: jax.Array = done.out.astype(q.dtype)
        return read
    gathered = (gather_pages(pages, tables) for pages in (k_pages, v_pages))
    out: jax.Array = run_prefill(bounds, q, *gathered, launch=launch)
    return out


def gather_pages(pages: jax.Array, tables: jax.Array) -> jax.Array:
    """Return each row's pages concatenated: [B, max_pages * page, Hkv, D]."""
    there = jnp.clip(tables, 0, pages.shape[0] - 1)
    return pages[there].reshape(tables.shape[0], -1, *pages.shape[2:])


@functools.partial(jax.jit, static_argnames="launch")
def run_decode(
    bounds: jax.Array,
    tables: jax.Array,
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    *,
    launch: Launch,
) -> jax.Array:
    """Group query heads by KV head, run, merge splits."""
    if launch.decode is None:
        part = reference.decode(q, k_pages, v_pages, tables, bounds, soft_cap=launch.soft_cap)
        read: jax.Array = part.out.astype(q.dtype)
        return read
    from pallas_kernels.attention import sm90_decode

    batch, heads, dim = q.shape
    spec = decode_spec(q, k_pages, tables)
    group = heads // spec.kv_heads
    grouped = q.reshape(batch * spec.kv_heads, group, dim)
    grouped = jnp.pad(grouped, ((0, 0), (0, spec.group - group), (0, 0)))
    kernel = sm90_decode.build(spec, launch.decode, interpret=interpret_settings(launch.backend))
    out, lse = kernel(bounds, tables, grouped, k_pages, v_pages)
    parts = (launch.decode.splits, batch, heads)
    part = merge_stacked(out[:, :group].reshape(*parts, dim), lse[:, :group].reshape(*parts))
    merged: jax.Array = part.out.astype(q.dtype)
    return merged


def _pad_rows(array: jax.Array) -> jax.Array:
    missing = round_up(array.shape[1], ROW_MULTIPLE) - array.shape[1]
    return jnp.pad(array, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else array


def prefill_spec(q: jax.Array, k: jax.Array, causal: bool) -> Prefill:
    """Return the description of padded arrays."""
    return Prefill(
        batch=q.shape[0],
        queries=q.shape[1],
        keys=k.shape[1],
        heads=q.shape[2],
        kv_heads=k.shape[2],
        dim=q.shape[3],
        causal=causal,
        dtype=str(q.dtype),
    )


def decode_spec(q: Any, k_pages: Any, tables: Any) -> Decode:
    """Return decode arrays' description, the group padded to whole swizzled rows."""
    pages, page, kv_heads, dim = k_pages.shape
    group = q.shape[1] // kv_heads
    return Decode(
        batch=q.shape[0],
        kv_heads=kv_heads,
        group=group if group < ROW_MULTIPLE else round_up(group, ROW_MULTIPLE),
        dim=dim,
        pages=pages,
        page=page,
        table=tables.shape[1],
        dtype=str(q.dtype),
    )
