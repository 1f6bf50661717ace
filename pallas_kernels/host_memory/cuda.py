"""Registration of pages with CUDA."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pallas_kernels.host_memory.errors import PoolError

# cudaHostRegister's flags
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8


@runtime_checkable
class Registrar(Protocol):
    """An interface that registers pages with a GPU."""

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Pin the pages for every GPU's reads at their address."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


# Not run on a GPU so far: calls, arguments and error handling are tested against a stand-in.
class CudaRuntime:
    """The four CUDA runtime calls in use, checked."""

    def __init__(self, library: Any) -> None:
        self._library = library
        pointer, number = ctypes.c_void_p, ctypes.c_int
        library.cudaHostRegister.argtypes = [pointer, ctypes.c_size_t, ctypes.c_uint]
        library.cudaHostUnregister.argtypes = [pointer]
        library.cudaHostGetDevicePointer.argtypes = [
            ctypes.POINTER(pointer),
            pointer,
            ctypes.c_uint,
        ]
        library.cudaGetDeviceCount.argtypes = [ctypes.POINTER(number)]
        library.cudaGetErrorString.argtypes = [number]
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def device_count(self) -> int:
        """Return the number of GPUs, 0 without a driver."""
        count = ctypes.c_int()
        return count.value if self._library.cudaGetDeviceCount(ctypes.byref(count)) == 0 else 0

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Pin the pages for every GPU's reads at their address."""
        flags = PORTABLE | MAPPED | (READ_ONLY if read_only else 0)
        status = self._library.cudaHostRegister(address, nbytes, flags)
        if status:
            raise PoolError(f"cudaHostRegister of {nbytes} bytes: {self._says(status)}")
        seen = ctypes.c_void_p()
        status = self._library.cudaHostGetDevicePointer(ctypes.byref(seen), address, 0)
        if status or seen.value != address:
            self._library.cudaHostUnregister(address)
            why = self._says(status) if status else f"the device sees it at {seen.value:#x}"
            raise PoolError(
                f"pages at {address:#x}: expected the same address on the device; {why}"
            )

    def unregister(self, address: int) -> None:
        """Unpin the pages."""
        status = self._library.cudaHostUnregister(address)
        if status:
            raise PoolError(f"cudaHostUnregister: {self._says(status)}")

    def _says(self, status: int) -> str:
        text = self._library.cudaGetErrorString(status) or b"unknown error"
        return f"{text.decode()} (error {status})"


# Importing this module loads no library.
def find_runtime(
    *,
    load: Callable[[str], Any] = ctypes.CDLL,
    candidates: Callable[[], Iterator[str]] | None = None,
) -> tuple[CudaRuntime | None, str]:
    """Return the CUDA runtime with at least one GPU, or None and the reason."""
    tried = []
    for name in (candidates or _candidates)():
        try:
            runtime = CudaRuntime(load(name))
        except (OSError, AttributeError) as error:
            tried.append(f"{name} ({error})")
            continue
        if runtime.device_count() > 0:
            return runtime, ""
        return None, f"{name} finds no GPU"
    return None, "no CUDA runtime found" + (f": {'; '.join(tried)}" if tried else "")


def _candidates() -> Iterator[str]:
    maps = Path("/proc/self/maps")
    if maps.exists():
        paths = re.findall(r"(\S*/libcudart\.so\S*)", maps.read_text("utf-8", "replace"))
        yield from dict.fromkeys(paths)
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from map(str, sorted(Path(folder).glob("*/lib/libcudart.so.*"), reverse=True))
    if system := ctypes.util.find_library("cudart"):
        yield system
