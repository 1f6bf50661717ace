"""The array namespace of the cost formulas: NumPy, or jax.numpy where they are differentiated."""

from typing import Any

import numpy as np

__all__ = ["Array", "ArrayLike", "numeric"]

# One formula serves NumPy arrays, JAX arrays and tracers, which share no static type.
type Array = Any
type ArrayLike = Any


def numeric(xp: Any) -> Any:
    """Return `xp`, or NumPy if it is None."""
    return np if xp is None else xp
