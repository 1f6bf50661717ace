"""Told values: words of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from c2c.systems.medusa.classify import Refused
from c2c.systems.medusa.ir import Told
from c2c.systems.medusa.patches import bytes_of

__all__ = ["masked", "told_in"]

Parameters = tuple[bytes, ...]
Values = Mapping[str, int]


# Ranks of tensor parallelism run the same launches over the same buffers. They differ in addresses
# and in values that each process can name: its rank, its shard's begin, its communicator.
def told_in(
    expected: Parameters,
    actual: Parameters,
    captures: Sequence[tuple[Parameters, Values]],
    names: Sequence[str],
    *,
    is_complete: bool,
) -> tuple[Told, ...]:
    """Return told values in cells of 8 or 4 bytes; ambiguous ones are refused."""
    return tuple(_told(expected, actual, captures, names, is_complete=is_complete))


def masked(parameters: Parameters, cells: Sequence[Told], like: Parameters) -> Parameters:
    """Return parameters with told cells copied from `like`."""
    result = list(parameters)
    for number, offset, nbytes, _ in cells:
        cell = like[number][offset : offset + nbytes]
        result[number] = result[number][:offset] + cell + result[number][offset + nbytes :]
    return tuple(result)


def _told(
    expected: Parameters,
    actual: Parameters,
    captures: Sequence[tuple[Parameters, Values]],
    names: Sequence[str],
    *,
    is_complete: bool,
) -> Iterator[Told]:
    for k, (one, two) in enumerate(zip(expected, actual, strict=True)):
        offset = 0
        while offset < len(one):
            if one[offset : offset + 4] == two[offset : offset + 4]:
                offset += 4
                continue
            word = offset // 8 * 8
            name = _name(k, word, 8, captures, names)
            start, nbytes = (offset, 4) if name is None else (word, 8)
            if name is None:
                name = _name(k, offset, 4, captures, names)
            if name is not None:
                yield Told(k, start, nbytes, name)
            elif is_complete:
                raise Refused(k, offset, "differs between ranks and is no told value")
            offset = start + nbytes


def _name(
    k: int,
    offset: int,
    nbytes: int,
    captures: Sequence[tuple[Parameters, Values]],
    names: Sequence[str],
) -> int | None:
    cells = [(parameters[k][offset : offset + nbytes], values) for parameters, values in captures]
    if len(cells[0][0]) < nbytes:
        return None
    fitting = [
        number
        for number, name in enumerate(names)
        if all(_fits(values[name], cell) for cell, values in cells)
    ]
    if len(fitting) > 1:
        both = " or ".join(names[number] for number in fitting)
        raise Refused(k, offset, f"may be {both}")
    return fitting[0] if fitting else None


def _fits(value: int, cell: bytes) -> bool:
    bits = 8 * len(cell)
    return -(1 << bits - 1) <= value < 1 << bits and bytes_of(value, len(cell)) == cell
