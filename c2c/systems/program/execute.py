"""Runs a program on a device: memory first, then its launches, captured or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from c2c.errors import DataError
from c2c.systems.program.allocator import Allocator
from c2c.systems.program.port import TENSOR_MAP_BYTES, CopyCall, Device, Edge, FillCall, KernelCall
from c2c.systems.program.program import Argument, Buffer, Copy, Fill, Kernel, Launch, Program, Slice
from c2c.systems.program.recorder import Recorder

__all__ = ["Resolve", "Running", "tensor_map_bytes"]

# Gives a kernel's function; a hidden one comes from the library that launches it itself.
Resolve = Callable[[Kernel], int]


@dataclass(slots=True)
class Running:
    """A program in a process: where its buffers are and what its kernels are there.

    Attributes:
      program: what runs.
      recorder: its memory.
      resolve: functions of kernels that libraries hide.
      pool: of buffers that live for some launches only.
    """

    program: Program
    recorder: Recorder
    resolve: Resolve
    pool: str = "graph"
    addresses: dict[int, int] = field(default_factory=dict)
    images: dict[int, bytes] = field(default_factory=dict)  # of modules that were loaded for it
    _functions: dict[Kernel, int] = field(default_factory=dict)
    _modules: dict[bytes, int] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.recorder.device

    def of(self, program: Program) -> Running:
        """Return another program over the same standing buffers: another batch size."""
        return replace(self, program=program)

    def again(self) -> Running:
        """Return the program with memory of its own, not started; kernels are shared."""
        recorder = Recorder(self.device, Allocator(self.device))
        return replace(self, recorder=recorder, addresses={})

    def start(self, order: Iterable[int] | None = None) -> None:
        """Allocate the buffers that are there before the first launch.

        Args:
          order: buffers in the order to allocate them; None: theirs. Threads take turns as they
            like, each keeps its own order.
        """
        standing = [k for k, b in enumerate(self.program.buffers) if b.first is None]
        for k in standing if order is None else order:
            self._allocate(k, self.program.buffers[k], "")

    def run(self) -> None:
        """Launch everything once, as a warm-up does."""
        self._walk(is_captured=False)

    def capture(self) -> int:
        """Launch everything under capture; return the device's graph."""
        self.recorder.begin_capture()
        self._walk(is_captured=True)
        return self.recorder.end_capture()

    def launch(self, number: int) -> None:
        """Carry one launch out."""
        made = self.program.launches[number]
        if isinstance(made, Copy):
            self.device.copy(
                CopyCall(self.at(made.target), self.at(made.source), made.source.nbytes)
            )
        elif isinstance(made, Fill):
            count = made.target.nbytes // 4
            self.device.fill(FillCall(self.at(made.target), made.value, 4, count))
        else:
            self.device.launch(self.call(made))

    def call(self, launch: Launch) -> KernelCall:
        """Return a launch with this process's addresses."""
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
        made = self.program.kernels[kernel]
        if made not in self._functions:
            function = self._found(made)
            if made.shared_limit:
                self.device.set_shared_limit(function, made.shared_limit)
            self._functions[made] = function
        return self._functions[made]

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
                # what holds content between runs may not share memory with what is written in one
                self._allocate(k, buffer, "kept" if buffer.content else self.pool)
            if is_captured and self.program.edges is not None:
                self.device.depend_on(incoming.get(number, []))
            self.launch(number)
            for k in ends.get(number, ()):
                self.recorder.free(self.addresses[k], thread=self.program.buffers[k].thread)
        if not is_captured:
            # what stays after a capture belongs to its graph; a run gives everything back
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
                made = tensor_map_bytes(self.device, address, rest)
                data[place.at : place.at + TENSOR_MAP_BYTES] = made
            else:
                data[place.at : place.at + 8] = address.to_bytes(8, "little")
        return bytes(data)


def tensor_map_bytes(device: Device, address: int, rest: bytes) -> bytes:
    """Return a tensor map of an address; `rest` is its other 120 bytes: shape, strides, box."""
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
