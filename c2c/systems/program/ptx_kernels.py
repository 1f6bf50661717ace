"""PTX of test kernels; outputs depend on every input."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from c2c.errors import DataError
from c2c.systems.program.image import Entry

__all__ = ["body_of"]

_STEP = 0x9E3779B1
_MIX = 0x01000193


# One thread mixes the constants and the words read, and writes words that depend on their position:
# one wrong address changes the outputs. It is the GPU's counterpart of the emulated digest.
def body_of(entry: Entry) -> list[str]:
    """Return the lines of a kernel's body.

    Raises:
      DataError: access by tensor map or table, or of part of a word.
    """
    for access in entry.accesses:
        if access.kind != "pointer" or access.nbytes % 4:
            raise DataError(f"kernel {entry.name}", f"cannot compute with {access}")
    return [
        "{",
        "\t.reg .pred %p<2>;",
        "\t.reg .b32 %h, %v, %s, %i;",
        "\t.reg .b64 %a;",
        "\tmov.u32 %h, %tid.x;",
        "\tmov.u32 %v, %ctaid.x;",
        "\tor.b32 %h, %h, %v;",
        "\tsetp.ne.u32 %p0, %h, 0;",
        "\t@%p0 ret;",
        f"\tmov.u32 %h, {zlib.crc32(entry.name.encode())};",
        *_mixed("mov.u32 %v, %nctaid.x;"),
        *_mixed("mov.u32 %v, %ntid.x;"),
        *_constants(entry),
        *_reads(entry),
        *_writes(entry),
        "\tret;",
        "}",
    ]


def _mixed(load: str) -> tuple[str, str]:
    return (f"\t{load}", f"\tmad.lo.u32 %h, %h, {_MIX}, %v;")


def _constants(entry: Entry) -> Iterator[str]:
    addresses = {(a.parameter, a.at + half) for a in entry.accesses for half in (0, 4)}
    for k, parameter in enumerate(entry.parameters):
        for offset in range(0, parameter.nbytes - 3, 4):
            if (k, offset) not in addresses:
                yield from _mixed(f"ld.param.u32 %v, [p{k}+{offset}];")


def _reads(entry: Entry) -> Iterator[str]:
    for number, access in enumerate(entry.accesses):
        if access.mode == "w" or not access.nbytes:
            continue
        yield f"\tld.param.u64 %a, [p{access.parameter}+{access.at}];"
        yield "\tmov.u32 %i, 0;"
        yield f"R{number}:"
        yield from _mixed("ld.u32 %v, [%a];")
        yield from _next(f"R{number}", access.nbytes)


def _writes(entry: Entry) -> Iterator[str]:
    for number, access in enumerate(entry.accesses):
        if access.mode == "r" or not access.nbytes:
            continue
        yield f"\tld.param.u64 %a, [p{access.parameter}+{access.at}];"
        yield f"\tmad.lo.u32 %s, %h, {_MIX}, {number};"
        yield "\tmov.u32 %i, 0;"
        yield f"W{number}:"
        yield "\tst.u32 [%a], %s;"
        yield f"\tadd.u32 %s, %s, {_STEP};"
        yield from _next(f"W{number}", access.nbytes)


def _next(label: str, nbytes: int) -> tuple[str, ...]:
    return (
        "\tadd.u64 %a, %a, 4;",
        "\tadd.u32 %i, %i, 4;",
        f"\tsetp.lt.u32 %p0, %i, {nbytes};",
        f"\t@%p0 bra {label};",
    )
