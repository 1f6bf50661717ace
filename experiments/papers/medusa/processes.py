"""Emulated processes that start programs at differing addresses."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterable, Mapping

from c2c.errors import DataError
from c2c.systems.medusa import Capture, CapturedGraphs, Key, Regions
from c2c.systems.program import (
    AllocationId,
    Allocator,
    Arenas,
    Device,
    Emulated,
    Kernel,
    Library,
    Program,
    Recorder,
    Running,
)

__all__ = ["Process", "emulated_device", "key_of", "libraries_of"]


def libraries_of(program: Program) -> tuple[Library, ...]:
    """Return the libraries that a program's kernels come from."""
    images: dict[tuple[str, bool], dict[bytes, None]] = {}
    for kernel in program.kernels:
        if kernel.library:
            images.setdefault((kernel.library, kernel.is_hidden), {})[kernel.image] = None
    return tuple(Library(path, tuple(names), hidden) for (path, hidden), names in images.items())


def key_of(batch_sizes: Iterable[int], name: str) -> Key:
    """Return the artefact key of emulated processes."""
    return Key(
        gpu="emulated",
        memory_bytes=80 << 30,
        mig="",
        driver=0,
        model=name,
        dtype="bfloat16",
        batch_sizes=tuple(batch_sizes),
        max_tokens=2048,
        memory_fraction=0.9,
        program=name,
    )


def emulated_device(programs: Mapping[int, Program], seed: int) -> Emulated:
    """Return an emulated process's device of this seed."""
    first = _seeds(random.Random(seed))[0]  # noqa: S311
    return Emulated(first, libraries_of(next(iter(programs.values()))))


def _seeds(draw: random.Random) -> list[int]:
    return [draw.randrange(1 << 62) for _ in range(3)]


class Process:
    """A process with started programs and permanent buffers."""

    def __init__(
        self,
        programs: Mapping[int, Program],
        seed: int,
        *,
        has_whims: bool = True,
        has_guards: bool = False,
        device: Device | None = None,
        arenas: Arenas | None = None,
        told_values: Mapping[str, int] | None = None,
    ) -> None:
        self.told = dict(told_values or {})
        draw = random.Random(seed)  # noqa: S311
        seeds = _seeds(draw)
        self.programs = programs
        some = next(iter(programs.values()))
        self.device = device or emulated_device(programs, seed)
        whims = random.Random(seeds[1]) if has_whims else None  # noqa: S311
        guards = random.Random(seeds[2]) if has_guards else None  # noqa: S311
        allocator = Allocator(self.device, whims=whims, guards=guards, arenas=arenas)
        self.recorder = Recorder(self.device, allocator)
        self.running = Running(some, self.recorder, self.hidden)
        self.running.start(_interleaved(some, draw))
        self.graphs: dict[int, int] = {}
        self.functions: dict[int, int] = {}
        self.warm_s = 0.0  # seconds of the warm-ups before captures
        self.first_s = 0.0  # seconds until the first capture was read
        self.names: dict[tuple[int, int], AllocationId] = {}  # by batch size and buffer

    def hidden(self, kernel: Kernel) -> int:
        """Return a kernel's function, obtained from its library."""
        if isinstance(self.device, Emulated):
            return self.device.library_function(kernel.library, kernel.entry)
        # the library itself launches this kernel
        kernel_of = ctypes.CDLL(kernel.library).kernel_of
        kernel_of.restype = ctypes.c_void_p
        function = kernel_of(kernel.entry.encode())
        if not function:
            raise DataError(kernel.library, f"has no kernel {kernel.entry}")
        return int(function)

    def triggered(self) -> list[int]:
        """Launch a kernel of each module of hidden libraries, as a first layer does."""
        first: dict[bytes, Kernel] = {}
        for program in self.programs.values():
            for kernel in program.kernels:
                if kernel.is_hidden:
                    first.setdefault(kernel.image, kernel)
        return [self.hidden(kernel) for kernel in first.values()]

    def run(self, batch: int) -> None:
        """Run a batch size's program once, launch by launch."""
        self.running.of(self.programs[batch]).run()

    def capture(self) -> Capture:
        """Warm up and capture each program; return the capture."""
        libraries = [lib.path for lib in libraries_of(self.running.program)]
        begun = time.perf_counter()
        graphs = CapturedGraphs(self.recorder, self.running.images, libraries)
        for batch, program in self.programs.items():
            running = self.running.of(program)
            begin = time.perf_counter()
            running.run()
            self.warm_s += time.perf_counter() - begin
            self.graphs[batch] = running.capture()
            graphs.add(batch, self.graphs[batch])
            self.first_s = self.first_s or time.perf_counter() - begun
            for part in (*program.inputs, *program.outputs):
                name = self.recorder.name_of(running.addresses[part.buffer])
                self.names[batch, part.buffer] = name
        self.functions = graphs.functions
        return graphs.finish(self.told)

    def regions(self, batch: int) -> Regions:
        """Return a captured batch size's input and output regions."""
        program = self.programs[batch]
        inputs, outputs = (
            tuple((self.names[batch, s.buffer], s.offset, s.nbytes) for s in parts)
            for parts in (program.inputs, program.outputs)
        )
        return Regions(inputs, outputs)


def _interleaved(program: Program, draw: random.Random) -> list[int]:
    """Return the permanent buffers in random order, but each thread's own."""
    queues: dict[str, list[int]] = {}
    for k, buffer in enumerate(program.buffers):
        if buffer.first is None:
            queues.setdefault(buffer.thread, []).append(k)
    order = []
    while queues:
        thread = draw.choice(sorted(queues))
        order.append(queues[thread].pop(0))
        if not queues[thread]:
            del queues[thread]
    return order
