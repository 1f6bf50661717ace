"""Checks of arguments that are the same for experts of either kind."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pallas_kernels.arguments import check_cluster
from pallas_kernels.grouped_gemm.specs import W_LAYOUTS
from pallas_kernels.hopper import expect


def check_choices(cluster: Any, w_layout: Any) -> None:
    """Return if both are among the values there are.

    Raises:
      ValueError: one is not.
    """
    check_cluster(cluster)
    expect(
        w_layout in W_LAYOUTS, "w_layout", w_layout, "'kn' for W[E, K, N] or 'nk' for W[E, N, K]"
    )


def check_sizes(group_sizes: Any, *, t: int, experts: int) -> Any:
    """Return the group sizes as int32, checked where they are concrete.

    Args:
      group_sizes: the caller's argument.
      t: rows of x.
      experts: of w.

    Raises:
      ValueError: they are not one whole number for each expert, or do not fit into the rows.
    """
    traced = isinstance(group_sizes, jax.core.Tracer)
    sizes = group_sizes if traced else np.asarray(group_sizes)
    if sizes.shape != (experts,):
        shape = "x".join(map(str, sizes.shape)) or "a scalar"
        raise ValueError(
            f"group_sizes of shape {shape}: expected one number for each of w's {experts} experts"
        )
    if sizes.dtype.kind not in "iu":
        raise ValueError(f"group_sizes of dtype {sizes.dtype}: expected integers")
    if not traced:
        lowest, total = int(sizes.min()), int(sizes.sum(dtype=np.int64))
        if lowest < 0:
            raise ValueError(f"group_sizes with {lowest}: expected numbers from 0 up")
        if total > t:
            raise ValueError(f"group_sizes with sum {total}: expected at most the {t} rows of x")
    return sizes.astype(np.int32)


def check_cluster_of(config: Any, kind: Any, cluster: int | None) -> None:
    """Return if a caller's configuration is of the op's `kind` and for this `cluster`, if any.

    Raises:
      ValueError: it is not.
    """
    if not isinstance(config, kind):
        raise ValueError(
            f"config of type {type(config).__module__}.{type(config).__name__}: expected "
            f"{kind.__module__}.{kind.__name__} for these weights"
        )
    if cluster not in (None, config.cluster):
        raise ValueError(f"cluster={cluster}: expected config.cluster={config.cluster}")
