"""State spaces of several blocks: global, shared, local and parameter memory by address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from c2c.systems.tessera.ptx.text import KernelText
from tests.systems.tessera.interpreter.memory import Memory

__all__ = ["BASES", "Layout", "Spaces", "layout_of", "parameter_bytes"]

Array = Any

# Generic addresses at which the other spaces begin; global memory is far above.
BASES: Final[Mapping[str, int]] = {
    "shared": 0x1_0000_0000,
    "local": 0x2_0000_0000,
    "param": 0x3_0000_0000,
}
_SPARE = 16  # bytes behind each memory, so that a matrix row at its end can be read


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of a kernel's variables and parameters in their spaces, and the spaces' sizes."""

    places: Mapping[str, int]
    shared_bytes: int
    local_bytes: int


def layout_of(kernel: KernelText, shared_bytes: int) -> Layout:
    """Return the layout of a kernel with `shared_bytes` of dynamic shared memory."""
    places: dict[str, int] = {}
    at = 0
    for parameter in kernel.parameters:
        at = -(-at // parameter.align) * parameter.align
        places[parameter.name] = at
        at += parameter.nbytes
    sizes = {"shared": 0, "local": 0}
    ordered = sorted(kernel.variables.values(), key=lambda v: v.nbytes == 0)  # dynamic ones last
    for variable in ordered:
        if variable.space in sizes:
            begin = -(-sizes[variable.space] // variable.align) * variable.align
            places[variable.name] = begin
            sizes[variable.space] = begin + variable.nbytes
    return Layout(places, sizes["shared"] + shared_bytes, sizes["local"])


def parameter_bytes(kernel: KernelText, parameters: Sequence[bytes]) -> bytes:
    """Return all parameters as one byte string, each at its alignment."""
    found = bytearray()
    for data, parameter in zip(parameters, kernel.parameters, strict=True):
        found += bytes(-len(found) % parameter.align) + data
    return bytes(found) + bytes(_SPARE)


class Spaces:
    """Memory as lanes see it.

    Attributes:
      memory: global memory.
      shared: shared memory, [block, byte].
    """

    def __init__(
        self, memory: Memory, layout: Layout, parameters: bytes, block_of: Array, blocks: int
    ) -> None:
        self.memory = memory
        self.shared = np.zeros((blocks, layout.shared_bytes + _SPARE), np.uint8)
        self._local = np.zeros((len(block_of), layout.local_bytes + _SPARE), np.uint8)
        self._parameters = np.frombuffer(parameters, np.uint8)
        self._block_of = block_of

    def space(self, parts: tuple[str, ...], places: Array) -> tuple[str, Array]:
        """Return the space of an opcode's addresses, and the offsets in it."""
        for part in parts:
            space = part.partition("::")[0]
            if space == "global" or space in BASES:
                return space, places
        for space, base in BASES.items():
            if np.all((places >= np.uint64(base)) & (places < np.uint64(base + 2**32))):
                return space, places - np.uint64(base)
        return "global", places

    def load(self, parts: tuple[str, ...], places: Array, nbytes: int, which: Array) -> Array:
        """Return the words at addresses of some lanes."""
        space, at = self.space(parts, places)
        if space == "global":
            return self.memory.gather(at, nbytes)
        columns = at.astype(np.int64)[:, None] + np.arange(nbytes)
        if space == "param":
            found = self._parameters[columns]
        else:
            rows, held = self._held(space, which)
            found = held[rows[:, None], columns]
        return np.ascontiguousarray(found).view(f"u{nbytes}")[:, 0]

    def store(self, parts: tuple[str, ...], places: Array, words: Array, which: Array) -> None:
        """Write words at addresses of some lanes."""
        space, at = self.space(parts, places)
        if space == "global":
            self.memory.scatter(at, words)
            return
        rows, held = self._held(space, which)
        columns = at.astype(np.int64)[:, None] + np.arange(words.dtype.itemsize)
        held[rows[:, None], columns] = np.ascontiguousarray(words)[:, None].view(np.uint8)

    def _held(self, space: str, which: Array) -> tuple[Array, Array]:
        if space == "shared":
            return self._block_of[which], self.shared
        return which, self._local
