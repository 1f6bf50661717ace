"""Shuffles of a warp's lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.systems.tessera.ptx.text import Instruction
from tests.systems.tessera.interpreter.lanes import Lanes

__all__ = ["shuffle"]

Array = Any


def _operand(instruction: Instruction, number: int) -> str:
    return str(instruction.operands[number])


def shuffle(lanes: Lanes, instruction: Instruction, which: Array) -> None:
    """Run a shuffle down, or among partners of a butterfly."""
    is_down = "down" in instruction.parts
    if not is_down and "bfly" not in instruction.parts:
        raise lanes.kernel.fault(instruction, "unsupported shuffle")
    every = np.arange(lanes.count)
    value = lanes.read(_operand(instruction, 1), "b32", every, instruction)
    by, clamp = (
        lanes.read(_operand(instruction, k), "u32", which, instruction).astype(np.int64)
        for k in (2, 3)
    )
    lane = lanes.thread[which] % 32
    segment = clamp >> 8 & 31
    last = lane & segment | clamp & 31 & ~segment
    source = lane + by if is_down else lane ^ by
    is_inside = source <= last
    beyond = lanes.thread[which] - lane + source >= lanes.size  # a block's last warp may be short
    source = np.where(is_inside & ~beyond, source, lane)
    targets = _operand(instruction, 0).split("|")
    lanes.write(targets[0], value[which + source - lane], which)
    if len(targets) > 1:
        lanes.write(targets[1], is_inside, which)
