"""A chain of products by cuBLAS, an opaque library whose launches only the captured graph shows.

Nothing of its kernels is known: no PTX, no declaration, mostly no symbol. It is called by ctypes.
The caller gives it its workspace, so that no allocation escapes the trace. Needs a GPU, or an
emulated driver and cuBLAS.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.errors import DataError
from c2c.systems.medusa import TRIGGER_POOL, Capture, CapturedGraphs, Regions
from c2c.systems.program import AllocationId, Allocator, Arenas, Recorder
from c2c.systems.program.driver import Driver

__all__ = ["BATCH_SIZES", "BlasProcess"]

BATCH_SIZES: Final = (1, 8, 64)
WORKSPACE_BYTES: Final = 32 << 20  # cuBLAS's recommended size on Hopper
_HIDDEN: Final = 1024
_NAMES: Final = ("libcublas.so.13", "libcublas.so.12")
# Constants of cublas_api.h and library_types.h.
_BF16, _FLOAT32, _ANY_ALGORITHM, _AS_THEY_ARE = 14, 68, -1, 0


class BlasProcess:
    """A process in which a chain of products has started: weights, input, output, workspace.

    Args:
      layers: products of the chain.
      device: device of the process.
      seed: seed of the gaps that its allocator leaves.
      has_guards: True if the allocator leaves gaps, which the second capture needs.
      arenas: address ranges of its segments; None: the device's own.
    """

    def __init__(
        self,
        layers: int,
        device: Driver,
        seed: int,
        *,
        has_guards: bool = False,
        arenas: Arenas | None = None,
    ) -> None:
        self.device, self.layers = device, layers
        guards = random.Random(seed) if has_guards else None  # noqa: S311
        self.recorder = Recorder(device, Allocator(device, guards=guards, arenas=arenas))
        self.libraries = tuple(_found(_NAMES))
        self._blas = _Blas(self.libraries[0], device.stream)
        draw = np.random.default_rng(0)  # weights are the same in every process
        self._weights = [self._standing(_finite(draw, 2 * _HIDDEN**2)) for _ in range(layers)]
        size = 2 * _HIDDEN * max(BATCH_SIZES)
        self._given, self._left = (self._standing(bytes(size)) for _ in range(2))
        workspace = self.recorder.allocate(WORKSPACE_BYTES)
        self._blas.use_workspace(workspace, WORKSPACE_BYTES)
        self.graphs: dict[int, int] = {}
        self.functions: dict[int, int] = {}
        self.warm_s = self.first_s = 0.0  # seconds of warm-ups, and until the first capture

    def run(self, batch: int) -> None:
        """Compute all products once, as a warm-up."""
        self._chain(batch)
        self.device.synchronise()

    def triggered(self) -> list[int]:
        """Capture the first layer at each batch size; return the functions of its launches."""
        found: dict[int, None] = {}
        for batch in BATCH_SIZES:
            into = self.recorder.allocate(2 * _HIDDEN * batch, pool=TRIGGER_POOL)
            self._multiply(0, self._given, into, batch)  # makes the library load its modules
            self.device.synchronise()
            self.device.begin_capture()
            self._multiply(0, self._given, into, batch)
            graph = self.device.end_capture()
            for node in self.device.nodes(graph):
                if self.device.node_kind(node) == "kernel":
                    found[self.device.kernel_of(node).function] = None
            self.device.destroy_graph(graph)
            self.recorder.free(into)
        return list(found)

    def capture(self) -> Capture:
        """Warm up and capture each batch size; return the capture to analyse."""
        begun = time.perf_counter()
        graphs = CapturedGraphs(self.recorder, {}, self.libraries)
        for batch in BATCH_SIZES:
            begin = time.perf_counter()
            self.run(batch)
            self.warm_s += time.perf_counter() - begin
            self.recorder.begin_capture()
            self._chain(batch)
            self.graphs[batch] = self.recorder.end_capture()
            graphs.add(batch, self.graphs[batch])
            self.first_s = self.first_s or time.perf_counter() - begun
        self.functions = graphs.functions
        return graphs.finish()

    def regions(self, batch: int) -> Regions:
        """Return the input and output regions of a batch size."""
        nbytes = 2 * _HIDDEN * batch
        given, left = (((self._name(address), 0, nbytes),) for address in (self._given, self._left))
        return Regions(given, left)

    def _chain(self, batch: int) -> None:
        source = self._given
        for layer in range(self.layers):
            is_last = layer == self.layers - 1
            size = 2 * _HIDDEN * batch
            into = self._left if is_last else self.recorder.allocate(size, pool="graph")
            self._multiply(layer, source, into, batch)
            if source != self._given:
                self.recorder.free(source)
            source = into

    def _multiply(self, layer: int, source: int, into: int, batch: int) -> None:
        self._blas.multiply(self._weights[layer], source, into, batch)
        self.device.note_library_call()

    def _standing(self, content: bytes) -> int:
        address = self.recorder.allocate(len(content))
        self.device.write(address, content)
        return address

    def _name(self, address: int) -> AllocationId:
        return self.recorder.name_of(address)


class _Blas:
    """The four calls of cuBLAS that a product needs."""

    def __init__(self, path: str, stream: int) -> None:
        self._path, self._library = path, ctypes.CDLL(path)
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))

    def use_workspace(self, address: int, nbytes: int) -> None:
        """Set cuBLAS's workspace, so that it allocates no memory."""
        place = ctypes.c_void_p(address)
        self._call("cublasSetWorkspace_v2", self._handle, place, ctypes.c_size_t(nbytes))

    def multiply(self, weights: int, source: int, into: int, rows: int) -> None:
        """Write source [rows, hidden] @ weights [hidden, hidden] to `into`, in bfloat16.

        cuBLAS is column-major, so that it computes the transposed product.
        """
        n, one, zero = _HIDDEN, ctypes.c_float(1.0 / _HIDDEN), ctypes.c_float(0.0)
        self._call(
            "cublasGemmEx", self._handle, _AS_THEY_ARE, _AS_THEY_ARE, n, rows, n,
            ctypes.byref(one), ctypes.c_void_p(weights), _BF16, n, ctypes.c_void_p(source), _BF16,
            n, ctypes.byref(zero), ctypes.c_void_p(into), _BF16, n, _FLOAT32, _ANY_ALGORITHM,
        )  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DataError(self._path, f"{name} failed with status {status}")


def _found(names: tuple[str, ...]) -> Iterator[str]:
    """Yield the library's name or path, searched on the loader's path, then in NVIDIA's wheels.

    Raises:
      DataError: neither has the library.
    """
    wheels = importlib.util.find_spec("nvidia")
    folders = [] if wheels is None else [Path(p) for p in wheels.submodule_search_locations or ()]
    paths = [str(p) for name in names for folder in folders for p in folder.rglob(name)]
    for path in (*names, *sorted(paths)):
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        yield path
        return
    raise DataError("cuBLAS", f"none of {', '.join(names)} can be opened")


def _finite(draw: np.random.Generator, nbytes: int) -> bytes:
    """Return random bytes that are finite bfloat16 numbers."""
    values = np.frombuffer(draw.bytes(nbytes), np.uint8).copy()
    values[1::2] &= 0xBF  # the exponent's highest bit
    return values.tobytes()
