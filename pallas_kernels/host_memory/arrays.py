"""`HostArray`: an array in host memory that refuses to be an operand of XLA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from pallas_kernels.host_memory.errors import HostAttributeError, HostMemoryError
from pallas_kernels.host_memory.operand import Backend, host_ref, weight_operand

_ADVICE = (
    "Hand it to a kernel (hybrid_gemm(x, w.ref(), ...)), copy it with .to_device(), or read it "
    "with .numpy()."
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostArray:
    """An array in host memory, for kernels only; a pytree of one array.

    `ref()` gives a kernel's operand, `to_device()` a copy for XLA, `numpy()` the values. Other
    computation raises `HostMemoryError`.
    """

    data: Any  # a jax array in host memory; other things while jax transforms the tree

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the array."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        kind: np.dtype[Any] = np.dtype(self.data.dtype)
        return kind

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.size * self.dtype.itemsize

    @property
    def memory_kind(self) -> str:
        """Name of the array's memory: "pinned_host"; "traced" inside `jit`."""
        if isinstance(self.data, jax.core.Tracer):
            return "traced"
        return str(self.data.sharding.memory_kind)

    def ref(self) -> jax.Array:
        """Return a kernel's operand, without a copy; see `host_ref`."""
        return host_ref(self.data)

    def operand(self, backend: Backend) -> jax.Array:
        """Return the operand of a kernel of `backend`; see `weight_operand`."""
        return weight_operand(self.data, backend=backend)

    def to_device(self) -> jax.Array:
        """Return a copy in device memory for XLA; on a CPU the same bytes."""
        return weight_operand(self.data, backend="reference")

    def numpy(self) -> np.ndarray:
        """Return the values as a NumPy array; raises inside `jit`."""
        if isinstance(self.data, jax.core.Tracer):
            raise HostMemoryError(".numpy() inside jit: expected a concrete array")
        return np.asarray(self.data)

    def __repr__(self) -> str:
        try:
            sizes = "x".join(map(str, self.shape)) or "scalar"
            return f"HostArray({sizes} {self.dtype}, {self.memory_kind}, {self.nbytes} bytes)"
        except (AttributeError, TypeError):  # jax puts its own things into data
            return f"HostArray({self.data!r})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a scalar HostArray")
        return self.shape[0]

    @property
    def __jax_array__(self) -> NoReturn:
        # A property: jax first asks whether it is there, and in some places only that.
        raise _refusal(self, "an operation of jax")

    def __array__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise _refusal(self, "conversion to a NumPy array")

    def __array_ufunc__(self, ufunc: Any, *_args: object, **_kwargs: object) -> NoReturn:
        raise _refusal(self, f"numpy.{ufunc.__name__}")

    def __array_function__(self, function: Any, *_args: object, **_kwargs: object) -> NoReturn:
        raise _refusal(self, f"numpy.{function.__name__}")

    def __getattr__(self, name: str) -> NoReturn:
        # Only reached for names that the class lacks.
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"HostArray has no attribute {name!r}")
        raise HostAttributeError(str(_refusal(self, f".{name}")))


def _refusal(array: HostArray, operation: str) -> HostMemoryError:
    return HostMemoryError(
        f"{operation} on {array!r}: expected an array in device memory, since weights in host "
        f"memory are read by kernels only. {_ADVICE}"
    )


# Dunders are looked up on the class, so that __getattr__ does not see them.
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_OTHERS = (
    *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert", "round"),
    *("getitem", "iter", "contains", "bool", "int", "float", "complex", "index"),
)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: HostArray, *_operands: object) -> NoReturn:
        raise _refusal(self, name)

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


for _name in (*_BINARY, *(f"r{n}" for n in _BINARY), *_OTHERS):
    setattr(HostArray, f"__{_name}__", _refusing(f"__{_name}__"))
HostArray.__hash__ = None  # type: ignore[assignment]  # like jax arrays
