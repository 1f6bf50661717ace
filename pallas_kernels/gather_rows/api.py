"""`gather_rows`: checks of the arguments, the launch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    active_clusters,
    interpret_settings,
    launch_scalars,
    operand,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.gather_rows.specs import DTYPES, ROW_BYTES, GatherRows
from pallas_kernels.host_memory import HostArray, host_ref, in_host_memory


def gather_rows(
    table: Any, ids: Any, *, sm_limit: Number | None = None, backend: Choice = "auto"
) -> jax.Array:
    """Fetch rows of a table in host memory, as for embeddings.

    Rows cross the link once for each id. `ids` and `sm_limit` do not recompile; concrete values are
    checked, traced ones clamped.

    Args:
      table: [V, C], `HostArray` or array, of a type of `DTYPES`; a row is a multiple of 16 bytes.
      ids: integers [T], T from 1, in [0, V).
      sm_limit: SMs of the launch, from 1; all by default.
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" never falls back;
        "interpret" runs the kernel on a CPU; "reference" copies the table to a GPU.

    Returns:
      The rows [T, C], in device memory, bit for bit.

    Raises:
      ValueError: an argument outside its range.
      KernelUnavailable: no device for `backend`.
      NotImplementedError: differentiation.
    """
    chosen = resolve_backend(backend)
    data = _table(table)
    _check_ids(ids, data.shape[0])
    spec = GatherRows(
        tokens=int(ids.shape[0]),
        rows=int(data.shape[0]),
        columns=int(data.shape[1]),
        dtype=str(data.dtype),
        sm_count=sm_count(chosen),
    )
    active = active_clusters(sm_limit, cluster=1, sm_count=spec.sm_count)
    (data,) = without_derivative("gather_rows", operand(data, chosen))
    out: jax.Array = launch(
        data,
        _int32(ids),
        launch_scalars((active,)),
        spec=spec,
        is_reference=chosen == "reference",
        interpret=interpret_settings(chosen),
    )
    return out


@functools.partial(jax.jit, static_argnames=("spec", "is_reference", "interpret"))
def launch(
    table: jax.Array,
    ids: jax.Array,
    active: jax.Array,
    *,
    spec: GatherRows,
    is_reference: bool = False,
    interpret: Any = None,
) -> jax.Array:
    """Run the kernel on int32 ids, or jax.numpy."""
    if is_reference:
        return table[jnp.clip(ids, 0, spec.rows - 1)]
    from pallas_kernels.gather_rows import sm90

    return sm90.build(spec, interpret=interpret)(host_ref(table), ids, active)


def _table(table: Any) -> Any:
    data = table.data if isinstance(table, HostArray) else table
    if not isinstance(data, jax.Array | np.ndarray):
        raise ValueError(f"table of type {type(data).__name__}: expected an array or HostArray")
    if data.ndim != 2 or 0 in data.shape:
        sizes = "x".join(map(str, data.shape)) or "scalar"
        raise ValueError(f"table of shape {sizes}: expected [V, C], none of them 0")
    if str(data.dtype) not in DTYPES:
        raise ValueError(f"table of dtype {data.dtype}: expected one of {', '.join(DTYPES)}")
    nbytes = data.shape[1] * data.dtype.itemsize
    if nbytes % ROW_BYTES:
        raise ValueError(
            f"table with C={data.shape[1]}: expected a multiple of "
            f"{ROW_BYTES // data.dtype.itemsize}, since a row of {data.dtype} must be a multiple "
            f"of {ROW_BYTES} bytes and has {nbytes}. Pad the columns, and cut the result"
        )
    return data


def _check_ids(ids: Any, rows: int) -> None:
    if not isinstance(ids, jax.Array | np.ndarray) or ids.ndim != 1 or ids.shape[0] < 1:
        shape = getattr(ids, "shape", type(ids).__name__)
        raise ValueError(f"ids: got {shape}, expected an array [T >= 1]")
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"ids of dtype {ids.dtype}: expected integers")
    if isinstance(ids, jax.Array) and in_host_memory(ids):
        raise ValueError("ids in host memory: expected device memory; only the table may stay")
    if not isinstance(ids, jax.core.Tracer):
        values = np.asarray(ids)
        outside = values[(values < 0) | (values >= rows)]
        if outside.size:
            raise ValueError(f"ids: got {outside[0]}, expected numbers from 0 to {rows - 1}")


def _int32(ids: Any) -> jax.Array:
    """Return ids as int32; wider types are first clamped."""
    ids = jnp.asarray(ids)
    if ids.dtype in (jnp.uint32, jnp.int64, jnp.uint64):
        ids = jnp.clip(ids, 0, 2**31 - 1)
    narrow: jax.Array = ids.astype(jnp.int32)
    return narrow
