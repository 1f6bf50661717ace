"""Lanes: registers and operands of the threads that run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from c2c.systems.tessera.ptx.text import Instruction, KernelText
from tests.systems.tessera.interpreter.operations import DTYPES

__all__ = ["Lanes", "Triple"]

Array = Any
Triple = tuple[int, int, int]

_AXES: Final = "xyz"


class Lanes:
    """State of all threads of several blocks, one lane a thread, block after block.

    Attributes:
      count: number of lanes.
      block_of: [lane], its block, counted from 0 among these.
      thread: [lane], its number in its block.
      at: [lane], index of its next instruction.
      is_alive: [lane], True until it returns.
    """

    def __init__(
        self, kernel: KernelText, grid: Triple, block: Triple, blocks: Sequence[int],
        places: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.size = int(np.prod(block))
        self.count = self.size * len(blocks)
        self.block_of = np.repeat(np.arange(len(blocks)), self.size)
        self.thread = np.tile(np.arange(self.size), len(blocks))
        self.at = np.zeros(self.count, np.int64)
        self.is_alive = np.ones(self.count, bool)
        self._registers: dict[str, Array] = {}
        self._places = places  # offsets of variables and parameters in their space
        self._special = _special(grid, block, np.repeat(np.asarray(blocks), self.size), self.thread)

    def register(self, name: str) -> Array:
        """Return a register's bits in all lanes."""
        if name not in self._registers:
            kind = self.kernel.register_type(name)
            bits = DTYPES["pred"] if kind == "pred" else DTYPES[f"u{kind.lstrip('usbf')}"]
            self._registers[name] = np.zeros(self.count, bits)
        return self._registers[name]

    def read(self, operand: str, kind: str, lanes: Array, of: Instruction) -> Array:
        """Return an operand as values of a type, in some lanes.

        Raises:
          DataError: an operand that the interpreter does not know.
        """
        dtype = DTYPES[kind]
        if operand in self._special:
            return self._special[operand][lanes].astype(dtype)
        if operand.startswith("!"):
            return ~self.register(operand[1:])[lanes]
        if operand in self._places:
            return self._same(self._places[operand], dtype, lanes)
        if operand.startswith("%"):
            bits = self.register(operand)[lanes]
            if dtype.kind == "b":
                return bits
            return bits.astype(DTYPES[f"u{8 * dtype.itemsize}"]).view(dtype)
        return self._same(_literal(operand, of, self.kernel), dtype, lanes)

    def write(self, operand: str, value: Array, lanes: Array) -> None:
        """Write values into a register, in some lanes; signed values are sign-extended."""
        if operand == "_":
            return
        held = self.register(operand)
        if held.dtype.kind == "b":
            held[lanes] = value
            return
        if value.dtype.kind == "i":
            wide = value.astype(f"i{held.dtype.itemsize}").view(held.dtype)
        else:
            same = value.view(f"u{value.dtype.itemsize}") if value.dtype.kind != "u" else value
            wide = same.astype(held.dtype)
        held[lanes] = wide

    def _same(self, number: int, dtype: Any, lanes: Array) -> Array:
        count = len(self.at[lanes])
        if dtype.kind == "b":
            return np.full(count, bool(number))
        bits = np.full(count, number % 2 ** (8 * dtype.itemsize), f"u{dtype.itemsize}")
        return bits.view(dtype)


def _literal(text: str, of: Instruction, kernel: KernelText) -> int:
    """Return a literal's number; of a floating-point literal (`0f...`, `0d...`), its bits."""
    if text[:2].lower() in ("0f", "0d"):
        bits = text[2:]
        return int(bits, 16)
    if text == "WARP_SZ":
        return 32
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        raise kernel.fault(of, f"unsupported operand {text}") from None


def _special(grid: Triple, block: Triple, number: Array, thread: Array) -> dict[str, Array]:
    result: dict[str, Array] = {}
    sizes = {"ntid": block, "nctaid": grid}
    for name, extents in sizes.items():
        for axis, extent in zip(_AXES, extents, strict=True):
            result[f"%{name}.{axis}"] = np.full(len(thread), extent, np.uint32)
    for name, of, extents in (("tid", thread, block), ("ctaid", number, grid)):
        rest = of.astype(np.uint32)
        for axis, extent in zip(_AXES, extents, strict=True):
            result[f"%{name}.{axis}"] = rest % np.uint32(extent)
            rest = rest // np.uint32(extent)
    result["%laneid"] = (thread % 32).astype(np.uint32)
    result["%warpid"] = (thread // 32).astype(np.uint32)
    return result
