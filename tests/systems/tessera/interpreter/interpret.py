"""PTX interpreter without a GPU, for the instructions of the kernels and injected code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from c2c.errors import DataError
from c2c.systems.tessera.ptx.inject import Interval
from c2c.systems.tessera.ptx.reach import Access, KernelAccess, reach
from c2c.systems.tessera.ptx.text import Address, Instruction, KernelText, Vector
from tests.systems.tessera.interpreter.lanes import Lanes, Triple
from tests.systems.tessera.interpreter.memory import Memory
from tests.systems.tessera.interpreter.operations import (
    DTYPES,
    OPERATIONS,
    compare,
    convert,
    kind_of,
    operate,
)
from tests.systems.tessera.interpreter.spaces import BASES, Spaces, layout_of, parameter_bytes
from tests.systems.tessera.interpreter.tensor import MMA, load_matrices, multiply
from tests.systems.tessera.interpreter.warps import shuffle

__all__ = ["interpret"]

Array = Any

# All threads of several blocks run together as lanes of NumPy arrays. A step runs the ready lanes
# at the lowest instruction, so that diverged lanes converge again.
_LANES_AT_ONCE: Final = 8192
_MOST_STEPS: Final = 2_000_000  # limit of one batch of blocks; a kernel that never ends is an error
_NOTHING = frozenset({
    "griddepcontrol", "fence", "membar", "prefetch", "prefetchu", "nanosleep", "setmaxnreg",
    "pragma",
})  # fmt: skip
_BEYOND = frozenset({"cc", "hi", "relu"})  # qualifiers that no kernel here uses


def interpret(
    kernel: KernelText, grid: Triple, block: Triple, parameters: Sequence[bytes], memory: Memory, *,
    shared_bytes: int = 0,
) -> Mapping[int, Interval]:  # fmt: skip
    """Run a kernel over memory; return the interval that each access to global memory touched.

    Args:
      kernel: kernel to run.
      grid: number of blocks by axis.
      block: number of threads of a block by axis.
      parameters: bytes of each parameter.
      memory: global memory that the parameters point to; changed in place.
      shared_bytes: dynamic shared memory of the launch.

    Returns:
      Intervals by the index of the access's instruction.

    Raises:
      DataError: an instruction outside the subset, named with its line; parameters of other sizes
        than the kernel's; a kernel that never ends.
      DeviceFault: an access outside the memory's allocations.
    """
    sizes = [p.nbytes for p in kernel.parameters]
    if [len(p) for p in parameters] != sizes:
        raise DataError(
            f"kernel {kernel.name}", f"got {len(parameters)} parameters, needs sizes {sizes} bytes"
        )
    known = reach(kernel)
    layout = layout_of(kernel, shared_bytes)
    given = parameter_bytes(kernel, parameters)
    count = int(np.prod(grid))
    step = max(1, _LANES_AT_ONCE // int(np.prod(block)))
    touched: dict[int, Interval] = {a.index: Interval() for a in known.accesses}
    for first in range(0, count, step):
        blocks = range(first, min(first + step, count))
        lanes = Lanes(kernel, grid, block, blocks, layout.places)
        spaces = Spaces(memory, layout, given, lanes.block_of, len(blocks))
        _Batch(known, lanes, spaces, len(blocks), touched).run()
    return touched


@dataclass(slots=True)
class _Batch:
    known: KernelAccess
    lanes: Lanes
    spaces: Spaces
    blocks: int
    touched: dict[int, Interval]
    accesses: dict[int, Access] = field(init=False)
    waiting: Array = field(init=False)

    def __post_init__(self) -> None:
        self.accesses = {a.index: a for a in self.known.accesses}
        self.waiting = np.full(self.lanes.count, -1)  # instruction of the barrier a lane waits at

    def run(self) -> None:
        """Run all lanes to their end."""
        body, lanes = self.known.kernel.body, self.lanes
        with np.errstate(all="ignore"):
            for _ in range(_MOST_STEPS):
                ready = lanes.is_alive & (self.waiting < 0)
                if not ready.any():
                    if not lanes.is_alive.any():
                        return
                    self._release()
                    continue
                at = int(lanes.at[ready].min())
                if at >= len(body):
                    lanes.is_alive[ready & (lanes.at == at)] = False
                    continue
                self._step(body[at], at, ready & (lanes.at == at))
        raise DataError(f"kernel {self.known.kernel.name}", f"still runs after {_MOST_STEPS} steps")

    def _step(self, instruction: Instruction, at: int, here: Array) -> None:
        lanes = self.lanes
        which = np.nonzero(here)[0]
        lanes.at[which] = at + 1
        if instruction.predicate:
            holds = lanes.register(instruction.predicate)[which]
            which = which[~holds if instruction.is_negated else holds]
        if not len(which):
            return
        name = instruction.name
        if name in ("bra", "ret", "exit"):
            if name == "bra":
                lanes.at[which] = self._label(instruction)
            else:
                lanes.is_alive[which] = False
        elif name in ("bar", "barrier"):
            self._arrive(instruction, at, which)
        elif name not in _NOTHING:
            self._execute(instruction, at, which)

    def _label(self, instruction: Instruction) -> int:
        target = str(instruction.operands[0])
        if target not in self.known.kernel.labels:
            raise self.known.kernel.fault(instruction, "branch to an unknown label")
        return self.known.kernel.labels[target]

    def _arrive(self, instruction: Instruction, at: int, which: Array) -> None:
        if instruction.parts[1:2] != ("sync",) and "warp" not in instruction.parts:
            raise self.known.kernel.fault(instruction, "unsupported barrier")
        if "warp" in instruction.parts:
            return  # lanes of a warp at one instruction run together
        if len(instruction.operands) > 1:
            raise self.known.kernel.fault(instruction, "unsupported barrier of some threads")
        self.waiting[which] = at

    def _release(self) -> None:
        """Release the lanes of each block from their barrier."""
        for block in range(self.blocks):
            mine = (self.lanes.block_of == block) & self.lanes.is_alive
            if len(np.unique(self.waiting[mine])) > 1:
                name = self.known.kernel.name
                raise DataError(f"kernel {name}", "threads of a block wait at different barriers")
            self.waiting[mine] = -1

    def _execute(self, instruction: Instruction, at: int, which: Array) -> None:
        name = instruction.name
        if name in ("ld", "ldu", "st", "atom", "red", "cp"):
            self._memory(instruction, at, which)
        elif name == "mov":
            self._move(instruction, which)
        elif name in ("mma", "ldmatrix"):
            self._tensor(instruction, which)
        elif name == "cvta":
            self._to_space(instruction, which)
        elif _BEYOND & set(instruction.parts):
            raise self.known.kernel.fault(instruction, "unsupported instruction")
        elif name == "shfl":
            shuffle(self.lanes, instruction, which)
        elif name in _CHOICES:
            _CHOICES[name](self, instruction, which)
        elif name in OPERATIONS:
            self._arithmetic(instruction, which)
        else:
            raise self.known.kernel.fault(instruction, "unsupported instruction")

    def value(self, instruction: Instruction, number: int, kind: str, which: Array) -> Array:
        """Return an operand's values in some lanes."""
        operand = instruction.operands[number]
        if not isinstance(operand, str):
            raise self.known.kernel.fault(instruction, "unsupported operand")
        return self.lanes.read(operand, kind, which, instruction)

    def target(self, instruction: Instruction) -> str:
        """Return the register that an instruction writes."""
        first = instruction.operands[0]
        if not isinstance(first, str):
            raise self.known.kernel.fault(instruction, "unsupported result")
        return first

    def _arithmetic(self, instruction: Instruction, which: Array) -> None:
        parts, name = instruction.parts, instruction.name
        kind = kind_of(parts)
        packed = kind.endswith("x2")
        given = []
        for k in range(1, len(instruction.operands)):
            mine = "u32" if name in ("shl", "shr") and k == 2 else kind
            if name == "bfe" and k > 1:
                mine = "u32"
            if name == "mad" and "wide" in parts and k == 3:
                mine = f"{kind[0]}{2 * int(kind[1:])}"
            if packed:
                halves = self.value(instruction, k, "b32", which)
                given.append(halves.view(DTYPES[kind.removesuffix("x2")]))
            else:
                given.append(self.value(instruction, k, mine, which))
        made = operate(parts, given)
        if packed:
            made = np.ascontiguousarray(made).view(np.uint32)
        self.lanes.write(self.target(instruction), made, which)

    def _tensor(self, instruction: Instruction, which: Array) -> None:
        parts = instruction.parts
        whole = len(which) % 32 == 0 and np.all(self.lanes.thread[which[::32]] % 32 == 0)
        if not whole:
            raise self.known.kernel.fault(instruction, "a tensor instruction of a partial warp")
        if instruction.name == "ldmatrix":
            made = self._matrices(instruction, which)
        else:
            kind = parts[7] if len(parts) > 7 else ""
            if instruction.opcode not in (MMA.format(kind="bf16"), MMA.format(kind="f16")):
                raise self.known.kernel.fault(instruction, "unsupported product")
            a, b, c = (
                [self.lanes.read(p, t, which, instruction) for p in self._parts(instruction, k)]
                for k, t in ((1, "b32"), (2, "b32"), (3, "f32"))
            )
            made = multiply(kind, a, b, c)
        for name, value in zip(self._parts(instruction, 0), made, strict=True):
            self.lanes.write(name, value, which)

    def _parts(self, instruction: Instruction, number: int) -> tuple[str, ...]:
        operand = instruction.operands[number]
        if not isinstance(operand, Vector):
            raise self.known.kernel.fault(instruction, "unsupported operand")
        return operand.parts

    def _matrices(self, instruction: Instruction, which: Array) -> list[Array]:
        count = len(self._parts(instruction, 0))
        address = instruction.operands[1]
        if not isinstance(address, Address) or "b16" not in instruction.parts:
            raise self.known.kernel.fault(instruction, "unsupported matrices")
        places = self._addresses(address, instruction, which).astype(np.int64)
        places = np.where(places >= BASES["shared"], places - BASES["shared"], places).reshape(
            -1, 32
        )
        begins = places[:, : 8 * count].reshape(-1, count, 8)
        blocks = self.lanes.block_of[which[::32]]
        rows = self.spaces.shared[blocks[:, None, None, None], begins[..., None] + np.arange(16)]
        return load_matrices(rows, transposed="trans" in instruction.parts)

    def _move(self, instruction: Instruction, which: Array) -> None:
        kind = kind_of(instruction.parts)
        target, source = instruction.operands[:2]
        if isinstance(target, Vector):
            whole = self.value(instruction, 1, kind, which)
            each = whole.dtype.itemsize // len(target.parts)
            halves = whole.view(f"u{each}").reshape(len(whole), -1)
            for k, part in enumerate(target.parts):
                self.lanes.write(part, halves[:, k], which)
            return
        if isinstance(source, Vector):
            each = DTYPES[kind].itemsize // len(source.parts)
            parts = [self.lanes.read(p, f"b{8 * each}", which, instruction) for p in source.parts]
            made = np.ascontiguousarray(np.stack(parts, 1)).view(f"u{DTYPES[kind].itemsize}")[:, 0]
        else:
            made = self.value(instruction, 1, kind, which)
        self.lanes.write(self.target(instruction), made, which)

    def _to_space(self, instruction: Instruction, which: Array) -> None:
        value = self.value(instruction, 1, kind_of(instruction.parts), which)
        base = next((BASES[p.partition("::")[0]] for p in instruction.parts
                     if p.partition("::")[0] in BASES), 0)  # fmt: skip
        if base:
            by = value.dtype.type(base)
            value = value - by if "to" in instruction.parts else value + by
        self.lanes.write(self.target(instruction), value, which)

    def _memory(self, instruction: Instruction, at: int, which: Array) -> None:
        name, parts = instruction.name, instruction.parts
        if name == "cp":
            self._async_copy(instruction, at, which)
            return
        kind = kind_of(parts)
        if kind.endswith("x2"):
            kind = "b32"
        numbers = [k for k, o in enumerate(instruction.operands) if isinstance(o, Address)]
        address = instruction.operands[numbers[0]]
        assert isinstance(address, Address)
        places = self._addresses(address, instruction, which)
        if name in ("atom", "red"):
            self._note(at, places, DTYPES[kind].itemsize)
            self._atomic(instruction, kind, places, which)
            return
        register = instruction.operands[1 if name == "st" else 0]
        names = register.parts if isinstance(register, Vector) else (str(register),)
        size = DTYPES[kind].itemsize
        self._note(at, places, size * len(names))
        for k, each in enumerate(names):
            there = places + np.uint64(k * size)
            if name == "st":
                values = self.lanes.read(each, kind, which, instruction)
                self.spaces.store(parts, there, values.view(f"u{size}"), which)
            else:
                words = self.spaces.load(parts, there, size, which)
                self.lanes.write(each, words.view(DTYPES[kind]), which)

    def _note(self, at: int, places: Array, nbytes: int) -> None:
        if at in self.touched:
            outside = places >= np.uint64(2**38)  # global: not on the chip, not a parameter
            self.touched[at].touch(places[outside], nbytes)

    def _addresses(self, address: Address, instruction: Instruction, which: Array) -> Array:
        base = self.lanes.read(address.base, "b64", which, instruction)
        return base + np.uint64(address.offset % 2**64)

    def _async_copy(self, instruction: Instruction, at: int, which: Array) -> None:
        parts, operands = instruction.parts, instruction.operands
        if "bulk" in parts:
            raise self.known.kernel.fault(instruction, "unsupported bulk copy")
        if not operands or not isinstance(operands[0], Address):
            return  # a commit or a wait; copies are synchronous here
        source = operands[1]
        assert isinstance(source, Address)
        nbytes = int(str(operands[2]), 0)
        there = self._addresses(source, instruction, which)
        to = self._addresses(operands[0], instruction, which)
        sizes = np.full(len(which), nbytes)
        if len(operands) > 3:
            sizes = self.value(instruction, 3, "u32", which).astype(np.int64)
        self._note(at, there[sizes > 0], nbytes)
        for byte in range(0, nbytes, 4):
            word = np.zeros(len(which), np.uint32)
            some = sizes > byte
            word[some] = self.spaces.memory.gather(there[some] + np.uint64(byte), 4)
            self.spaces.store(("st", "shared"), to + np.uint64(byte), word, which)

    def _atomic(self, instruction: Instruction, kind: str, places: Array, which: Array) -> None:
        parts, operands = instruction.parts, instruction.operands
        how = next((p for p in parts[1:] if p in _ATOMICS or p == "cas"), None)
        wants_old = instruction.name == "atom" and operands[0] != "_"
        if "global" not in parts or how is None or (how != "cas" and wants_old):
            raise self.known.kernel.fault(instruction, "unsupported atomic")
        first = 2 if instruction.name == "atom" else 1
        values = [self.value(instruction, k, kind, which) for k in range(first, len(operands))]
        cells, where = self.spaces.memory.cells(places, DTYPES[kind])
        if how != "cas":
            _ATOMICS[how].at(cells, where, values[0])
            return
        old = np.empty(len(which), cells.dtype)
        for k, place in enumerate(where):
            old[k] = cells[place]
            if old[k] == values[0][k]:
                cells[place] = values[1][k]
        if wants_old:
            self.lanes.write(str(operands[0]), old, which)


