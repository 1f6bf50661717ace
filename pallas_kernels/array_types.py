"""Annotations of arrays by jaxtyping."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or find_spec("jaxtyping") is not None:
    from jaxtyping import Array, Float, Float64, Int, Int32, Shaped
else:
    Array = Float = Float64 = Int = Int32 = Shaped = Any

__all__ = ["Array", "Float", "Float64", "Int", "Int32", "Shaped"]
