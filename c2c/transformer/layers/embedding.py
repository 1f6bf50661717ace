"""Embedding table, read by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pallas_kernels.quantized_gemm import Kind, unpack_int4

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int32

__all__ = ["Table", "lookup", "widen"]

Rows = Callable[[Any, Any], jax.Array]
"""(array [V, C] in any memory, ids [T]) -> [T, C] in device memory."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Embeddings [V, hidden], perhaps padded; the head's own array if tied.

    Quantised: `scales` and `offsets` by row, [V, G]; the head's are [G, V].
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
    """Return the embeddings of tokens."""
    vectors = rows(table.data, ids)
    if table.kind is not None:
        scales, offsets = (
            None if array is None else rows(array, ids).T for array in (table.scales, table.offsets)
        )
        vectors = widen(vectors, scales, offsets, kind=table.kind, group=table.group)
    return vectors[:, : table.columns].astype(dtype)


def widen(data: Any, scales: Any, offsets: Any, *, kind: Kind, group: int | None) -> jax.Array:
    """Return quantised weights as float32, with padding."""
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
