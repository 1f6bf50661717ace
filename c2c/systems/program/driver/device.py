"""`Driver`: the device port through `cuda.bindings`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from c2c.systems.program.driver.calls import (
    Packed,
    bindings,
    checked,
    edge_data,
    launch_attribute,
)
from c2c.systems.program.driver.graphs import Graphs
from c2c.systems.program.port import (
    CopyCall,
    DeviceFault,
    Edge,
    FillCall,
    KernelCall,
    Peer,
)

__all__ = ["Driver"]

_DYNAMIC_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SET_DEPENDENCIES: Final = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
_NO_TIMING: Final = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED: Final = 2  # finalisers of other threads break the stricter modes
# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3
_RUNTIMES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class Driver(Graphs, Peer):
    """A GPU with one stream.

    Args:
      is_apart: whether to create a context.
      priority: lower runs first.

    Raises:
      DeviceFault: no driver or no GPU.
    """

    def __init__(self, number: int = 0, *, is_apart: bool = False, priority: int = 0) -> None:
        super().__init__()
        d = self._d = bindings()
        checked(d.cuInit, 0)
        self._device = checked(d.cuDeviceGet, number)
        if is_apart:
            self.context = checked(d.cuCtxCreate, None, 0, self._device)
        else:
            self.context = checked(d.cuDevicePrimaryCtxRetain, self._device)
        self.enter()
        self._stream = checked(d.cuStreamCreateWithPriority, 1, priority)
        self._events: dict[int, Any] = {}
        self._captured: list[int] | None = None
        self._mapped: dict[int, int] = {}  # bytes of segments in reserved ranges
        self._libraries: dict[str, Any] = {}
        self._runtime: Any = None

    @property
    def stream(self) -> int:
        """Handle of the stream, for launching libraries."""
        return int(self._stream)

    def describe(self) -> dict[str, Any]:
        """Return name, memory and driver version; `mig` is empty."""
        d = self._d
        name = checked(d.cuDeviceGetName, 128, self._device)
        return {
            "gpu": name.split(b"\0")[0].decode(),
            "memory_bytes": int(checked(d.cuDeviceTotalMem, self._device)),
            "mig": "",
            "driver": int(checked(d.cuDriverGetVersion)),
        }

    def allocate(self, nbytes: int) -> int:
        """Allocate with `cuMemAlloc`."""
        return int(checked(self._d.cuMemAlloc, nbytes))

    def reserve(self, nbytes: int, address: int) -> int:
        """Reserve with `cuMemAddressReserve`."""
        d = self._d
        return int(checked(d.cuMemAddressReserve, nbytes, 0, d.CUdeviceptr(address), 0))

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Create memory with `cuMemCreate` and map it with `cuMemMap`."""
        d, properties = self._d, self._d.CUmemAllocationProp()
        properties.type = d.CUmemAllocationType(_PINNED)
        properties.location.type = d.CUmemLocationType(_ON_DEVICE)
        properties.location.id = int(self._device)
        handle = checked(d.cuMemCreate, nbytes, properties, 0)
        place, access = d.CUdeviceptr(address), d.CUmemAccessDesc()
        access.location, access.flags = properties.location, d.CUmemAccess_flags(_READ_AND_WRITE)
        checked(d.cuMemMap, place, nbytes, 0, handle, 0)
        checked(d.cuMemSetAccess, place, nbytes, [access], 1)
        checked(d.cuMemRelease, handle)  # the mapping keeps it
        self._mapped[address] = nbytes

    def release(self, address: int) -> None:
        """Unmap a mapped segment; free any other."""
        place = self._d.CUdeviceptr(address)
        if address in self._mapped:
            checked(self._d.cuMemUnmap, place, self._mapped.pop(address))
        else:
            checked(self._d.cuMemFree, place)

    def write(self, address: int, data: bytes) -> None:
        """Copy from the host with `cuMemcpyHtoD`."""
        checked(self._d.cuMemcpyHtoD, self._d.CUdeviceptr(address), data, len(data))

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy to the host with `cuMemcpyDtoH`."""
        data = bytearray(nbytes)
        buffer = (ctypes.c_char * nbytes).from_buffer(data)
        source = self._d.CUdeviceptr(address)
        checked(self._d.cuMemcpyDtoH, ctypes.addressof(buffer), source, nbytes)
        return bytes(data)

    def free_bytes(self) -> int:
        """Return the free bytes of `cuMemGetInfo`."""
        free, _ = checked(self._d.cuMemGetInfo)
        return int(free)

    def replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """Replace the address with `cuTensorMapReplaceAddress`."""
        descriptor = self._d.CUtensorMap()
        place = descriptor.getPtr()
        ctypes.memmove(place, tensor_map, len(tensor_map))
        checked(self._d.cuTensorMapReplaceAddress, descriptor, address)
        return ctypes.string_at(place, len(tensor_map))

    def load_module(self, image: bytes) -> int:
        """Load PTX or a cubin with `cuModuleLoadData`."""
        return int(checked(self._d.cuModuleLoadData, image + b"\0"))

    def get_function(self, module: int, name: str) -> int:
        """Return the function of `cuModuleGetFunction`."""
        handle = self._d.CUmodule(module)
        return int(checked(self._d.cuModuleGetFunction, handle, name.encode()))

    def functions(self, module: int) -> tuple[int, ...]:
        """Return the functions of `cuModuleEnumerateFunctions`."""
        handle = self._d.CUmodule(module)
        count = int(checked(self._d.cuModuleGetFunctionCount, handle))
        return tuple(map(int, checked(self._d.cuModuleEnumerateFunctions, count, handle)))

    def function_name(self, function: int) -> str:
        """Return the mangled name from `cuFuncGetName`."""
        text = checked(self._d.cuFuncGetName, self._d.CUfunction(function))
        name: str = text.decode()
        return name

    def function_module(self, function: int) -> int:
        """Return the module of `cuFuncGetModule`."""
        return int(checked(self._d.cuFuncGetModule, self._d.CUfunction(function)))

    def ensure_loaded(self, function: int) -> None:
        """Load the function with `cuFuncLoad` unless it is loaded."""
        handle = self._d.CUfunction(function)
        if not int(checked(self._d.cuFuncIsLoaded, handle)):
            checked(self._d.cuFuncLoad, handle)

    def shared_limit(self, function: int) -> int:
        """Return `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`."""
        kind = self._d.CUfunction_attribute(_DYNAMIC_SHARED)
        return int(checked(self._d.cuFuncGetAttribute, kind, self._d.CUfunction(function)))

    def set_shared_limit(self, function: int, nbytes: int) -> None:
        """Set `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`."""
        kind = self._d.CUfunction_attribute(_DYNAMIC_SHARED)
        checked(self._d.cuFuncSetAttribute, self._d.CUfunction(function), kind, nbytes)

    def symbol(self, library: str, name: str) -> int | None:
        """Return a symbol's function by dlopen, dlsym and `cudaGetFuncBySymbol`.

        Raises:
          DeviceFault: no library or CUDA runtime.
        """
        if library not in self._libraries:
            try:
                self._libraries[library] = ctypes.CDLL(library)
            except OSError as problem:
                raise DeviceFault(f"{library} cannot be opened ({problem})") from problem
        symbol = getattr(self._libraries[library], name, None)
        if symbol is None:
            return None
        place = ctypes.cast(symbol, ctypes.c_void_p)
        function = ctypes.c_void_p()
        status = self._cudart().cudaGetFuncBySymbol(ctypes.byref(function), place)
        return function.value if status == 0 else None

    def _cudart(self) -> Any:
        if self._runtime is None:
            for name in _RUNTIMES:
                try:
                    self._runtime = ctypes.CDLL(name)
                except OSError:
                    continue
                break
            else:
                raise DeviceFault(f"none of {', '.join(_RUNTIMES)} can be opened")
        return self._runtime

    def launch(self, call: KernelCall) -> None:
        """Launch or capture with `cuLaunchKernelEx`."""
        d = self._d
        packed = Packed(call.parameters)
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = call.block
        config.sharedMemBytes, config.hStream = call.shared_bytes, self._stream
        if call.attributes:
            config.attrs = [launch_attribute(a) for a in call.attributes]
            config.numAttrs = len(call.attributes)
        checked(d.cuLaunchKernelEx, config, d.CUfunction(call.function), packed.address, 0)
        self._note()

    def copy(self, call: CopyCall) -> None:
        """Copy or capture with `cuMemcpyDtoDAsync`."""
        target, source = self._d.CUdeviceptr(call.target), self._d.CUdeviceptr(call.source)
        checked(self._d.cuMemcpyDtoDAsync, target, source, call.nbytes, self._stream)
        self._note()

    def fill(self, call: FillCall) -> None:
        """Fill or capture with `cuMemsetD8Async`, `D16` or `D32`."""
        calls = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
        function = getattr(self._d, calls[call.element_bytes])
        checked(function, self._d.CUdeviceptr(call.target), call.value, call.length, self._stream)
        self._note()

    def synchronise(self) -> None:
        """Wait with `cuStreamSynchronize`."""
        checked(self._d.cuStreamSynchronize, self._stream)

    def begin_capture(self) -> None:
        """Begin a capture in relaxed mode."""
        mode = self._d.CUstreamCaptureMode(_RELAXED)
        checked(self._d.cuStreamBeginCapture, self._stream, mode)
        self._captured = []

    def captured_nodes(self) -> int:
        """Return the node count of `cuStreamGetCaptureInfo`'s graph."""
        _, _, graph, *_ = checked(self._d.cuStreamGetCaptureInfo, self._stream)
        _, count = checked(self._d.cuGraphGetNodes, graph, 0)
        return int(count)

    def depend_on(self, edges: Sequence[Edge]) -> None:
        """Replace the stream's capture dependencies."""
        if self._captured is None:
            raise DeviceFault("no capture is under way")
        nodes = [self._d.CUgraphNode(self._captured[edge.source]) for edge in edges]
        data = [edge_data(edge) for edge in edges]
        checked(
            self._d.cuStreamUpdateCaptureDependencies,
            self._stream, nodes or None, data or None, len(nodes), _SET_DEPENDENCIES,
        )  # fmt: skip

    def end_capture(self) -> int:
        """End the capture; return its graph in launch order."""
        graph = int(checked(self._d.cuStreamEndCapture, self._stream))
        self._order[graph] = list(self._captured or ())
        self._captured = None
        return graph

    def upload(self, executable: int) -> None:
        """Upload with `cuGraphUpload`."""
        checked(self._d.cuGraphUpload, self._d.CUgraphExec(executable), self._stream)

    def launch_graph(self, executable: int) -> None:
        """Launch with `cuGraphLaunch`."""
        checked(self._d.cuGraphLaunch, self._d.CUgraphExec(executable), self._stream)

    def _note(self) -> None:
        if self._captured is None:
            return
        _, _, _, waits_for, _, count = checked(self._d.cuStreamGetCaptureInfo, self._stream)
        if count != 1:
            raise DeviceFault(f"a captured call left {count} dependencies, expected one")
        self._captured.append(int(waits_for[0]))

    def enter(self) -> None:
        """Make this device's context current."""
        checked(self._d.cuCtxSetCurrent, self.context)

    def priorities(self) -> tuple[int, int]:
        """Return the lowest and the highest stream priority, the least number."""
        last, first = checked(self._d.cuCtxGetStreamPriorityRange)
        return int(last), int(first)

    def record(self) -> int:
        """Record a `CUevent` without timing on the stream."""
        self.enter()
        event = checked(self._d.cuEventCreate, _NO_TIMING)
        checked(self._d.cuEventRecord, event, self._stream)
        self._events[int(event)] = event
        return int(event)

    def wait(self, event: int) -> None:
        """Wait with `cuStreamWaitEvent`."""
        self.enter()
        checked(self._d.cuStreamWaitEvent, self._stream, self._d.CUevent(event), 0)

    def receive(self, call: CopyCall, source: Peer) -> None:
        """Copy with `cuMemcpyPeerAsync`, or within a shared context."""
        assert isinstance(source, Driver)
        self.enter()
        if int(source.context) == int(self.context):
            self.copy(call)
            return
        target, begin = self._d.CUdeviceptr(call.target), self._d.CUdeviceptr(call.source)
        checked(
            self._d.cuMemcpyPeerAsync, target, self.context, begin, source.context, call.nbytes,
            self._stream,
        )  # fmt: skip

    def forget(self, event: int) -> None:
        """Destroy the `CUevent`."""
        checked(self._d.cuEventDestroy, self._events.pop(event))

    def _context(self) -> Any:
        return self.context
