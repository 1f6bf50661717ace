"""Launch of a chosen configuration."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gemm import reference
from pallas_kernels.gemm.config import Config, sum_size
from pallas_kernels.gemm.schedule import block_table, whole_rows
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.host_memory import host_ref


@functools.partial(jax.jit, static_argnames=("gemm", "config", "interpret", "columns"))
def launch(
    x: jax.Array,
    w: jax.Array,
    scalars: jax.Array,
    scales: jax.Array | None = None,
    offsets: jax.Array | None = None,
    group_sizes: jax.Array | None = None,
    *,
    gemm: Gemm,
    config: Config | None,
    interpret: Any = None,
    columns: int,
) -> jax.Array:
    """Pad x, run the kernel (without `config` the reference), cut the result.

    Args:
      x: without padding.
      w: of shape `gemm.w_shape`.
      scalars: int32, `Plan.scalars`.
      scales: of `gemm.scales_shape`, like offsets, or None.
      group_sizes: int32 [gemm.experts], or None.
      config: tiles and grid.
    """
    rows = x.shape[0]
    x = jnp.pad(x, ((0, gemm.x_rows - rows), (0, gemm.k - x.shape[1])))
    if config is None:
        more = {"scales": scales, "offsets": offsets, "group_sizes": group_sizes}
        out = reference.matmul(gemm, x, w, scalars[3], **more)
        return out[:rows, :columns]
    from pallas_kernels.gemm import sm90

    operands = [x, host_ref(w)]
    if scales is not None:
        operands.append(host_ref(scales))
    if offsets is not None:
        operands += [host_ref(offsets), reference.sums_of(x, sum_size(config, gemm))]
    if group_sizes is not None:
        tables, blocks = tables_of(group_sizes, gemm, config)
        operands += tables
        scalars = jnp.concatenate([jnp.asarray(scalars, jnp.int32), blocks])
    return sm90.build(gemm, config, interpret=interpret)(*operands, scalars)[:rows, :columns]


def tables_of(group_sizes: Any, gemm: Gemm, config: Config, xp: Any = jnp) -> tuple[list[Any], Any]:
    """Return the block tables of SymGEMM and of experts with rows, and three counts."""
    table, with_expert, blocks = block_table(group_sizes, gemm.m, config.block_rows, xp=xp)
    whole, experts, _ = block_table(group_sizes, gemm.m, whole_rows(gemm.m), xp=xp)
    return [xp.concatenate([table, whole])], xp.stack([with_expert, blocks, experts])
