"""Arrays of quantised weights: names, shapes, types and padding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from pallas_kernels.gemm.specs import (
    K_MULTIPLE,
    N_MULTIPLE,
    SCALE_DTYPES,
    Kind,
    bits,
    check_group,
    check_kind,
    storage_dtype,
)
from pallas_kernels.host_memory import HostArray, TensorSpec
from pallas_kernels.host_memory.layout import DTYPES
from pallas_kernels.integer_math import round_up


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeights:
    """A quantised weight matrix or stack: a pytree of two or three arrays.

    w[n, k] = scales[k // group, n] * q[n, k] + offsets[k // group, n]; `offsets` may be None.

    `data` is [N', K'] of the storage type, K' / 2 bytes wide for int4, with leading layers.
    `scales` and `offsets` are [G', N'], one row per group. N' and K' are `n` and `k` with padding:
    zeros with a scale of 1.
    """

    data: Any  # jax or NumPy array or HostArray; other things while jax transforms the tree
    scales: Any
    k: int = field(metadata={"static": True})
    n: int = field(metadata={"static": True})
    kind: Kind = field(metadata={"static": True})
    group: int | None = field(metadata={"static": True})
    offsets: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales and offsets."""
        offsets = 0 if self.offsets is None else self.offsets.nbytes
        return int(self.data.nbytes + self.scales.nbytes + offsets)


def padded_k(k: int, group: int | None) -> int:
    """Return K' for K: whole K steps of the kernel and whole groups.

    >>> padded_k(1000, 384)
    1152
    """
    return round_up(k, math.lcm(K_MULTIPLE, group or 1))


def storage_shapes(
    k: int,
    n: int,
    kind: Kind,
    group: int | None = None,
    *,
    stack: tuple[int, ...] = (),
    scale_dtype: str = "float32",
    offset_dtype: str | None = None,
) -> dict[str, TensorSpec]:
    """Return shapes and types of `QuantizedWeights` [K, N] without padding, by field.

    Args:
      group: weights along K with one scale, a multiple of 32; None: a scale a column.
      stack: leading sizes: layers, experts.
      scale_dtype, offset_dtype: "float32", "bfloat16" or "float16"; None: no offsets.

    Raises:
      ValueError: an argument outside its range.
    """
    check_kind(kind)
    check_group(kind, group)
    for name, size in (("k", k), ("n", n), *(("stack", size) for size in stack)):
        if size < 1:
            raise ValueError(f"{name}={size}: expected a number above 0")
    if group is not None and group > round_up(k, K_MULTIPLE):
        raise ValueError(f"group={group}: expected at most K={k} rounded up to {K_MULTIPLE}")
    for name, dtype in (("scale_dtype", scale_dtype), ("offset_dtype", offset_dtype)):
        if dtype not in SCALE_DTYPES and (name, dtype) != ("offset_dtype", None):
            raise ValueError(f"{name}={dtype!r}: expected one of {', '.join(SCALE_DTYPES)}")
    wide, tall = padded_k(k, group), round_up(n, N_MULTIPLE)
    groups = (*stack, wide // group if group else 1, tall)
    shapes = {
        "data": TensorSpec(
            shape=(*stack, tall, wide * bits(kind) // 8), dtype=str(storage_dtype(kind))
        ),
        "scales": TensorSpec(shape=groups, dtype=scale_dtype),
    }
    if offset_dtype is not None:
        shapes["offsets"] = TensorSpec(shape=groups, dtype=offset_dtype)
    return shapes


def empty_weights(
    k: int,
    n: int,
    kind: Kind,
    group: int | None = None,
    *,
    stack: tuple[int, ...] = (),
    scale_dtype: str = "float32",
    offset_dtype: str | None = None,
) -> QuantizedWeights:
    """Return NumPy arrays of `storage_shapes`, for `quantize_rows` and `integer_rows`."""
    shapes = storage_shapes(
        k, n, kind, group, stack=stack, scale_dtype=scale_dtype, offset_dtype=offset_dtype
    )
    arrays: dict[str, Any] = {
        name: np.empty(spec.shape, DTYPES[spec.dtype]) for name, spec in shapes.items()
    }
    return QuantizedWeights(**arrays, k=k, n=n, kind=kind, group=group)


def matrix_of(qw: QuantizedWeights, *index: int) -> QuantizedWeights:
    """Return one matrix of a stack as NumPy views.

    Args:
      index: of layer, or layer and expert.
    """
    offsets = None if qw.offsets is None else qw.offsets[index]
    return replace(qw, data=qw.data[index], scales=qw.scales[index], offsets=offsets)


def arrays_of(qw: QuantizedWeights) -> dict[str, Any]:
    """Return the arrays by field, without None."""
    named = {"data": qw.data, "scales": qw.scales, "offsets": qw.offsets}
    return {
        name: array.data if isinstance(array, HostArray) else array
        for name, array in named.items()
        if array is not None
    }


def check_weights(w: Any, stack_axes: int | None = None) -> dict[str, Any]:
    """Return the arrays by field, checked against the sizes in `w`.

    Args:
      stack_axes: most leading axes; None: any.

    Raises:
      ValueError: no `QuantizedWeights`, or unequal sizes.
    """
    if not isinstance(w, QuantizedWeights):
        raise ValueError(f"w of type {type(w).__name__}: expected QuantizedWeights of quantize()")
    arrays = arrays_of(w)
    for name, array in arrays.items():
        if not isinstance(array, jax.Array | np.ndarray):
            raise ValueError(f"w.{name} of type {type(array).__name__}: expected an array")
    for name, size in (("k", w.k), ("n", w.n)):
        if type(size) is not int or size < 1:
            raise ValueError(f"w.{name}={size!r}: expected a whole number above 0")
    stack = tuple(arrays["data"].shape[:-2])
    if stack_axes is not None and len(stack) > stack_axes:
        shape = tuple(arrays["data"].shape)
        raise ValueError(f"w.data of shape {shape}: expected at most {stack_axes + 2} axes")
    types = {f"{name[:-1]}_dtype": str(arrays[name].dtype) for name in arrays.keys() - {"data"}}
    for name, dtype in types.items():
        if dtype not in SCALE_DTYPES:
            field = name.replace("_dtype", "s")
            raise ValueError(
                f"w.{field} of dtype {dtype}: expected one of {', '.join(SCALE_DTYPES)}"
            )
    specs = storage_shapes(w.k, w.n, w.kind, w.group, stack=stack, **types)
    for name, spec in specs.items():
        got = tuple(arrays[name].shape), str(arrays[name].dtype)
        if got[1] != spec.dtype:
            raise ValueError(
                f"w.{name} of dtype {got[1]}: expected {spec.dtype} for kind={w.kind!r}"
            )
        if got[0] != spec.shape:
            raise ValueError(
                f"w.{name} of shape {got[0]}: expected {spec.shape} for K={w.k}, N={w.n}, "
                f"kind={w.kind!r}, group={w.group}"
            )
    return arrays
