"""Steps of several batch sizes as programs of one process over the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from c2c.errors import DataError, SettingError
from c2c.systems.program.image import Access
from c2c.systems.program.program import Argument, Buffer, Copy, Fill, Kernel, Launch, Program, Slice
from c2c.systems.program.xla.dumps import XlaStep

__all__ = ["over_one_memory", "stated_kernels"]


def over_one_memory(steps: Mapping[int, XlaStep]) -> dict[int, Program]:
    """Return programs by batch size, over the same permanent buffers.

    Integers (tokens, positions, page tables) are zero and no inputs.

    Raises:
      SettingError: no steps.
      DataError: a kernel's launches access different bytes.
    """
    if not steps:
        raise SettingError("steps", steps, "at least one batch size")
    memory = _Memory()
    placed = {batch: memory.place(step) for batch, step in steps.items()}
    return {b: _moved(steps[b], where, memory.buffers) for b, where in placed.items()}


@dataclass(slots=True)
class _Memory:
    """Permanent buffers, numbered by content."""

    buffers: list[Buffer] = field(default_factory=list)
    numbers: dict[tuple[str, object], int] = field(default_factory=dict)

    def place(self, step: XlaStep) -> dict[int, int]:
        program = step.program
        where: dict[int, int] = {}
        for n, part in enumerate(program.inputs):
            where[part.buffer] = self._at(("parameter", n), program.buffers[part.buffer].nbytes)
            if step.input_kinds[n].startswith(("s", "u", "pred")):
                number = where[part.buffer]
                grown = self.buffers[number]
                self.buffers[number] = replace(grown, content=bytes(grown.nbytes))
        for k, buffer in enumerate(program.buffers):
            if buffer.content and k not in where:
                where[k] = self._at(("constant", buffer.content), buffer.nbytes)
                self.buffers[where[k]] = buffer
        for n, part in enumerate(program.outputs):
            if part.buffer not in where:
                nbytes = program.buffers[part.buffer].nbytes
                where[part.buffer] = self._at(("result", n), nbytes)
        return where

    def _at(self, key: tuple[str, object], nbytes: int) -> int:
        number = self.numbers.setdefault(key, len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(Buffer(nbytes))
        elif self.buffers[number].nbytes < nbytes:
            self.buffers[number] = replace(self.buffers[number], nbytes=nbytes)
        return number


def _moved(step: XlaStep, standing: Mapping[int, int], buffers: Sequence[Buffer]) -> Program:
    program = step.program
    where, entries = dict(standing), list(buffers)
    for k, buffer in enumerate(program.buffers):
        if k not in where:
            where[k] = len(entries)
            entries.append(replace(buffer, first=0, last=len(program.launches) - 1))

    def at(part: Slice) -> Slice:
        return replace(part, buffer=where[part.buffer])

    def moved(launch: Launch | Copy | Fill) -> Launch | Copy | Fill:
        if isinstance(launch, Copy):
            return Copy(at(launch.target), at(launch.source))
        if isinstance(launch, Fill):
            return replace(launch, target=at(launch.target))
        arguments = tuple(
            Argument(a.data, tuple(replace(p, slice=at(p.slice)) for p in a.places))
            for a in launch.arguments
        )
        return replace(launch, arguments=arguments)

    kinds = zip(program.inputs, step.input_kinds, strict=True)
    return Program(
        buffers=tuple(entries),
        kernels=stated_kernels(step),
        launches=tuple(moved(launch) for launch in program.launches),
        inputs=tuple(at(part) for part, kind in kinds if not buffers[where[part.buffer]].content),
        outputs=tuple(at(part) for part in program.outputs),
    )


def stated_kernels(step: XlaStep) -> tuple[Kernel, ...]:
    """Return the kernels with accesses as PTX comments, for emulation.

    Raises:
      DataError: a kernel's launches access different bytes.
    """
    accesses_of: dict[int, tuple[Access, ...]] = {}
    for number, launch in enumerate(step.program.launches):
        if not isinstance(launch, Launch):
            continue
        accesses = _accesses(launch, step.operands[number], step.results[number])
        if accesses_of.setdefault(launch.kernel, accesses) != accesses:
            entry = step.program.kernels[launch.kernel].entry
            raise DataError(f"kernel {entry}", f"launch {number} accesses other bytes than before")
    return tuple(
        replace(kernel, image=_stated(kernel, accesses_of[k]))
        for k, kernel in enumerate(step.program.kernels)
    )


def _accesses(
    launch: Launch, operands: tuple[Slice, ...], results: tuple[Slice, ...]
) -> tuple[Access, ...]:
    arguments = [argument.places[0].slice for argument in launch.arguments]
    is_whole = arguments == [*operands, *results]  # else each distinct slice is passed once
    accesses = []
    for k, part in enumerate(arguments):
        reads = k < len(operands) if is_whole else part in operands
        writes = k >= len(operands) if is_whole else part in results
        mode: Literal["r", "w", "rw"] = "rw" if reads and writes else "r" if reads else "w"
        accesses.append(Access(k, 0, "pointer", mode, part.nbytes))
    return tuple(accesses)


def _stated(kernel: Kernel, accesses: Sequence[Access]) -> bytes:
    lines = (f"// access {a.parameter} {a.at} {a.kind} {a.mode} {a.nbytes}\n" for a in accesses)
    head = f".visible .entry {kernel.entry}(".encode()
    before, entry, after = kernel.image.partition(head)
    if not entry:
        raise DataError(f"kernel {kernel.entry}", "its PTX lacks an entry in XLA's form")
    return before + "".join(lines).encode() + entry + after
