"""Warp-level instructions: shuffles, votes, reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from c2c.systems.tessera.ptx.text import Instruction
from tests.systems.tessera.interpreter.lanes import Lanes

__all__ = ["WARP_OPERATIONS"]

Array = Any


def _warp_of(lanes: Lanes) -> Array:
    """Return each lane's warp, numbered over all blocks."""
    per_block = -(-lanes.size // 32)
    return lanes.block_of * per_block + lanes.thread // 32


def _operand(instruction: Instruction, number: int) -> str:
    return str(instruction.operands[number])


def _shuffle(lanes: Lanes, instruction: Instruction, which: Array) -> None:
    how = next(p for p in instruction.parts if p in ("up", "down", "bfly", "idx"))
    every = np.arange(lanes.count)
    value = lanes.read(_operand(instruction, 1), "b32", every, instruction)
    by, clamp = (
        lanes.read(_operand(instruction, k), "u32", which, instruction).astype(np.int64)
        for k in (2, 3)
    )
    lane = lanes.thread[which] % 32
    segment = clamp >> 8 & 31
    last = lane & segment | clamp & 31 & ~segment
    first = lane & segment
    source = {
        "up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | by & 31 & ~segment,
    }[how]  # fmt: skip
    is_inside = source >= last if how == "up" else source <= last
    beyond = lanes.thread[which] - lane + source >= lanes.size  # a block's last warp may be short
    source = np.where(is_inside & ~beyond, source, lane)
    targets = _operand(instruction, 0).split("|")
    lanes.write(targets[0], value[which + source - lane], which)
    if len(targets) > 1:
        lanes.write(targets[1], is_inside, which)


def _vote(lanes: Lanes, instruction: Instruction, which: Array) -> None:
    how = next(p for p in instruction.parts if p in ("all", "any", "ballot", "uni"))
    holds = lanes.read(_operand(instruction, 1), "pred", which, instruction)
    warp = _warp_of(lanes)[which]
    count = int(warp.max()) + 1
    bits = np.zeros(count, np.uint32)
    np.bitwise_or.at(bits, warp, holds.astype(np.uint32) << (lanes.thread[which] % 32).astype("u4"))
    there = np.zeros(count, np.uint32)
    np.bitwise_or.at(there, warp, np.uint32(1) << (lanes.thread[which] % 32).astype("u4"))
    made = {
        "ballot": bits, "any": bits != 0, "all": bits == there,
        "uni": (bits == there) | (bits == 0),
    }[how]  # fmt: skip
    lanes.write(_operand(instruction, 0), made[warp], which)


def _reduce(lanes: Lanes, instruction: Instruction, which: Array) -> None:
    how, kind = instruction.parts[2], instruction.parts[-1]
    value = lanes.read(_operand(instruction, 1), kind, which, instruction)
    warp = _warp_of(lanes)[which]
    start = {
        "add": 0, "or": 0, "xor": 0, "and": -1 % 2**32,
        "min": np.iinfo(value.dtype).max, "max": np.iinfo(value.dtype).min,
    }[how]  # fmt: skip
    made = np.full(int(warp.max()) + 1, start, value.dtype)
    functions: Mapping[str, Any] = {
        "add": np.add, "or": np.bitwise_or, "xor": np.bitwise_xor, "and": np.bitwise_and,
        "min": np.minimum, "max": np.maximum,
    }  # fmt: skip
    functions[how].at(made, warp, value)
    lanes.write(_operand(instruction, 0), made[warp], which)


WARP_OPERATIONS: Final[Mapping[str, Callable[[Lanes, Instruction, Array], None]]] = {
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _reduce,
}
