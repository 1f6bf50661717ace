"""Helpers for CUDA's bindings."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from c2c.errors import DataError
from c2c.systems.program.port import DeviceFault, Edge, LaunchAttribute

__all__ = ["ATTRIBUTES", "Packed", "bindings", "checked", "edge_data", "handle", "raw_attribute"]

VALUE_BYTES: Final = 64  # size of CUlaunchAttributeValue

# Attributes of kernel nodes that change what runs, by number (CUlaunchAttributeID): cooperative,
# cluster dimension, cluster scheduling, priority, memory domain map and domain, carveout.
ATTRIBUTES: Final = (2, 4, 5, 8, 9, 10, 14)


@functools.cache
def bindings() -> Any:
    """Return `cuda.bindings.driver`."""
    try:
        from cuda.bindings import driver
    except ImportError as problem:
        raise DataError(
            "device=driver", f"needs the extra `driver` ({problem})", "Run `make driver`."
        ) from problem
    return driver


def checked(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver; return its only result, or a tuple of none or several.

    Raises:
      DeviceFault: no driver, no such call, or its error.
    """
    try:
        status, *results = call(*arguments)
    except RuntimeError as problem:  # the library is missing, or lacks the function
        raise DeviceFault(f"{call.__name__}: {problem}") from problem
    if int(status):
        raise DeviceFault(f"{call.__name__}: {getattr(status, 'name', status)}")
    return results[0] if len(results) == 1 else tuple(results)


def handle(value: Any) -> int:
    """Return a handle as an integer."""
    return int(value)


class Packed:
    """A kernel's parameters for the driver: an array of pointers to their bytes."""

    def __init__(self, parameters: Sequence[bytes]) -> None:
        self._bytes = [ctypes.create_string_buffer(p, len(p)) for p in parameters]
        count = max(len(parameters), 1)
        self._array = (ctypes.c_void_p * count)(*map(ctypes.addressof, self._bytes))

    @property
    def address(self) -> int:
        """The array's address, valid with this object."""
        return ctypes.addressof(self._array)


def raw_attribute(value: Any) -> bytes:
    """Return a CUlaunchAttributeValue's bytes."""
    return ctypes.string_at(value.getPtr(), VALUE_BYTES)


def launch_attribute(attribute: LaunchAttribute) -> Any:
    """Return an attribute as a `CUlaunchAttribute`, for a launch."""
    driver = bindings()
    result = driver.CUlaunchAttribute()
    result.id = driver.CUlaunchAttributeID(attribute.number)
    ctypes.memmove(result.getPtr() + 8, attribute.value.ljust(VALUE_BYTES, b"\0"), VALUE_BYTES)
    return result


def attribute_value(attribute: LaunchAttribute) -> Any:
    """Return an attribute as a `CUkernelNodeAttrValue`, for a node."""
    result = bindings().CUkernelNodeAttrValue()
    ctypes.memmove(result.getPtr(), attribute.value.ljust(VALUE_BYTES, b"\0"), VALUE_BYTES)
    return result


def edge_data(edge: Edge) -> Any:
    """Return an edge's ports and type as a `CUgraphEdgeData`."""
    result = bindings().CUgraphEdgeData()
    result.from_port, result.to_port, result.type = edge.from_port, edge.to_port, edge.type
    return result
