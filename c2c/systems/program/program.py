"""Launch programs: what a step of a model asks of a GPU, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from c2c.errors import DataError
from c2c.systems.program.port import Edge, LaunchAttribute, Triple

__all__ = [
    "Argument",
    "Buffer",
    "Copy",
    "Fill",
    "Kernel",
    "Launch",
    "Place",
    "Program",
    "Slice",
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory.

    Attributes:
      nbytes: its size.
      first: launch before which it is allocated; None: before the program, in the order of buffers.
      last: launch after which it is freed; None: it stays.
      thread: who allocates it; numbers of allocations are per thread.
      content: what the program's owner puts there when it is allocated.
    """

    nbytes: int
    first: int | None = None
    last: int | None = None
    thread: str = "main"
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes of a buffer."""

    buffer: int
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A slice's address within an argument: a word, or a tensor map of 128 bytes."""

    at: int
    slice: Slice
    kind: Literal["pointer", "map"] = "pointer"


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter's bytes, some of which become addresses."""

    data: bytes
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its entry and where it comes from.

    Attributes:
      entry: name in the image.
      image: PTX or cubin; empty if only a library has it.
      library: of kernels that a library brings; empty: the image is loaded as it is.
      is_hidden: the library's symbol table does not have it.
      shared_limit: dynamic shared memory its launches need allowed, in bytes; 0: the default.
    """

    entry: str
    image: bytes = b""
    library: str = ""
    is_hidden: bool = False
    shared_limit: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's launch."""

    kernel: int
    arguments: tuple[Argument, ...]
    grid: Triple = (1, 1, 1)
    block: Triple = (128, 1, 1)
    shared_bytes: int = 0
    attributes: tuple[LaunchAttribute, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between slices, of the source's size."""

    target: Slice
    source: Slice


@dataclass(frozen=True, slots=True)
class Fill:
    """A slice set to one 4-byte value."""

    target: Slice
    value: int


@dataclass(frozen=True, slots=True)
class Program:
    """Launches over buffers.

    Attributes:
      buffers: all memory it uses.
      kernels: that its launches name.
      launches: kernels, copies and fills, in an order that respects `edges`.
      edges: None: each waits for the one before, as on a stream.
      inputs: what a caller writes before a run.
      outputs: what a caller reads after it.
    """

    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch | Copy | Fill, ...]
    edges: tuple[Edge, ...] | None = None
    inputs: tuple[Slice, ...] = ()
    outputs: tuple[Slice, ...] = ()

    def __post_init__(self) -> None:
        for number, launch in enumerate(self.launches):
            for part in slices_of(launch):
                self._check(number, part)
        for edge in self.edges or ():
            if not 0 <= edge.source < edge.target < len(self.launches):
                raise DataError("program", f"{edge} is no edge from an earlier to a later launch")

    def _check(self, number: int, part: Slice) -> None:
        if not 0 <= part.buffer < len(self.buffers):
            raise DataError(f"launch {number}", f"{part} names no buffer")
        buffer = self.buffers[part.buffer]
        if part.offset < 0 or part.offset + part.nbytes > buffer.nbytes:
            raise DataError(f"launch {number}", f"{part} lies outside {buffer.nbytes} bytes")
        if (buffer.first or 0) > number or (buffer.last is not None and buffer.last < number):
            raise DataError(f"launch {number}", f"{part} is used outside its buffer's lifetime")


def slices_of(launch: Launch | Copy | Fill) -> tuple[Slice, ...]:
    """Return the slices a launch names."""
    if isinstance(launch, Launch):
        return tuple(place.slice for a in launch.arguments for place in a.places)
    return (launch.target, launch.source) if isinstance(launch, Copy) else (launch.target,)
