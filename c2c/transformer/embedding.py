"""The table of embeddings, of which a call needs a row a token and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.quantized_gemm import Kind, unpack_int4

__all__ = ["Table", "lookup", "widen"]

Rows = Callable[[Any, Any], jax.Array]
"""(array [V, C] in any memory, ids [T]) -> [T, C] in device memory."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Embeddings [V, hidden] in host or device memory; where tied, the head's own array.

    Rows and columns may be padded. Of a quantised table `scales` and `offsets` are by row, [V, G],
    since what a token needs must lie together; the head's, [G, V], are arrays of their own.
    """

    data: Any  # array or HostArray
    scales: Any = None
    offsets: Any = None
    columns: int = field(metadata={"static": True})
    kind: Kind | None = field(default=None, metadata={"static": True})
    group: int | None = field(default=None, metadata={"static": True})


def lookup(
    table: Table, ids: Int32[Array, " t"], rows: Rows, *, dtype: Any
) -> Float[Array, "t hidden"]:
    """Return the embeddings of some tokens.

    Args:
      table: of a model.
      ids: tokens, in its vocabulary.
      rows: takes rows out of an array where that is.
      dtype: of the result.
    """
    found = rows(table.data, ids)
    if table.kind is not None:
        scales, offsets = (
            None if array is None else rows(array, ids).T for array in (table.scales, table.offsets)
        )
        found = widen(found, scales, offsets, kind=table.kind, group=table.group)
    return found[:, : table.columns].astype(dtype)


def widen(data: Any, scales: Any, offsets: Any, *, kind: Kind, group: int | None) -> jax.Array:
    """Return quantised weights in device memory as float32, padding included.

    Args:
      data: stored numbers [.., N, K], as `pallas_kernels.quantized_gemm` packs them.
      scales: [.., G, N], more than one a group if padded.
      offsets: the same, or None.
      kind: of the numbers.
      group: numbers that share a scale; None for all of a row.
    """
    integers = unpack_int4(data) if kind == "int4" else data
    *front, n, k = integers.shape
    groups = k // (group or k)

    def by_row(array: jax.Array) -> jax.Array:
        return jnp.swapaxes(array[..., :groups, :], -1, -2).astype(jnp.float32)[..., None]

    values = integers.astype(jnp.float32).reshape(*front, n, groups, k // groups)
    values = values * by_row(scales)
    if offsets is not None:
        values = values + by_row(offsets)
    widened: jax.Array = values.reshape(*front, n, k)
    return widened
