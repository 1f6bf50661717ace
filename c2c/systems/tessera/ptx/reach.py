"""Read and write sets of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from c2c.systems.tessera.ptx.text import Address, Instruction, KernelText, Operand, Vector

__all__ = ["Access", "KernelAccess", "Mode", "Reached", "reach"]

Mode = Literal["r", "w", "rw"]

MOST_PLACES: Final = 64  # offsets in a struct that one register may point to; more: any offset

# Instructions whose result may still be an address; results of all others are none.
_KEEPS = frozenset({"mov", "add", "sub", "cvta", "selp", "min", "max", "and", "or", "mapa", "shfl"})
_READS = frozenset({"ld", "ldu"})
_NO_DATA = frozenset({"prefetchu", "applypriority", "createpolicy", "isspacep"})
_SPACES = ("global", "shared", "local", "param", "const")
_ON_CHIP = frozenset({
    "mbarrier", "ldmatrix", "stmatrix", "wgmma", "mma", "tcgen05", "bar", "barrier", "fence",
    "membar", "griddepcontrol", "setmaxnreg", "elect", "clusterlaunchcontrol",
})  # fmt: skip


class Reached(NamedTuple):
    """A word of a parameter, at byte `at`: a pointer, or a descriptor if `is_map`."""

    parameter: int
    at: int = 0
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """An instruction that reads or writes global memory.

    Attributes:
      mode: r, w or rw.
      nbytes: of a thread; 0: by register or descriptor.
      address: its operand.
      reached: possible parameter words.
    """

    index: int
    mode: Mode
    nbytes: int
    address: Address
    reached: frozenset[Reached]


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """A kernel's accesses to global memory.

    Attributes:
      opaque: unknown accesses, with reason, file, line, instruction.
    """

    kernel: KernelText
    accesses: tuple[Access, ...]
    opaque: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[Reached]:
        """Words of parameters that it reads through."""
        return frozenset(r for a in self.accesses if "r" in a.mode for r in a.reached)

    @property
    def writes(self) -> frozenset[Reached]:
        """Words of parameters that it writes through."""
        return frozenset(r for a in self.accesses if "w" in a.mode for r in a.reached)


# Values of a register: an address from a parameter's word, the address of a parameter's own byte
# (None: any byte of it), an address on the chip, a word loaded from memory, a variable.
class _Own(NamedTuple):
    parameter: int
    at: int | None


class _Loaded(NamedTuple):
    pass


class _OnChip(NamedTuple):
    """An address of shared or local memory."""


class _Global(NamedTuple):
    pass


_Value = Reached | _Own | _Loaded | _OnChip | _Global
_Values = frozenset[_Value]
_NONE: _Values = frozenset()


def reach(kernel: KernelText) -> KernelAccess:
    """Return a kernel's accesses, with parameters possibly reached.

    An unreached address makes the kernel opaque.

    Source: Tessera, section III-A, which records at run time; ours needs no run.
    """
    state = _Held(kernel)
    state.settle()
    accesses, opaque = [], []
    for index, instruction in enumerate(kernel.body):
        for access in _accesses(index, instruction, state):
            if isinstance(access, str):
                opaque.append(str(kernel.fault(instruction, access)))
            else:
                accesses.append(access)
    return KernelAccess(kernel, tuple(accesses), tuple(opaque))


class _Held:
    """Values of each register; memory on the chip counts as one cell."""

    def __init__(self, kernel: KernelText) -> None:
        self._kernel = kernel
        self._parameters = {p.name: k for k, p in enumerate(kernel.parameters)}
        self._of: dict[str, _Values] = {}
        self._cell: _Values = _NONE

    def settle(self) -> None:
        while self._pass():
            pass

    def of(self, operand: Operand) -> _Values:
        if isinstance(operand, Vector):
            return _NONE.union(*map(self.of, operand.parts))
        name = operand.base if isinstance(operand, Address) else operand
        offset = operand.offset if isinstance(operand, Address) else 0
        if name in self._parameters:
            return frozenset({_Own(self._parameters[name], offset)})
        if name in self._kernel.variables:
            is_global = self._kernel.variables[name].space == "global"
            return frozenset({_Global() if is_global else _OnChip()})
        return _moved(self._of.get(name, _NONE), offset)

    def _pass(self) -> bool:
        changed = False
        for instruction in self._kernel.body:
            if instruction.name in ("st", "cp") and len(instruction.operands) > 1:
                stored = self._cell | self.of(instruction.operands[1])
                if instruction.name == "st" and not stored <= self._cell:
                    self._cell, changed = stored, True
                continue
            for k, name in enumerate(_written_to(instruction)):
                gives = self._result(instruction, k)
                values = self._of.get(name, _NONE)
                if not gives <= values:
                    self._of[name], changed = _few(values | gives), True
        return changed

    def _result(self, instruction: Instruction, part: int) -> _Values:
        name, operands = instruction.name, instruction.operands
        if name in _READS:
            return self._loaded(instruction, 8 * part)
        if name in ("atom", "ldmatrix"):
            return frozenset({_Loaded()}) if _width(instruction.parts) == 8 else _NONE
        if name == "mad":
            return self.of(operands[3])
        if name not in _KEEPS or len(operands) < 2:
            return _NONE
        if name in ("add", "sub"):
            return self._sum(name, operands)
        return _NONE.union(*map(self.of, operands[1:]))

    def _sum(self, name: str, operands: tuple[Operand, ...]) -> _Values:
        left, right = operands[1], operands[2]
        for one, other in ((left, right), (right, left)):
            if isinstance(other, str) and (number := _number(other)) is not None:
                return _moved(self.of(one), -number if name == "sub" else number)
        return _moved(self.of(left) | self.of(right), None)

    def _loaded(self, instruction: Instruction, skipped: int) -> _Values:
        source, parts = instruction.operands[1], instruction.parts
        if _width(parts) != 8:
            return _NONE
        places = self.of(source)
        values: set[_Value] = set()
        for place in places:
            if isinstance(place, _Own):
                offset = place.at
                values.add(
                    _Loaded() if offset is None else Reached(place.parameter, offset + skipped)
                )
            elif isinstance(place, _OnChip):
                values |= self._cell
            else:
                values.add(_Loaded())
        if not places:
            values |= self._cell if "shared" in parts or "local" in parts else {_Loaded()}
        return frozenset(values)


def _accesses(index: int, instruction: Instruction, registers: _Held) -> Iterator[Access | str]:
    name, parts = instruction.name, instruction.parts
    addresses = [o for o in instruction.operands if isinstance(o, Address)]
    if name in ("call", "tensormap", "multimem"):
        yield "unknown memory accesses of a call or a changed descriptor"
    elif name in ("ld", "ldu", "st", "atom", "red", "prefetch", "discard"):
        qualified = [p.partition("::")[0] for p in parts]
        space = next((s for s in _SPACES if s in qualified), "generic")
        if "tensormap" in parts or space not in ("global", "generic"):
            return
        mode: Mode = "rw"
        if name in ("ld", "ldu", "prefetch"):
            mode = "r"
        elif name in ("st", "discard"):
            mode = "w"
        # discarded bytes are undefined afterwards, as if written
        size = int(str(instruction.operands[1]), 0) if name == "discard" else None
        nbytes = _all_bytes(instruction) if size is None else size
        yield from _one(index, mode, nbytes, addresses[0], registers, space)
    elif name == "cp":
        yield from _copy(index, instruction, addresses, registers)
    elif addresses and name not in _ON_CHIP | _NO_DATA:
        yield "unknown memory access"


def _copy(
    index: int, instruction: Instruction, addresses: list[Address], registers: _Held
) -> Iterator[Access | str]:
    parts = instruction.parts
    spaces = [p.partition("::")[0] for p in parts if p.partition("::")[0] in ("shared", "global")]
    if not addresses or "mbarrier" in parts[:3] or not spaces:
        return  # a commit, a wait, an arrival
    if "prefetch" in parts or ("tensor" in parts and "prefetch" in parts):
        yield from _one(index, "r", 0, addresses[0], registers, "global")
        return
    if spaces[0] == "shared" and "global" in spaces:
        size = 0 if "bulk" in parts else int(str(instruction.operands[2]), 0)
        yield from _one(index, "r", size, addresses[1], registers, "global")
    elif spaces[0] == "global":
        mode: Mode = "rw" if "reduce" in parts else "w"
        yield from _one(index, mode, 0, addresses[0], registers, "global")


def _one(
    index: int, mode: Mode, nbytes: int, address: Address, registers: _Held, space: str
) -> Iterator[Access | str]:
    values = registers.of(address)
    reached = {v for v in values if isinstance(v, Reached)}
    if address.coordinates:  # a tensor copy, by a descriptor in a parameter
        reached = {Reached(v.parameter, v.at, is_map=True) for v in values
                   if isinstance(v, _Own) and v.at is not None}  # fmt: skip
        if any(isinstance(v, _Own) and v.at is None for v in values):
            yield "a descriptor at an unknown offset of a parameter"
            return
    elif space == "generic" and values and not reached and values <= {_OnChip()}:
        return
    elif space == "generic" and any(isinstance(v, _Own) for v in values) and not reached:
        return  # a parameter's own bytes, read by their address
    if any(isinstance(v, _Global) for v in values):
        yield "an address of a variable in global memory"
    elif not reached:
        yield "an address that comes from no parameter"
    else:
        yield Access(index, mode, nbytes, address, frozenset(reached))


def _moved(values: _Values, by: int | None) -> _Values:
    """Return values moved by bytes; None: unknown."""
    if by == 0 or not any(isinstance(v, _Own) for v in values):
        return values
    return frozenset(
        _Own(v.parameter, None if by is None or v.at is None else v.at + by)
        if isinstance(v, _Own)
        else v
        for v in values
    )


def _few(values: _Values) -> _Values:
    places = [v for v in values if isinstance(v, _Own)]
    if len(places) <= MOST_PLACES:
        return values
    return frozenset(v for v in values if not isinstance(v, _Own)) | {
        _Own(v.parameter, None) for v in places
    }


def _written_to(instruction: Instruction) -> Iterable[str]:
    if not instruction.operands or instruction.name in ("st", "red", "bra", "prefetch"):
        return ()
    first = instruction.operands[0]
    if isinstance(first, Address):
        return ()
    return first.parts if isinstance(first, Vector) else first.split("|")


def _number(text: str) -> int | None:
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        return None


def _width(parts: Iterable[str]) -> int:
    widths: Mapping[str, int] = {"64": 8, "32": 4, "16": 2, "8": 1, "128": 16}
    last = [p for p in parts if p[:1] in "busf" and p[1:].removesuffix("x2") in widths]
    if not last:
        return 4
    nbytes = widths[last[-1][1:].removesuffix("x2")]
    return 2 * nbytes if last[-1].endswith("x2") else nbytes


def _all_bytes(instruction: Instruction) -> int:
    parts = instruction.parts
    types = [p for p in parts if p in ("bf16", "f16", "bf16x2", "f16x2")]
    nbytes = {"bf16": 2, "f16": 2, "bf16x2": 4, "f16x2": 4}[types[-1]] if types else _width(parts)
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
    return nbytes * count
