"""Reader of XLA's distilled dumps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from c2c.errors import DataError
from c2c.ranges import Index, check_value
from c2c.systems.program.image import entries_of
from c2c.systems.program.program import (
    Argument,
    Buffer,
    Copy,
    Fill,
    Kernel,
    Launch,
    Place,
    Program,
    Slice,
)
from c2c.systems.program.xla.assignment import Assignment, parse_assignment
from c2c.systems.program.xla.distil import ASSIGNMENT, HLO, THUNKS
from c2c.systems.program.xla.hlo import Instruction, Module, parse_hlo
from c2c.systems.program.xla.thunks import Thunk, parse_thunks

__all__ = ["XlaStep", "read_dump"]

_STATIC_SHARED_BYTES: Final = 48 << 10
_PASSES = frozenset({"bitcast", "opt-barrier", "optimization-barrier", "add-dependency"})


@dataclass(frozen=True, slots=True)
class _Value:
    """An array's bytes and the writing launch; None: an earlier step."""

    slice: Slice
    launch: int | None = None


type _Tree = _Value | tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class XlaStep:
    """A program with XLA's facts.

    Attributes:
      names: HLO's name of each launch, with a loop's trip.
      operands: [launch], slices read.
      results: [launch], slices written.
      def_use: pairs of a launch and a reader.
      carried: slices for the next step.
      input_kinds: HLO's type of each input, such as `s32[4,1]`.
    """

    program: Program
    names: tuple[str, ...]
    operands: tuple[tuple[Slice, ...], ...]
    results: tuple[tuple[Slice, ...], ...]
    def_use: frozenset[tuple[int, int]]
    carried: tuple[Slice, ...]
    input_kinds: tuple[str, ...]


def read_dump(folder: Path, *, trips: int = 1) -> XlaStep:
    """Return a distilled folder's step.

    Args:
      trips: of every loop; the true number depends on data.

    Raises:
      DataError: missing or contradictory files.
      SettingError: trips below 0.
    """
    check_value(trips, Index, "trips")
    texts = {}
    for name in (HLO, ASSIGNMENT, THUNKS):
        path = folder / name
        if not path.is_file():
            raise DataError(str(path), "is missing")
        texts[name] = path.read_text("utf-8")
    reader = _Reader(
        str(folder),
        parse_hlo(texts[HLO], str(folder / HLO)),
        parse_assignment(texts[ASSIGNMENT], str(folder / ASSIGNMENT)),
        _images(folder),
        trips,
    )
    return reader.read(parse_thunks(texts[THUNKS], str(folder / THUNKS)))


def _images(folder: Path) -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.ptx")):
        image = path.read_bytes()
        if b".entry" in image:
            result.update((entry.name, image) for entry in entries_of(image))
    return result


