"""`gather_rows`: checks the arguments, chooses backend and configuration, launches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    clusters_and_layer,
    dtype_name,
    interpret_settings,
    operand,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.counting import round_up
from pallas_kernels.gather_rows.specs import DTYPES, ROW_BYTES, Config, GatherRows
from pallas_kernels.host_memory import HostArray, host_ref, in_host_memory


def gather_rows(
    table: Any,
    ids: Any,
    *,
    layer: Number | None = None,
    columns: int | None = None,
    out_dtype: Any = None,
    sm_limit: Number | None = None,
    config: Config | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Fetch rows of a table that stays in host memory, as an embedding layer does.

    Rows cross the link as they are stored, once for each id. `ids`, `layer` and `sm_limit` are
    run-time values: changing them does not recompile, and inside `jit` they may be traced. A
    concrete value is checked here; a traced one is clamped.

    Args:
      table: [V, C] or a stack [L, V, C], `HostArray` or array in host or device memory, of a type
        of `DTYPES`. A row must be a multiple of 16 bytes: pad C.
      ids: integers [T], T from 1: indices of rows, in [0, V).
      layer: index into a stack, in [0, L); required for a stack, None for a single table.
      columns: number of leading columns to return, without padding; None for all C.
      out_dtype: type of the result, converted in device memory; None for the table's type.
      sm_limit: SMs the launch may use, from 1 to the device's number, which is the default.
      config: pieces, stages and grid instead of the defaults.
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" raises rather than fall
        back; "interpret" runs the same kernel step by step on a CPU (slow, for tests);
        "reference" is jax.numpy, which on a GPU copies the whole table to device memory (on a CPU
        it copies nothing).

    Returns:
      The rows [T, columns], in device memory; bit for bit those of the table.

    Raises:
      ValueError: an argument is outside its range; the message names it, its value and the range.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.
    """
    chosen = resolve_backend(backend)
    data = _table(table)
    config = Config(sm_count=sm_count(chosen)) if config is None else config
    spec, kept = _spec(data, _count(ids, data.shape[-2]), columns, config)
    scalars = clusters_and_layer(
        sm_limit, layer, cluster=1, sm_count=config.sm_count, layers=spec.layers
    )
    (data,) = without_derivative("gather_rows", operand(data, chosen))
    out: jax.Array = launch(
        data,
        _int32(ids),
        scalars,
        spec=spec,
        is_reference=chosen == "reference",
        interpret=interpret_settings(chosen),
        columns=kept,
        out_dtype=spec.dtype if out_dtype is None else dtype_name("out_dtype", out_dtype),
    )
    return out


@functools.partial(
    jax.jit, static_argnames=("spec", "is_reference", "interpret", "columns", "out_dtype")
)
def launch(
    table: jax.Array,
    ids: jax.Array,
    scalars: jax.Array,
    *,
    spec: GatherRows,
    is_reference: bool = False,
    interpret: Any = None,
    columns: int,
    out_dtype: str,
) -> jax.Array:
    """Run the kernel, or the same in jax.numpy; cut and convert the result."""
    if is_reference:
        ids = jnp.clip(ids, 0, spec.rows - 1)
        out = table[ids] if spec.layers is None else table[scalars[1], ids]
    else:
        from pallas_kernels.gather_rows import sm90

        out = sm90.build(spec, interpret=interpret)(host_ref(table), ids, scalars)
    return out[:, :columns].astype(jnp.dtype(out_dtype))


def _table(table: Any) -> Any:
    """Return the array of a table, or of a stack of them."""
    data = table.data if isinstance(table, HostArray) else table
    if not isinstance(data, jax.Array | np.ndarray):
        raise ValueError(f"table of type {type(data).__name__}: expected an array or HostArray")
    if data.ndim not in (2, 3) or 0 in data.shape:
        sizes = "x".join(map(str, data.shape)) or "scalar"
        raise ValueError(f"table of shape {sizes}: expected [V, C] or [L, V, C], none of them 0")
    if str(data.dtype) not in DTYPES:
        raise ValueError(f"table of dtype {data.dtype}: expected one of {', '.join(DTYPES)}")
    nbytes = data.shape[-1] * data.dtype.itemsize
    if nbytes % ROW_BYTES:
        unit = ROW_BYTES // data.dtype.itemsize
        raise ValueError(
            f"table with C={data.shape[-1]}: expected a multiple of {unit}, since a row of "
            f"{data.dtype} must be a multiple of {ROW_BYTES} bytes and has {nbytes}. Pad the "
            f"columns and cut the result with columns={data.shape[-1]}"
        )
    return data


def _count(ids: Any, rows: int) -> int:
    """Return the number of ids; refuse concrete ones outside the table."""
    if not isinstance(ids, jax.Array | np.ndarray) or ids.ndim != 1 or ids.shape[0] < 1:
        shape = getattr(ids, "shape", type(ids).__name__)
        raise ValueError(f"ids: got {shape}, expected an array [T >= 1]")
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"ids of dtype {ids.dtype}: expected integers")
    if isinstance(ids, jax.Array) and in_host_memory(ids):
        raise ValueError("ids in host memory: expected device memory; only the table may stay")
    if not isinstance(ids, jax.core.Tracer):
        known = np.asarray(ids)
        outside = known[(known < 0) | (known >= rows)]
        if outside.size:
            raise ValueError(f"ids: got {outside[0]}, expected numbers from 0 to {rows - 1}")
    return int(ids.shape[0])


def _int32(ids: Any) -> jax.Array:
    """Return the ids as int32; wider types are clamped first, so that none wraps around."""
    ids = jnp.asarray(ids)
    if ids.dtype in (jnp.uint32, jnp.int64, jnp.uint64):
        ids = jnp.clip(ids, 0, 2**31 - 1)
    narrow: jax.Array = ids.astype(jnp.int32)
    return narrow


def _spec(data: Any, tokens: int, columns: Any, config: Config) -> tuple[GatherRows, int]:
    """Return (description of the kernel's gather, number of columns for the caller)."""
    stored = int(data.shape[-1])
    kept = stored if columns is None else columns
    if type(kept) is not int or not 1 <= kept <= stored:
        raise ValueError(f"columns={columns!r}: expected None or a number from 1 to C={stored}")
    spec = GatherRows(
        tokens=tokens,
        rows=int(data.shape[-2]),
        row_columns=stored,
        columns=round_up(kept, ROW_BYTES // data.dtype.itemsize),
        dtype=str(data.dtype),
        layers=int(data.shape[0]) if data.ndim == 3 else None,
        config=config,
    )
    return spec, kept
