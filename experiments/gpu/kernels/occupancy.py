"""Clusters of full-size CTAs that the device holds at once, as the driver says.

A CTA of our kernels takes an SM for itself by its shared memory and threads, so an empty kernel
launched with the same two numbers has the same answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pallas_kernels.hopper import SHARED_BYTES_LIMIT

__all__ = ["CudaDriver", "DriverError", "resident_clusters"]

THREADS = 384
PTX = b"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry occupancy() { ret; }
"""
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a kind, padding to eight bytes, a union of 64 bytes."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_uint * 16),
    )


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class CudaDriver:
    """The calls of the CUDA driver that are needed, each checked."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
          DriverError: it returns an error; with the driver's name for it.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'unknown error').decode()} ({status})")


def resident_clusters(
    cluster: int,
    *,
    sm_count: int,
    shared_bytes: int = SHARED_BYTES_LIMIT,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> int:
    """Return how many clusters of `cluster` CTAs fit on the first GPU at once.

    Args:
      cluster: CTAs of one.
      sm_count: of the device.
      shared_bytes: dynamic shared memory of a CTA.
      load: opens the driver; tests put a stand-in there.

    Raises:
      DriverError: a call failed.
      OSError: there is no driver.
    """
    driver = CudaDriver(load("libcuda.so.1"))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        driver.call("cuCtxSetCurrent", context)
        driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        try:
            driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"occupancy")
            driver.call(
                "cuFuncSetAttribute",
                function,
                _MAX_DYNAMIC_SHARED_BYTES,
                ctypes.c_int(shared_bytes),
            )
            attribute = _Attribute(kind=_CLUSTER_DIMENSION)
            attribute.value[0], attribute.value[1], attribute.value[2] = cluster, 1, 1
            launch = _Launch(
                grid=(sm_count // cluster * cluster, 1, 1),
                block=(THREADS, 1, 1),
                shared_bytes=shared_bytes,
                stream=None,
                attributes=ctypes.pointer(attribute),
                attribute_count=1,
            )
            count = ctypes.c_int()
            driver.call(
                "cuOccupancyMaxActiveClusters",
                ctypes.byref(count),
                function,
                ctypes.byref(launch),
            )
            return count.value
        finally:
            driver.call("cuModuleUnload", module)
    finally:
        driver.call("cuDevicePrimaryCtxRelease_v2", device)
