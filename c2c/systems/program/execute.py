"""Execution of a program on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from c2c.errors import DataError
from c2c.systems.program.allocator import Allocator
from c2c.systems.program.port import TENSOR_MAP_BYTES, CopyCall, Device, Edge, FillCall, KernelCall
from c2c.systems.program.program import Argument, Buffer, Copy, Fill, Kernel, Launch, Program, Slice
from c2c.systems.program.recorder import Recorder

__all__ = ["Resolve", "Running", "tensor_map_bytes"]

# Returns the function of a kernel that a library hides.
Resolve = Callable[[Kernel], int]


@dataclass(slots=True)
class Running:
    """A program in a process, with addresses and functions.

    Attributes:
      resolve: look-up of hidden kernels.
      pool: of buffers allocated between launches.
      images: of loaded modules.
    """

    program: Program
    recorder: Recorder
    resolve: Resolve
    pool: str = "graph"
    addresses: dict[int, int] = field(default_factory=dict)
    images: dict[int, bytes] = field(default_factory=dict)
    _functions: dict[Kernel, int] = field(default_factory=dict)
    _modules: dict[bytes, int] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """Device of the recorder."""
        return self.recorder.device

    def of(self, program: Program) -> Running:
        """Return another program over the same buffers."""
        return replace(self, program=program)

    def again(self) -> Running:
        """Return the program with new memory, not started."""
        recorder = Recorder(self.device, Allocator(self.device))
        return replace(self, recorder=recorder, addresses={})

    def start(self, order: Iterable[int] | None = None) -> None:
        """Allocate buffers live before the first launch.

        Args:
          order: of allocation; None: by index. One thread's keep their order.
        """
        standing = [k for k, b in enumerate(self.program.buffers) if b.first is None]
        for k in standing if order is None else order:
            self._allocate(k, self.program.buffers[k], "")

    def run(self) -> None:
        """Run all launches once, as a warm-up does."""
        self._walk(is_captured=False)

    def capture(self) -> int:
        """Capture all launches; return the device's graph."""
        self.recorder.begin_capture()
        self._walk(is_captured=True)
        return self.recorder.end_capture()

    def launch(self, number: int) -> None:
        """Run or capture one launch."""
        launch = self.program.launches[number]
        if isinstance(launch, Copy):
            self.device.copy(
                CopyCall(self.at(launch.target), self.at(launch.source), launch.source.nbytes)
            )
        elif isinstance(launch, Fill):
            count = launch.target.nbytes // 4
            self.device.fill(FillCall(self.at(launch.target), launch.value, 4, count))
        else:
            self.device.launch(self.call(launch))

    def call(self, launch: Launch) -> KernelCall:
        """Return a kernel's launch with this process's addresses."""
        return KernelCall(
            self.function(launch.kernel),
            launch.grid,
            launch.block,
            launch.shared_bytes,
            tuple(self._bytes(a) for a in launch.arguments),
            launch.attributes,
        )

    def function(self, kernel: int) -> int:
        """Return a kernel's function in this process."""
        entry = self.program.kernels[kernel]
        if entry not in self._functions:
            function = self._found(entry)
            if entry.shared_limit:
                self.device.set_shared_limit(function, entry.shared_limit)
            self._functions[entry] = function
        return self._functions[entry]

    def at(self, part: Slice) -> int:
        """Return a slice's address."""
        return self.addresses[part.buffer] + part.offset

    def _found(self, kernel: Kernel) -> int:
        if kernel.library and kernel.is_hidden:
            return self.resolve(kernel)
        if kernel.library:
            function = self.device.symbol(kernel.library, kernel.entry)
            if function is None:
                raise DataError(kernel.library, f"has no symbol {kernel.entry}")
            return function
        if kernel.image not in self._modules:
            module = self.device.load_module(kernel.image)
            self._modules[kernel.image] = module
            self.images[module] = kernel.image
        return self.device.get_function(self._modules[kernel.image], kernel.entry)

    def _walk(self, *, is_captured: bool) -> None:
        begins, ends = _lifetimes(self.program)
        incoming: dict[int, list[Edge]] = {}
        for edge in self.program.edges or ():
            incoming.setdefault(edge.target, []).append(edge)
        for number in range(len(self.program.launches)):
            for k in begins.get(number, ()):
                buffer = self.program.buffers[k]
                # content must last between runs, so that temporaries may not reuse its memory
                self._allocate(k, buffer, "kept" if buffer.content else self.pool)
            if is_captured and self.program.edges is not None:
                self.device.depend_on(incoming.get(number, []))
            self.launch(number)
            for k in ends.get(number, ()):
                self.recorder.free(self.addresses[k], thread=self.program.buffers[k].thread)
        if not is_captured:
            # buffers that a capture keeps belong to its graph; a run frees them
            self.device.synchronise()
            for k, buffer in enumerate(self.program.buffers):
                if buffer.first is not None and buffer.last is None:
                    self.recorder.free(self.addresses[k], thread=buffer.thread)

    def _allocate(self, k: int, buffer: Buffer, pool: str) -> None:
        address = self.recorder.allocate(buffer.nbytes, thread=buffer.thread, pool=pool)
        self.addresses[k] = address
        if buffer.content:
            self.device.write(address, buffer.content)

    def _bytes(self, argument: Argument) -> bytes:
        if not argument.places:
            return argument.data
        data = bytearray(argument.data)
        for place in argument.places:
            address = self.at(place.slice)
            if place.kind == "map":
                rest = bytes(data[place.at + 8 : place.at + TENSOR_MAP_BYTES])
                tensor_map = tensor_map_bytes(self.device, address, rest)
                data[place.at : place.at + TENSOR_MAP_BYTES] = tensor_map
            else:
                data[place.at : place.at + 8] = address.to_bytes(8, "little")
        return bytes(data)


def tensor_map_bytes(device: Device, address: int, rest: bytes) -> bytes:
    """Return a tensor map of an address and 120 other bytes."""
    return device.replace_address(bytes(8) + rest, address)


def _lifetimes(program: Program) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for k, buffer in enumerate(program.buffers):
        if buffer.first is not None:
            begins.setdefault(buffer.first, []).append(k)
            if buffer.last is not None:
                ends.setdefault(buffer.last, []).append(k)
    return begins, ends