def _setp(batch: _Batch, instruction: Instruction, which: Array) -> None:
    parts = instruction.parts
    kind = kind_of(parts)
    left, right = (batch.value(instruction, k, kind, which) for k in (1, 2))
    holds = compare(parts[1], left, right)
    targets = batch.target(instruction).split("|")
    other = [p for p in parts[2:4] if p in _JOINS]
    results = [holds, ~holds]
    if other:
        given = batch.value(instruction, 3, "pred", which)
        results = [_JOINS[other[0]](r, given) for r in results]
    for name, result in zip(targets, results, strict=False):
        batch.lanes.write(name, result, which)


def _selp(batch: _Batch, instruction: Instruction, which: Array) -> None:
    kind = kind_of(instruction.parts)
    one, other = (batch.value(instruction, k, kind, which) for k in (1, 2))
    chosen = np.where(batch.value(instruction, 3, "pred", which), one, other)
    batch.lanes.write(batch.target(instruction), chosen, which)


def _cvt(batch: _Batch, instruction: Instruction, which: Array) -> None:
    parts = instruction.parts
    to, source = parts[-2], parts[-1]
    if to.endswith("x2"):
        each = to.removesuffix("x2")
        high, low = (
            convert(parts, each, batch.value(instruction, k, source, which)) for k in (1, 2)
        )
        made = np.stack([low, high], 1).view(np.uint32)[:, 0]
    else:
        made = convert(parts, to, batch.value(instruction, 1, source, which))
    batch.lanes.write(batch.target(instruction), made, which)


_CHOICES: Mapping[str, Callable[[_Batch, Instruction, Array], None]] = {
    "setp": _setp, "selp": _selp, "cvt": _cvt,
}  # fmt: skip
_JOINS: Mapping[str, Any] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip
_ATOMICS: Mapping[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
