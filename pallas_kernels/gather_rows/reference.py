"""Reference of the gather in jax.numpy, on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.array_types import Array, Int, Shaped
from pallas_kernels.gather_rows.specs import GatherRows


def gather(
    table: Shaped[Array, "*stack rows row_columns"],
    ids: Int[Array, " tokens"],
    layer: jax.Array | int = 0,
    *,
    spec: GatherRows,
) -> Shaped[Array, "tokens columns"]:
    """Return the rows `ids`, clamped to the table, cut to `spec.columns`."""
    ids = jnp.clip(ids, 0, spec.rows - 1)
    found = table[ids] if spec.layers is None else table[layer, ids]
    return found[:, : spec.columns]
