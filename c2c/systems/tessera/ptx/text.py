"""PTX parser: kernels, parameters, variables, instructions and operands as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from c2c.errors import DataError

__all__ = [
    "Address",
    "Instruction",
    "KernelText",
    "Operand",
    "Parameter",
    "Variable",
    "Vector",
    "parse",
]

NEWEST_VERSION = (9, 9)  # newest PTX ISA; a major version may change an instruction's meaning

_TOKEN = re.compile(r'"[^"]*"|//[^\n]*|/\*.*?\*/|[;{}\n]|[^;{}\n"/]+|/', re.DOTALL)
_LABEL = re.compile(r"^([\w$]+):\s*")
_REGISTERS = re.compile(r"^\.reg\s+\.(\w+)\s+(.*)$", re.DOTALL)
_VARIABLE = re.compile(
    r"(?:\.extern\s+|\.visible\s+|\.weak\s+)*\.(shared|local|const|global)\s+"
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)((?:\[\d*\])*)"
)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)((?:\s+\.\w+(?:\s+\d+)?)*)\s+([\w$]+)(?:\[(\d+)\])?"
)
_INSTRUCTION = re.compile(r"^(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_ADDRESS = re.compile(r"([%\w$.]+)\s*([+-]?)\s*(-?(?:0x)?[0-9a-fA-F]*)$")
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*(?:\((.*?)\))?\s*([^{;]*)\{", re.DOTALL)
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


@dataclass(frozen=True, slots=True)
class Address:
    """A bracketed operand: register, variable or parameter, and an offset in bytes.

    `coordinates` are a tensor copy's; else empty.
    """

    base: str
    offset: int = 0
    coordinates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """An operand in braces."""

    parts: tuple[str, ...]


Operand = str | Address | Vector  # a string is a register, a name or a number


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction and its position: line from 1, character from 0."""

    opcode: str
    operands: tuple[Operand, ...]
    predicate: str = ""
    is_negated: bool = False
    line: int = 0
    position: int = 0

    @property
    def name(self) -> str:
        """The opcode without its qualifiers."""
        return self.opcode.partition(".")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode and its qualifiers."""
        return tuple(self.opcode.split("."))

    def __str__(self) -> str:
        return f"{self.opcode} {', '.join(map(_written, self.operands))}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel; `is_pointer`: marked `.ptr`."""

    name: str
    nbytes: int
    align: int
    is_pointer: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in memory; `nbytes` 0: by the launch."""

    name: str
    space: str
    nbytes: int
    align: int


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel.

    Attributes:
      entry: positions of declaration and body.
      registers: declared type by name; `%r<9>` is under `%r`.
      labels: next instruction, by label.
    """

    source: str
    name: str
    entry: tuple[int, int]
    parameters: tuple[Parameter, ...]
    registers: Mapping[str, str]
    variables: Mapping[str, Variable]
    body: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def register_type(self, name: str) -> str:
        """Return a register's declared type."""
        result = self.registers.get(name) or self.registers.get(name.rstrip("0123456789"))
        if result is None:
            raise DataError(f"{self.source}, kernel {self.name}", f"undeclared register {name}")
        return result

    def fault(self, instruction: Instruction, problem: str) -> DataError:
        """Return an error with source, line, kernel and instruction."""
        where = f"{self.source}:{instruction.line}, kernel {self.name}"
        return DataError(where, f"{problem}: {instruction}")


def parse(text: str, source: str = "PTX") -> tuple[KernelText, ...]:
    """Return a PTX module's kernels.

    Raises:
      DataError: no PTX, too new, or an unknown statement.
    """
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
    if version is None:
        raise DataError(source, "is no PTX: .version is missing")
    if (int(version[1]), int(version[2])) > NEWEST_VERSION:
        raise DataError(source, f"is PTX {version[1]}.{version[2]}, at most 9.9 is supported")
    entries, outside, position = [], [], 0
    for entry in _ENTRY.finditer(text):
        if entry.start() < position:
            raise DataError(source, f"kernel {entry[1]} begins inside another")
        outside.append(text[position : entry.start()])
        position = _end_of_block(text, entry.end(), source)
        entries.append((entry, text[entry.end() : position - 1]))
    outside.append(text[position:])
    shared = {v.name: v for piece in outside for v in _variables(piece)}
    return tuple(_kernel(text, entry, body, source, shared) for entry, body in entries)


def _kernel(
    text: str, entry: re.Match[str], body: str, source: str, shared: Mapping[str, Variable]
) -> KernelText:
    reader = _Reader(source, entry[1], text.count("\n", 0, entry.end()) + 1, entry.end())
    reader.read(body)
    return KernelText(
        source,
        entry[1],
        entry.span(),
        tuple(map(_parameter, _PARAMETER.finditer(entry[2] or ""))),
        reader.registers,
        {**shared, **reader.variables},
        tuple(reader.body),
        reader.labels,
    )


