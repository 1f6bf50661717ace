"""Instrumentation of PTX to record addresses of accesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from c2c.errors import DataError
from c2c.systems.tessera.ptx.reach import Access, reach
from c2c.systems.tessera.ptx.text import Instruction, KernelText, parse

__all__ = [
    "RECORD_BYTES",
    "Injected",
    "Interval",
    "Record",
    "inject",
    "intervals_of",
    "new_records",
]

_BUFFER: Final = "c2c_intervals"
RECORD_BYTES: Final = 16


@dataclass(slots=True)
class Interval:
    """Lowest address of an access, and end of the highest; 0: none."""

    begin: int = 2**64 - 1
    end: int = 0

    def touch(self, addresses: np.ndarray, nbytes: int) -> None:
        """Extend the interval by addresses of `nbytes` bytes each."""
        if len(addresses):
            self.begin = min(self.begin, int(addresses.min()))
            self.end = max(self.end, int(addresses.max()) + nbytes)


@dataclass(frozen=True, slots=True)
class Record:
    """16 bytes of the buffer: an access's addresses, or one coordinate."""

    index: int  # index of the instruction in the kernel's body
    dimension: int | None = None


@dataclass(frozen=True, slots=True)
class Injected:
    """A module that records.

    Attributes:
      records: of each kernel, by name, in the buffer's order.
    """

    text: str
    records: Mapping[str, tuple[Record, ...]]


def inject(text: str, source: str = "PTX") -> Injected:
    """Return a module whose kernels record accesses in a further parameter.

    Source: Tessera, section III-A, Listing 1. Ours: widths of accesses; predicates; asynchronous
    and tensor copies.
    """
    pieces: list[tuple[int, str]] = []
    records: dict[str, tuple[Record, ...]] = {}
    for kernel in parse(text, source):
        analysis = reach(kernel)
        if analysis.opaque:
            raise DataError(source, f"cannot be instrumented: {analysis.opaque[0]}")
        pieces += _prologue(kernel, text)
        entries: list[Record] = []
        for access in analysis.accesses:
            instruction = kernel.body[access.index]
            lines, more = _recorded(access, instruction, len(entries))
            pieces.append((instruction.position, lines))
            entries += more
        records[kernel.name] = tuple(entries)
    parts, offset = [], 0
    for position, piece in sorted(pieces):
        parts += [text[offset:position], piece]
        offset = position
    return Injected("".join([*parts, text[offset:]]), records)


def new_records(records: Sequence[Record]) -> bytes:
    """Return the buffer's initial content."""
    rows = np.zeros((len(records), 2), np.uint64)
    limits = np.iinfo(np.int64)
    for row, record in zip(rows, records, strict=True):
        is_signed = record.dimension is not None
        row[:] = (limits.max, np.array(limits.min).view(np.uint64)) if is_signed else (2**64 - 1, 0)
    return rows.tobytes()


def intervals_of(records: Sequence[Record], buffer: bytes) -> Mapping[Record, Interval]:
    """Return the recorded intervals, of actual accesses."""
    result = {}
    for record, row in zip(records, np.frombuffer(buffer, np.uint64).reshape(-1, 2), strict=True):
        if record.dimension is not None:
            row = row.view(np.int64)  # noqa: PLW2901 - the same bits
        interval = Interval(int(row[0]), int(row[1]))
        if interval.begin < interval.end:
            result[record] = interval
    return result


def _prologue(kernel: KernelText, text: str) -> list[tuple[int, str]]:
    begin, body = kernel.entry
    head = text[begin:body]
    declared = f".param .u64 .ptr .global .align 8 {_BUFFER}"
    lines = (
        f"\n\t.reg .b64 %c2c_b, %c2c_a, %c2c_n;\n\t.reg .b32 %c2c_c;\n"
        f"\tld.param.u64 %c2c_b, [{_BUFFER}];\n\tcvta.to.global.u64 %c2c_b, %c2c_b;\n"
    )
    close = begin + head.rindex(")", 0, head.rindex("{")) if "(" in head else -1
    if close < 0:
        return [(begin + len(f".entry {kernel.name}"), f"({declared})"), (body, lines)]
    comma = ",\n\t" if kernel.parameters else ""
    return [(close, f"{comma}{declared}\n"), (body, lines)]


def _recorded(
    access: Access, instruction: Instruction, index: int
) -> tuple[str, tuple[Record, ...]]:
    guard = ""
    if instruction.predicate:
        guard = f"@{'!' if instruction.is_negated else ''}{instruction.predicate} "
    coordinates = access.address.coordinates
    if coordinates:
        lines = []
        for k, coordinate in enumerate(coordinates):
            place = RECORD_BYTES * (index + k)
            lines += [
                f"mov.b32 %c2c_c, {coordinate};",
                "cvt.s64.s32 %c2c_a, %c2c_c;",
                f"{guard}atom.global.min.s64 _, [%c2c_b+{place}], %c2c_a;",
                "add.s64 %c2c_a, %c2c_a, 1;",
                f"{guard}atom.global.max.s64 _, [%c2c_b+{place + 8}], %c2c_a;",
            ]
        records = tuple(Record(access.index, k) for k in range(len(coordinates)))
    else:
        place = RECORD_BYTES * index
        lines = [
            f"add.s64 %c2c_a, {access.address.base}, {access.address.offset};",
            f"{guard}atom.global.min.u64 _, [%c2c_b+{place}], %c2c_a;",
            *_plus_width(access, instruction),
            f"{guard}atom.global.max.u64 _, [%c2c_b+{place + 8}], %c2c_a;",
        ]
        records = (Record(access.index),)
    return "".join(f"{line}\n\t" for line in lines), records


def _plus_width(access: Access, instruction: Instruction) -> tuple[str, ...]:
    if access.nbytes:
        return (f"add.s64 %c2c_a, %c2c_a, {access.nbytes};",)
    size = next((o for o in instruction.operands[1:] if isinstance(o, str)), "1")
    return (
        f"mov.b32 %c2c_c, {size};",
        "cvt.u64.u32 %c2c_n, %c2c_c;",
        "add.s64 %c2c_a, %c2c_a, %c2c_n;",
    )
