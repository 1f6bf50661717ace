"""Kernels of a PTX image."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from c2c.errors import DataError
from c2c.systems.program.port import TENSOR_MAP_BYTES, ParameterPlace

__all__ = [
    "Access",
    "Entry",
    "ParameterDeclaration",
    "Traced",
    "entries_of",
    "image_key",
    "write_image",
]

AccessKind = Literal["pointer", "map", "table"]

_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$.]+)\s*\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)((?:\s+\.\w+(?:\s+\d+)?)*)\s+([\w$]+)(?:\[(\d+)\])?"
)
_ACCESS = re.compile(r"^// access (\d+) (\d+) (pointer|map|table) (r|w|rw) (\d+)$", re.MULTILINE)
_RECORD = re.compile(r"^// record (\d+) (\d+) (\d+) (\d+)$", re.MULTILINE)
_WORD_BYTES: Final = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True, slots=True)
class ParameterDeclaration:
    """A parameter in PTX; `is_pointer`: its mark `.ptr`."""

    nbytes: int
    align: int
    is_pointer: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that a kernel accesses at a parameter's address.

    Attributes:
      at: byte in the parameter.
      kind: pointer, map (a tensor map) or table (a pointer in memory).
    """

    parameter: int
    at: int
    kind: AccessKind
    mode: Literal["r", "w", "rw"]
    nbytes: int

    @property
    def width(self) -> int:
        """Bytes of the address or tensor map."""
        return TENSOR_MAP_BYTES if self.kind == "map" else 8


class Traced(NamedTuple):
    """A recorded address: byte `at` of a parameter."""

    intervals: int
    number: int
    parameter: int
    at: int

    def stated(self) -> str:
        """Return the `// record` comment."""
        return f"// record {self.intervals} {self.number} {self.parameter} {self.at}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of an image."""

    name: str
    parameters: tuple[ParameterDeclaration, ...]
    accesses: tuple[Access, ...]
    allocates: bool  # True: it calls malloc on the device
    traced: tuple[Traced, ...] = ()

    @property
    def places(self) -> tuple[ParameterPlace, ...]:
        """Offset and size of each parameter in the parameter buffer."""
        places, offset = [], 0
        for parameter in self.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            places.append(ParameterPlace(offset, parameter.nbytes))
            offset += parameter.nbytes
        return tuple(places)


def image_key(image: bytes) -> str:
    """Return an image's key, its SHA-256."""
    return hashlib.sha256(image).hexdigest()


@lru_cache(maxsize=512)
def entries_of(image: bytes) -> tuple[Entry, ...]:
    """Return an image's kernels, with accesses by comments before an entry.

    // access <parameter> <byte in it> <pointer|map|table> <r|w|rw> <bytes>
    // record <parameter of the intervals> <number of the interval> <parameter> <byte in it>
    """
    try:
        text = image.decode()
    except UnicodeDecodeError as problem:
        raise DataError("kernel image", "is not PTX text") from problem
    entries, begin = [], 0
    for match in _ENTRY.finditer(text):
        entries.append(_entry(match, text[begin : match.start()]))
        begin = match.end()
    if not entries:
        raise DataError("kernel image", "has no .visible .entry")
    return tuple(entries)


def _entry(match: re.Match[str], before: str) -> Entry:
    parameters = tuple(_declaration(p) for p in _PARAMETER.finditer(match[2]))
    accesses = tuple(
        Access(int(p), int(offset), kind, mode, int(nbytes))
        for p, offset, kind, mode, nbytes in _ACCESS.findall(before)
    )
    for access in accesses:
        fits = access.parameter < len(parameters)
        if not fits or access.at + access.width > parameters[access.parameter].nbytes:
            raise DataError(f"kernel {match[1]}", f"access outside of its parameters: {access}")
    traced = tuple(Traced(*map(int, words)) for words in _RECORD.findall(before))
    if any(t.intervals >= len(parameters) for t in traced):
        raise DataError(f"kernel {match[1]}", "records intervals of a parameter that it lacks")
    allocates = ".extern .func" in before and "malloc" in before
    return Entry(match[1], parameters, accesses, allocates, traced)


def _declaration(match: re.Match[str]) -> ParameterDeclaration:
    align, kind, marks, _, count = match.groups()
    word_bytes = _WORD_BYTES[kind.lstrip("usbf")]
    return ParameterDeclaration(
        word_bytes * int(count or 1), int(align or word_bytes), ".ptr" in marks.split()
    )


def write_image(
    entries: Iterable[Entry], body: Callable[[Entry], Sequence[str]] | None = None
) -> bytes:
    """Return PTX of kernels, with accesses as comments for devices without a GPU.

    >>> entry = Entry("add", (ParameterDeclaration(8, 8, True),),
    ...               (Access(0, 0, "pointer", "rw", 16),), False)
    >>> entries_of(write_image([entry])) == (entry,)
    True
    """
    lines = [".version 7.8", ".target sm_80", ".address_size 64", ""]
    for entry in entries:
        if entry.allocates:
            lines.append(".extern .func (.param .b64 at) malloc (.param .b64 nbytes);")
        lines += [
            f"// access {a.parameter} {a.at} {a.kind} {a.mode} {a.nbytes}" for a in entry.accesses
        ]
        lines.append(f".visible .entry {entry.name}(")
        lines.append(",\n".join(_declared(entry.parameters)))
        lines += [")", *(body(entry) if body else ("{", "\tret;", "}")), ""]
    return "\n".join(lines).encode()


def _declared(parameters: Sequence[ParameterDeclaration]) -> list[str]:
    lines = []
    for k, parameter in enumerate(parameters):
        if parameter.is_pointer:
            lines.append(f"\t.param .u64 .ptr .align 1 p{k}")
        elif parameter.nbytes in (4, 8) and parameter.align == parameter.nbytes:
            lines.append(f"\t.param .u{8 * parameter.nbytes} p{k}")
        else:
            lines.append(f"\t.param .align {parameter.align} .b8 p{k}[{parameter.nbytes}]")
    return lines