@dataclass(slots=True)
class _Reader:
    source: str
    kernel: str
    first_line: int
    begin: int
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def read(self, body: str) -> None:
        for statement, line, begin in _statements(body):
            rest = statement
            while label := _LABEL.match(rest):
                self.labels[label[1]] = len(self.body)
                rest = rest[label.end() :]
            if rest:
                position = self.begin + begin + len(statement) - len(rest)
                self._statement(rest, self.first_line + line, position)

    def _statement(self, text: str, line: int, position: int) -> None:
        if text.startswith("."):
            self._directive(text, line)
            return
        match = _INSTRUCTION.match(text)
        if match is None:
            where = f"{self.source}:{line}, kernel {self.kernel}"
            raise DataError(where, f"invalid instruction: {text[:80]}")
        negated, predicate, opcode, operands = match.groups()
        try:
            arguments = tuple(map(_operand, _split(operands)))
        except DataError as problem:
            where = f"{self.source}:{line}, kernel {self.kernel}"
            raise DataError(where, f"{problem.problem} in {text[:80]}") from problem
        self.body.append(
            Instruction(opcode, arguments, predicate or "", bool(negated), line, position)
        )

    def _directive(self, text: str, line: int) -> None:
        if registers := _REGISTERS.match(text):
            for name in registers[2].split(","):
                self.registers[name.strip().partition("<")[0]] = registers[1]
            return
        self.variables.update((v.name, v) for v in _variables(f"{text};"))
        directives = (
            ".shared",
            ".local",
            ".const",
            ".pragma",
            ".param",
            ".branchtargets",
            ".callprototype",
        )
        if not text.startswith(directives):
            where = f"{self.source}:{line}, kernel {self.kernel}"
            raise DataError(where, f"unknown directive: {text[:80]}")


def _statements(body: str) -> Iterator[tuple[str, int, int]]:
    gathered = ""
    line, begin, position, depth = 0, 0, 0, 0
    for match in _TOKEN.finditer(body):
        piece = match[0]
        is_empty = not gathered.strip()
        if piece.startswith(("//", "/*")):
            line += piece.count("\n")
        elif piece == "\n":
            line += 1
            gathered += " "
            if gathered.lstrip().startswith((".loc", ".file")):
                gathered = ""
            elif _LABEL.fullmatch(gathered.strip()):
                yield gathered.strip(), begin, position
                gathered = ""
        elif piece == "{" and (depth or not is_empty):
            depth += 1
            gathered += piece
        elif piece == "}" and depth:
            depth -= 1
            gathered += piece
        elif piece in ";{}":
            if not is_empty:
                yield gathered.strip(), begin, position
            gathered = ""
        else:
            if is_empty:
                begin, position = line, match.start() + len(piece) - len(piece.lstrip())
            gathered += piece
    if rest := gathered.strip():
        yield rest, begin, position


def _end_of_block(text: str, start: int, source: str) -> int:
    depth = 1
    for match in _TOKEN.finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if not depth:
            return match.end()
    raise DataError(source, "ends inside a kernel")


def _variables(text: str) -> Iterator[Variable]:
    for statement, _, _ in _statements(text):
        match = _VARIABLE.search(statement)  # a module's first statement begins with its header
        if match is None:
            continue
        space, align, kind, name, shape = match.groups()
        nbytes, count = _bytes_of(kind), 1
        for extent in re.findall(r"\[(\d*)\]", shape):
            count *= int(extent or 0)
        yield Variable(name, space, nbytes * count, int(align or nbytes))


def _parameter(match: re.Match[str]) -> Parameter:
    align, kind, marks, name, count = match.groups()
    nbytes = _bytes_of(kind)
    return Parameter(name, nbytes * int(count or 1), int(align or nbytes), ".ptr" in marks.split())


def _bytes_of(kind: str) -> int:
    return _BYTES.get(kind.lstrip("usbf"), 1)


def _split(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth:
            parts.append(text[begin:index].strip())
            begin = index + 1
    last = text[begin:].strip()
    return [*parts, last] if last else parts


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return Vector(tuple(part.strip() for part in text[1:-1].split(",")))
    if not text.startswith("["):
        return text
    first, *rest = _split(text[1:-1])
    match = _ADDRESS.match(first)
    if match is None:
        raise DataError("operand", f"invalid address: {text}")
    base, sign, offset = match.groups()
    coordinates = tuple(c.strip() for part in rest for c in part.strip("{} ").split(","))
    return Address(base, int(f"{sign if sign == '-' else ''}{offset or 0}", 0), coordinates)


def _written(operand: Operand) -> str:
    if isinstance(operand, Address):
        coordinates = f", {{{', '.join(operand.coordinates)}}}" if operand.coordinates else ""
        return (
            f"[{operand.base}{operand.offset:+d}{coordinates}]"
            if operand.offset
            else (f"[{operand.base}{coordinates}]")
        )
    return f"{{{', '.join(operand.parts)}}}" if isinstance(operand, Vector) else operand
