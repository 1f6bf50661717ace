"""Launch programs: buffers, kernels and launches of a step, as data."""

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
    """A buffer of device memory.

    Attributes:
      first: allocation before this launch; None: before all.
      last: free after this launch; None: kept.
      thread: allocating thread, with numbers of its own.
      content: written on allocation.
    """

    nbytes: int
    first: int | None = None
    last: int | None = None
    thread: str = "main"
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bytes of a buffer, given by index."""

    buffer: int
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A slice's address at byte `at` of an argument."""

    at: int
    slice: Slice
    kind: Literal["pointer", "map"] = "pointer"


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter's bytes, and places of addresses in them."""

    data: bytes
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, from an image or a library.

    Attributes:
      image: PTX or cubin; empty: in a library.
      library: path; empty: the image is loaded.
      is_hidden: whether no symbol names it.
      shared_limit: dynamic shared memory, bytes; 0: the default.
    """

    entry: str
    image: bytes = b""
    library: str = ""
    is_hidden: bool = False
    shared_limit: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel, given by index."""

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
    """A fill of a slice with one 4-byte value."""

    target: Slice
    value: int


@dataclass(frozen=True, slots=True)
class Program:
    """A sequence of launches over buffers.

    Attributes:
      launches: kernels, copies and fills, ordered by `edges`.
      edges: dependencies; None: one after another.
      inputs: slices written before a run.
      outputs: slices read after a run.

    Raises:
      DataError: a slice outside its buffer or lifetime, or a backward edge.
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
                raise DataError("program", f"{edge} does not lead to a later launch")

    def _check(self, number: int, part: Slice) -> None:
        if not 0 <= part.buffer < len(self.buffers):
            raise DataError(f"launch {number}", f"{part} names a buffer that the program lacks")
        buffer = self.buffers[part.buffer]
        if part.offset < 0 or part.offset + part.nbytes > buffer.nbytes:
            raise DataError(f"launch {number}", f"{part} exceeds a buffer of {buffer.nbytes} bytes")
        if (buffer.first or 0) > number or (buffer.last is not None and buffer.last < number):
            raise DataError(f"launch {number}", f"{part} is used outside of its buffer's lifetime")


def slices_of(launch: Launch | Copy | Fill) -> tuple[Slice, ...]:
    """Return the slices that a launch names."""
    if isinstance(launch, Launch):
        return tuple(place.slice for a in launch.arguments for place in a.places)
    return (launch.target, launch.source) if isinstance(launch, Copy) else (launch.target,)