# The thunk sequence has the launches, the PTX files their kernels, the scheduled HLO their
# operands, the buffer assignment each operand's bytes.
@dataclass(slots=True)
class _Reader:
    source: str
    module: Module
    assignment: Assignment
    images: Mapping[str, bytes]
    trips: int
    buffers: dict[int, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    launches: list[Launch | Copy | Fill] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    operands: list[tuple[Slice, ...]] = field(default_factory=list)
    results: list[tuple[Slice, ...]] = field(default_factory=list)
    def_use: set[tuple[int, int]] = field(default_factory=set)
    contents: dict[int, bytes] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def read(self, thunks: list[Thunk]) -> XlaStep:
        memory = [a for a in self.assignment.allocations if not a.is_local]
        self.buffers = {a.number: k for k, a in enumerate(memory)}
        parameters = self._parameters()
        rest = iter(thunks)
        root = self._walk(self.module.entry, parameters, rest, "")
        if thunk := next(rest, None):
            raise DataError(self.source, f"{thunk.name} is launched, but is not in the HLO")
        carried = []
        for number, path in self.module.aliases.items():
            result, parameter = _leaf(_at(root, path)), _leaf(parameters[number])
            if result.slice != parameter.slice:
                raise DataError(self.source, f"output {path} is not in parameter {number}'s memory")
            carried.append(result.slice)
        program = Program(
            buffers=tuple(
                Buffer(a.nbytes, content=self.contents.get(k, b"")) for k, a in enumerate(memory)
            ),
            kernels=tuple(
                Kernel(n, self.images[n], shared_limit=self._limit(n)) for n in self.kernels
            ),
            launches=tuple(self.launches),
            inputs=tuple(_leaf(v).slice for v in parameters),
            outputs=tuple(v.slice for v in _leaves(root)),
        )
        return XlaStep(
            program, tuple(self.names), tuple(self.operands), tuple(self.results),
            frozenset(self.def_use), tuple(carried), tuple(self.kinds),
        )  # fmt: skip

    def _limit(self, kernel: str) -> int:
        number = self.kernels[kernel]
        most = max(
            launch.shared_bytes
            for launch in self.launches
            if isinstance(launch, Launch) and launch.kernel == number
        )
        return most if most > _STATIC_SHARED_BYTES else 0

    def _parameters(self) -> list[_Tree]:
        trees: dict[int, _Tree] = {}
        kinds: dict[int, str] = {}
        for instruction in self.module.computations[self.module.entry]:
            if instruction.opcode == "parameter":
                trees[int(instruction.inside)] = _Value(self._slice(instruction.name, ()))
                kinds[int(instruction.inside)] = instruction.kind
        self.kinds = [kinds[k] for k in range(len(kinds))]
        return [trees[k] for k in range(len(trees))]

    def _walk(
        self, computation: str, parameters: Sequence[_Tree], thunks: Iterator[Thunk], where: str
    ) -> _Tree:
        value_of: dict[str, _Tree] = {}
        root: _Tree = ()
        for instruction in self.module.computations[computation]:
            taken = [
                _at(value_of[r.name], r.path) for r in instruction.operands if r.name in value_of
            ]
            if len(taken) != len(instruction.operands):
                raise DataError(self.source, f"{instruction.name} has an operand that is missing")
            value = self._result(instruction, taken, parameters, thunks, where)
            value_of[instruction.name] = value
            if instruction.is_root:
                root = value
        return root

    def _result(
        self,
        instruction: Instruction,
        operands: Sequence[_Tree],
        parameters: Sequence[_Tree],
        thunks: Iterator[Thunk],
        where: str,
    ) -> _Tree:
        opcode = instruction.opcode
        if opcode == "parameter":
            return parameters[int(instruction.inside)]
        if opcode == "constant":
            part = self._slice(instruction.name, ())
            self.contents[part.buffer] = instruction.content()
            return _Value(part)
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            return _at(operands[0], (int(instruction.attribute("index")),))
        if opcode in _PASSES:
            return operands[0] if opcode == "bitcast" or len(operands) == 1 else tuple(operands)
        if opcode == "call":
            return self._walk(instruction.attribute("to_apply"), operands, thunks, where)
        thunk = next(thunks, None)
        if thunk is None:
            raise DataError(self.source, f"{instruction.name} is in the HLO, but is not launched")
        if opcode == "while":
            return self._loop(instruction, operands[0], thunk, where)
        return self._launch(instruction, operands, thunk, where)

    def _loop(self, instruction: Instruction, state: _Tree, thunk: Thunk, where: str) -> _Tree:
        if thunk.kind != "kWhile":
            raise DataError(self.source, f"{instruction.name} is a loop, {thunk.kind} is launched")
        condition, body = instruction.attribute("condition"), instruction.attribute("body")
        for trip in range(self.trips):
            here = f"{where}{instruction.name}[{trip}]/"
            self._walk(condition, [state], iter(thunk.condition), here)
            begun = _leaves(state)
            state = self._walk(body, [state], iter(thunk.body), here)
            for before, after in zip(begun, _leaves(state), strict=True):
                if before.slice != after.slice:
                    raise DataError(self.source, f"{here}: a carried value changes its memory")
        self._walk(condition, [state], iter(thunk.condition), f"{where}{instruction.name}[end]/")
        return state

    def _launch(
        self, instruction: Instruction, operands: Sequence[_Tree], thunk: Thunk, where: str
    ) -> _Tree:
        number = len(self.launches)
        values = [v for tree in operands for v in _leaves(tree)]
        paths: list[tuple[int, ...]] = (
            [()] if instruction.arity is None else [(k,) for k in range(instruction.arity)]
        )
        results = [_Value(self._slice(instruction.name, path), number) for path in paths]
        slices = [v.slice for v in values], [v.slice for v in results]
        if thunk.kind == "kCustomKernel":
            self._check_name(instruction, thunk)
            self.launches.append(self._kernel_launch(thunk, *slices))
        elif thunk.kind in ("kCopy", "kDeviceToDeviceCopy") and len(values) == len(results) == 1:
            self.launches.append(Copy(results[0].slice, values[0].slice))
        elif thunk.kind in ("kMemzero", "kMemset32BitValue") and len(results) == 1:
            self.launches.append(Fill(results[0].slice, 0))
        else:
            raise DataError(
                self.source, f"{thunk.kind} of {instruction.name} is not a known launch"
            )
        self.def_use.update((v.launch, number) for v in values if v.launch is not None)
        self.names.append(f"{where}{instruction.name}")
        self.operands.append(tuple(slices[0]))
        self.results.append(tuple(slices[1]))
        return results[0] if instruction.arity is None else tuple(results)

    def _check_name(self, instruction: Instruction, thunk: Thunk) -> None:
        names = {instruction.name, instruction.attribute("deduplicated_name")}
        stems = {re.sub(r"\W\d+$", "", name).replace(".", "_").replace("-", "_") for name in names}
        if re.sub(r"_\d+$", "", thunk.name) not in stems and thunk.name not in stems:
            raise DataError(self.source, f"{instruction.name} in the HLO, {thunk.name} is launched")

    def _kernel_launch(self, thunk: Thunk, reads: list[Slice], writes: list[Slice]) -> Launch:
        image = self.images.get(thunk.name)
        if image is None:
            raise DataError(self.source, f"no PTX of kernel {thunk.name}")
        entry = next(e for e in entries_of(image) if e.name == thunk.name)
        arguments = [*reads, *writes]
        if len(entry.parameters) != len(arguments):
            unique = list(dict.fromkeys(arguments))
            if len(entry.parameters) != len(unique):
                raise DataError(
                    self.source,
                    f"kernel {thunk.name} has {len(entry.parameters)} parameters, and "
                    f"{len(arguments)} operands and results, {len(unique)} of them distinct",
                )
            arguments = unique
        kernel = self.kernels.setdefault(thunk.name, len(self.kernels))
        return Launch(
            kernel,
            tuple(Argument(bytes(8), (Place(0, part),)) for part in arguments),
            thunk.grid,
            thunk.block,
            thunk.shared_bytes,
        )

    def _slice(self, name: str, path: tuple[int, ...]) -> Slice:
        place = self.assignment.values.get((name, path))
        if place is None:
            raise DataError(self.source, f"no memory is assigned to {name}{list(path)}")
        allocation, offset, nbytes = place
        return Slice(self.buffers[allocation], offset, nbytes)


def _at(tree: _Tree, path: Sequence[int]) -> _Tree:
    for number in path:
        assert isinstance(tree, tuple)
        tree = tree[number]
    return tree


def _leaf(tree: _Tree) -> _Value:
    assert isinstance(tree, _Value)
    return tree


def _leaves(tree: _Tree) -> list[_Value]:
    if isinstance(tree, _Value):
        return [tree]
    return [value for branch in tree for value in _leaves(branch)]
