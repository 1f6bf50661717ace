"""Parser of HLO's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from c2c.errors import DataError

__all__ = ["Computation", "Instruction", "Module", "Reference", "parse_hlo"]

_TYPES: Mapping[str, np.dtype[Any]] = {
    **{f"{kind}{8 * n}": np.dtype(f"{'u' if kind == 'u' else 'i'}{n}")
       for kind in "us" for n in (1, 2, 4, 8)},
    "pred": np.dtype(bool), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "bf16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_NAMED = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
_REFERENCE = re.compile(r"%([\w.\-]+)((?:#\d+)*)")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")


@dataclass(frozen=True, slots=True)
class Reference:
    """An operand: a result, or the part at `path` of a tuple."""

    name: str
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of HLO.

    Attributes:
      opcode: HLO's operation.
      operands: references.
      arity: parts of a tuple; None: no tuple.
      attributes: after the operands.
      inside: in parentheses.
      kind: type of the result, such as `s32[4,1]`.
    """

    name: str
    opcode: str
    operands: tuple[Reference, ...]
    arity: int | None
    attributes: str
    is_root: bool
    inside: str
    kind: str

    def attribute(self, name: str) -> str:
        """Return the value of an attribute such as `body=%x`, or ""."""
        match = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    def content(self) -> bytes:
        """Return a constant's bytes; none if omitted or unknown."""
        dtype = _TYPES.get(self.kind.partition("[")[0])
        if dtype is None or "..." in self.inside:
            return b""
        words = re.findall(r"[-+\w.]+", re.sub(r"/\*.*?\*/", "", self.inside))
        if dtype == np.dtype(bool):
            return np.array([word == "true" or word == "1" for word in words]).tobytes()
        if dtype.kind in "iu":
            return np.array([int(word) for word in words], dtype).tobytes()
        return np.array([float(word) for word in words]).astype(dtype).tobytes()


Computation = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A scheduled module.

    Attributes:
      computations: by name, in the schedule's order.
      aliases: path of the output in a parameter's memory, by parameter.
    """

    computations: Mapping[str, Computation]
    entry: str
    aliases: Mapping[int, tuple[int, ...]]


def parse_hlo(text: str, source: str = "HLO") -> Module:
    """Return the module in HLO's text."""
    head = text.partition("\n")[0]
    if not head.startswith("HloModule") or "is_scheduled=true" not in head:
        raise DataError(source, "is not a scheduled HLO module")
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    instructions: list[Instruction] = []
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            name, instructions = begins[2], []
            entry = name if begins[1] else entry
        elif line == "}" and name:
            computations[name] = tuple(instructions)
            name = ""
        elif name and (named := _NAMED.match(line)):
            instructions.append(_instruction(named, line))
    if not entry:
        raise DataError(source, "has no ENTRY computation")
    aliased = head.partition("input_output_alias={")[2].partition(" }, ")[0]
    aliases = {int(p): _path(out) for out, p, _ in _ALIAS.findall(aliased)}
    return Module(computations, entry, aliases)


def _path(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _instruction(named: re.Match[str], line: str) -> Instruction:
    rest = re.sub(r"/\*.*?\*/", "", line[named.end() :])
    kind, rest = (
        _bracketed(rest)
        if rest.startswith("(")
        else (rest.partition(" ")[0], rest.partition(" ")[2])
    )
    opcode, _, tail = rest.strip().partition("(")
    inside, attributes = _bracketed(f"({tail}")
    operands = tuple(
        Reference(n, tuple(int(k) for k in path.split("#")[1:]))
        for n, path in _REFERENCE.findall(inside)
    )
    arity = _arity(kind) if kind.startswith("(") else None
    return Instruction(
        named[2], opcode, operands, arity, attributes, bool(named[1]), inside[1:-1], kind
    )


def _bracketed(text: str) -> tuple[str, str]:
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[: index + 1], text[index + 1 :]
    return text, ""


def _arity(kind: str) -> int:
    depth, commas = 0, 0
    for letter in kind[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        commas += letter == "," and not depth
    return commas + 1 if kind[1:-1].strip() else 0
