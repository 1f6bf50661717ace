"""Data dependency graph of a program."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from c2c.systems.program import Copy, Fill, Program, Slice
from c2c.systems.program.image import image_key
from c2c.systems.tessera.touches import Touch

__all__ = ["Carried", "Dependency", "Graph", "graph_of", "program_key"]


class Dependency(NamedTuple):
    """Bytes that `source` writes and `target` reads."""

    source: int
    target: int
    nbytes: int


class Carried(NamedTuple):
    """Bytes of `source` that `target` reads in a later step."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Launches and the dependencies between them.

    Attributes:
      carried: dependencies of the next step on this one.
      given: readers of earlier content, by buffer.
      opaque: launches with unknown accesses, pinned to one GPU.
    """

    launches: int
    edges: tuple[Dependency, ...]
    carried: tuple[Carried, ...]
    given: Mapping[int, tuple[int, ...]]
    opaque: tuple[int, ...]

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The edges without their bytes."""
        return frozenset((e.source, e.target) for e in self.edges)


def graph_of(touches: Sequence[Touch], carried: Iterable[Slice] = ()) -> Graph:
    """Return the graph of launches in order; only reads wait for writes.

    Source: Tessera, section III-A. Ours: ranges of bytes; several writers of an input; values for
    the next step.
    """
    memory: dict[int, _Writers] = {}
    edges: dict[tuple[int, int], int] = {}
    readers_of: dict[int, list[int]] = {}
    outside: list[tuple[int, Slice]] = []
    for number, touch in enumerate(touches):
        for part in touch.reads:
            for writer, begin, end in _of(memory, part).read(
                part.offset, part.offset + part.nbytes
            ):
                if writer is None:
                    outside.append((number, Slice(part.buffer, begin, end - begin)))
                    readers = readers_of.setdefault(part.buffer, [])
                    if number not in readers:
                        readers.append(number)
                else:
                    edges[writer, number] = edges.get((writer, number), 0) + end - begin
        for part in touch.writes:
            _of(memory, part).write(part.offset, part.offset + part.nbytes, number)
    return Graph(
        len(touches),
        tuple(Dependency(*pair, nbytes) for pair, nbytes in sorted(edges.items())),
        tuple(_across(memory, outside, carried)),
        {buffer: tuple(readers) for buffer, readers in readers_of.items()},
        tuple(k for k, touch in enumerate(touches) if touch.opaque),
    )


def program_key(program: Program) -> str:
    """Return a program's key, valid across processes."""
    digest = hashlib.sha256()
    for kernel in program.kernels:
        digest.update(f"{kernel.entry} {image_key(kernel.image)}\n".encode())
    for buffer in program.buffers:
        digest.update(f"{buffer.nbytes}\n".encode())
    for launch in program.launches:
        if isinstance(launch, Copy | Fill):
            digest.update(f"{launch}\n".encode())
        else:
            digest.update(
                f"{launch.kernel} {launch.grid} {launch.block} {launch.shared_bytes} "
                f"{launch.arguments}\n".encode()
            )
    return digest.hexdigest()


@dataclass(slots=True)
class _Writers:
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    who: list[int] = field(default_factory=list)

    def read(self, begin: int, end: int) -> Iterable[tuple[int | None, int, int]]:
        """Yield (writer, begin, end) of a range's parts; None: no launch wrote it."""
        position = begin
        for k in range(bisect.bisect_right(self.ends, begin), len(self.begins)):
            if self.begins[k] >= end:
                break
            if position < self.begins[k]:
                yield None, position, self.begins[k]
            position = min(end, self.ends[k])
            yield self.who[k], max(begin, self.begins[k]), position
        if position < end:
            yield None, position, end

    def write(self, begin: int, end: int, writer: int) -> None:
        if begin == end:
            return
        first = bisect.bisect_right(self.ends, begin)
        last = bisect.bisect_left(self.begins, end)
        parts = [(begin, end, writer)]
        if first < last:
            if self.begins[first] < begin:
                parts.insert(0, (self.begins[first], begin, self.who[first]))
            if self.ends[last - 1] > end:
                parts.append((end, self.ends[last - 1], self.who[last - 1]))
        for k, column in enumerate((self.begins, self.ends, self.who)):
            column[first:last] = [part[k] for part in parts]


def _of(memory: dict[int, _Writers], part: Slice) -> _Writers:
    return memory.setdefault(part.buffer, _Writers())


def _across(
    memory: dict[int, _Writers], outside: Sequence[tuple[int, Slice]], carried: Iterable[Slice]
) -> Iterable[Carried]:
    bytes_of: dict[tuple[int, int], int] = {}
    for state in carried:
        for reader, part in outside:
            begin = max(part.offset, state.offset)
            end = min(part.offset + part.nbytes, state.offset + state.nbytes)
            if part.buffer != state.buffer or begin >= end:
                continue
            for writer, a, b in _of(memory, part).read(begin, end):
                if writer is not None:
                    bytes_of[writer, reader] = bytes_of.get((writer, reader), 0) + b - a
    for (writer, reader), nbytes in sorted(bytes_of.items()):
        yield Carried(writer, reader, nbytes)
