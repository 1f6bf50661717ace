"""A lowered kernel's TMA descriptors, and the driver's rules.

Source: CUDA driver API 13.0, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

_CALL = "mosaic_gpu_init_tma_desc"
# jax's numbers of element types, jaxlib/mosaic/gpu/runtime.cc
_BITS = {**dict.fromkeys((0, 13), 4), **dict.fromkeys((1, 8, 12, 14, 15, 16), 8)}
_BITS |= {**dict.fromkeys((2, 5, 7, 9), 16), **dict.fromkeys((3, 6, 10), 32), 4: 64, 11: 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A requested descriptor, dimensions from outermost to innermost."""

    bits: int  # of an element
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # in elements; the last is 1
    box: tuple[int, ...]
    swizzle: int  # bytes; 16: none

    @property
    def box_bytes(self) -> int:
        """Bytes of shared memory in a copy."""
        return prod(self.box) * self.bits // 8

    def faults(self) -> Iterator[str]:
        """Yield violations of the driver's or the hardware's limits."""
        rank, inner = len(self.sizes), self.box[-1] * self.bits // 8
        steps = [stride * self.bits for stride in self.strides[:-1]]
        for wrong, fault in (
            (not 1 <= rank <= 5, f"rank {rank}, allowed: 1 to 5"),
            (len({rank, len(self.strides), len(self.box)}) > 1, "ranks differ"),
            (self.strides[-1] != 1, f"innermost stride {self.strides[-1]}, not 1"),
            (not all(1 <= n <= 2**32 for n in self.sizes), f"sizes {self.sizes}, at most 2**32"),
            (
                any(step % 128 or step >= 8 * 2**40 for step in steps),
                f"strides {self.strides} of {self.bits} bits, allowed: 16 bytes' multiples < 2**40",
            ),
            (not all(1 <= n <= 256 for n in self.box), f"box {self.box}, allowed: 1 to 256"),
            (inner % 16 != 0, f"innermost box of {inner} bytes, allowed: multiples of 16"),
            (self.swizzle not in (16, 32, 64, 128), f"swizzle {self.swizzle}"),
            (
                16 < self.swizzle < inner,
                f"innermost box of {inner} bytes is wider than its swizzle of {self.swizzle}",
            ),
        ):
            if wrong:
                yield fault


def descriptors(kernel: Any) -> tuple[Descriptor, ...]:
    """Return a lowered kernel's descriptors, in parameter order."""
    from jaxlib.mlir import ir

    maps: list[Descriptor] = []

    def visit(operation: Any) -> Any:
        if operation.name.endswith("func.call") and _CALL in str(operation.attributes["callee"]):
            _, _, kind, _, sizes, strides, swizzle, box = operation.operands
            maps.append(
                Descriptor(
                    bits=_BITS[_number(kind)],
                    sizes=_stored(sizes),
                    strides=_stored(strides),
                    box=_stored(box),
                    swizzle=_number(swizzle),
                )
            )
        return ir.WalkResult.ADVANCE

    kernel.operation.walk(visit)
    return tuple(maps)


def _stored(array: Any) -> tuple[int, ...]:
    pointers = [use.owner for use in array.uses]
    stores = {
        int(pointer.attributes["rawConstantIndices"][0]): use.owner.operands[0]
        for pointer in pointers
        if pointer.name.endswith("getelementptr")
        for use in pointer.results[0].uses
    }
    return tuple(_number(stores[i]) for i in sorted(stores))


def _number(value: Any) -> int:
    from jaxlib.mlir import ir

    op = value.owner
    if op.name.endswith("arith.constant"):
        return int(ir.IntegerAttr(op.attributes["value"]).value)
    if op.name.endswith("index_cast"):
        return _number(op.operands[0])
    array = ir.MemRefType(op.operands[0].type)  # extract_strided_metadata
    strides, _ = array.get_strides_and_offset()
    index = list(op.results).index(value) - 2
    return int([*array.shape, *strides][index])
