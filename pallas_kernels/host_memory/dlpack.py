"""DLPack export of foreign memory as a jax array."""

from __future__ import annotations

import atexit
import ctypes
import itertools
from typing import Any

import numpy as np

CPU, CUDA, CUDA_HOST = 1, 2, 3  # DLPack's device types

_KINDS = {"i": 0, "u": 1, "f": 2}  # by NumPy's kind
_NAMES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (
    ("dl_tensor", _DLTensor),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_held: dict[int, tuple[Any, ...]] = {}  # what a capsule's receiver uses, until it calls the deleter
_keys = itertools.count(1)


def _pop(managed: Any) -> None:
    _held.pop(managed.contents.manager_ctx, None)


_let_go = _Deleter(_pop)  # lives as long as the module: receivers call it late


@atexit.register
def _let_receivers_outlive_python() -> None:
    """Replace the deleters of living exports by one that does nothing, for after Python's end."""
    for record in _held.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(record))
        record[-1].deleter = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, _Deleter)


# NumPy's own exporter supports neither bfloat16 nor float8, and only plain CPU memory.
class Exported:
    """DLPack producer of a contiguous NumPy array as memory of `device_type`.

    The array lives until the receiver's call of the deleter.
    """

    def __init__(self, array: np.ndarray, device_type: int, device_id: int = 0) -> None:
        if not array.flags.c_contiguous:
            raise ValueError("array with gaps: expected a contiguous one")
        self._array = array
        self._device = (device_type, device_id)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_options: object) -> Any:
        array, key = self._array, next(_keys)
        code = _NAMES.get(array.dtype.name, _KINDS.get(array.dtype.kind))
        if code is None:
            raise BufferError(f"dtype {array.dtype}: DLPack has no code for it here")
        sizes = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        managed = _DLManagedTensor()
        tensor = managed.dl_tensor
        tensor.data = array.ctypes.data
        tensor.device_type, tensor.device_id = self._device
        tensor.ndim, tensor.shape = array.ndim, sizes
        tensor.code, tensor.bits, tensor.lanes = code, 8 * array.dtype.itemsize, 1
        managed.manager_ctx, managed.deleter = key, _let_go
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        _held[key] = (array, sizes, managed)
        return new(ctypes.addressof(managed), b"dltensor", None)


def holds() -> int:
    """Count exported arrays that receivers still hold."""
    return len(_held)
