"""Interpreted execution of a program: on one GPU's memory, or placed over several."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from c2c.errors import DataError
from c2c.ranges import Count, check_value
from c2c.systems.program import Copy, Fill, Launch, Program, Slice
from c2c.systems.tessera.ptx import Interval, KernelAccess
from c2c.systems.tessera.schedule import schedule
from c2c.systems.tessera.touches import Touch, kernels_of
from tests.systems.tessera.interpreter.interpret import interpret
from tests.systems.tessera.interpreter.memory import Memory

__all__ = ["Placed", "Touched", "run_interpreted"]

Touched = Mapping[
    tuple[Slice, bool], Interval
]  # (slice, True if written) -> interval relative to the slice


@dataclass(slots=True)
class Placed:
    """A program in the memories of several GPUs, each of which runs its launches in program order.

    Before a launch a GPU receives only the bytes that the launch reads and that another GPU wrote
    last. Data that the dependency graph does not name is missing.

    Attributes:
      program: program to run.
      count: number of GPUs.
      kernels: memory accesses of its kernels, by entry; None: they are computed.
    """

    program: Program
    count: int = 1
    kernels: Mapping[str, KernelAccess] | None = None
    _memories: list[Memory] = field(init=False)
    _bases: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        check_value(self.count, Count, "gpus")
        self._memories = [Memory() for _ in range(self.count)]
        self._bases = [
            [memory.allocate(b.nbytes, b.content) for b in self.program.buffers]
            for memory in self._memories
        ]
        if self.kernels is None:
            self.kernels = kernels_of(self.program)

    def write(self, part: Slice, data: bytes) -> None:
        """Write an input: a copy on every GPU.

        Raises:
          DataError: the data has another length than the slice.
        """
        if len(data) != part.nbytes:
            raise DataError("input", f"has {len(data)} bytes, {part} has {part.nbytes}")
        for gpu in range(self.count):
            self._memories[gpu].write(self._at(gpu, part), data)

    def read(self, part: Slice, gpu: int = 0) -> bytes:
        """Return a GPU's content of a slice."""
        return self._memories[gpu].read(self._at(gpu, part), part.nbytes)

    def send(self, part: Slice, source: int, target: int) -> None:
        """Copy a slice from one GPU to another."""
        self._memories[target].write(self._at(target, part), self.read(part, source))

    def launch(self, number: int, gpu: int = 0) -> Touched:
        """Run a launch on a GPU; return the bytes that it touched."""
        made = self.program.launches[number]
        memory = self._memories[gpu]
        if isinstance(made, Copy):
            memory.write(self._at(gpu, made.target), self.read(made.source, gpu))
            return {}
        if isinstance(made, Fill):
            words = struct.pack("<I", made.value) * (made.target.nbytes // 4 + 1)
            memory.write(self._at(gpu, made.target), words[: made.target.nbytes])
            return {}
        return self._kernel(made, gpu)

    def _kernel(self, launch: Launch, gpu: int) -> Touched:
        assert self.kernels is not None
        access = self.kernels[self.program.kernels[launch.kernel].entry]
        intervals = interpret(
            access.kernel, launch.grid, launch.block, self.arguments(launch, gpu),
            self._memories[gpu], shared_bytes=launch.shared_bytes,
        )  # fmt: skip
        result: dict[tuple[Slice, bool], Interval] = {}
        for each in access.accesses:
            interval = intervals[each.index]
            if interval.end == 0 or len(each.reached) != 1:
                continue
            (reached,) = each.reached
            part = launch.arguments[reached.parameter].places[0].slice
            begin = self._at(gpu, part)
            for is_write in (False, True):
                if ("w" if is_write else "r") in each.mode:
                    known = result.setdefault((part, is_write), Interval())
                    known.begin = min(known.begin, interval.begin - begin)
                    known.end = max(known.end, interval.end - begin)
        return result

    def arguments(self, launch: Launch, gpu: int = 0) -> list[bytes]:
        """Return a launch's parameters with a GPU's addresses."""
        result = []
        for argument in launch.arguments:
            data = bytearray(argument.data)
            for place in argument.places:
                data[place.at : place.at + 8] = struct.pack("<Q", self._at(gpu, place.slice))
            result.append(bytes(data))
        return result

    def _at(self, gpu: int, part: Slice) -> int:
        return self._bases[gpu][part.buffer] + part.offset


def run_interpreted(
    placed: Placed, touches: Sequence[Touch], gpu_of: Sequence[int] | None = None
) -> int:
    """Run a program once, send its outputs to the first GPU, return the number of bytes sent.

    Args:
      placed: the program, its inputs written.
      touches: reads and writes of each launch; no other bytes are sent.
      gpu_of: each launch's GPU; None: the first one.

    Raises:
      SettingError: a placement of another length, or on a GPU that does not exist.
    """
    where = [0] * len(touches) if gpu_of is None else gpu_of
    made = schedule(touches, where, placed.count, outputs=placed.program.outputs)
    for segment in made.segments:
        for send in segment.sends:
            placed.send(send.part, send.source, send.target)
        for number in segment.launches:
            placed.launch(number, segment.gpu)
    for send in made.last:
        placed.send(send.part, send.source, send.target)
    return made.nbytes
