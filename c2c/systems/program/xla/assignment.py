"""XLA's buffer assignment: allocation, offset and size of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from c2c.errors import DataError

__all__ = ["Allocation", "Assignment", "parse_assignment"]

_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+), (.*):$")
_VALUE = re.compile(
    r"^\s+value: <\d+ ([\w.\-]+)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\)"
)
_PARAMETER = re.compile(r"parameter (\d+)")


@dataclass(frozen=True, slots=True)
class Allocation:
    """XLA's allocation; `is_local`: a thread's, not the device's."""

    number: int
    nbytes: int
    parameter: int | None
    is_live_out: bool
    is_local: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """Allocations, and the (allocation, offset, bytes) of each value, by `(name, path)`."""

    allocations: tuple[Allocation, ...]
    values: Mapping[tuple[str, tuple[int, ...]], tuple[int, int, int]]


def parse_assignment(text: str, source: str = "buffer assignment") -> Assignment:
    """Return the assignment in XLA's text."""
    allocations: list[Allocation] = []
    values: dict[tuple[str, tuple[int, ...]], tuple[int, int, int]] = {}
    for line in text.splitlines():
        if match := _ALLOCATION.match(line):
            number, nbytes, details = match.groups()
            parameter = _PARAMETER.search(details)
            allocations.append(
                Allocation(
                    int(number), int(nbytes), int(parameter[1]) if parameter else None,
                    "maybe-live-out" in details, "thread-local" in details,
                )
            )  # fmt: skip
        elif allocations and (match := _VALUE.match(line)):
            name, path, nbytes, offset = match.groups()
            key = name, tuple(int(n) for n in re.findall(r"\d+", path or ""))
            values[key] = allocations[-1].number, int(offset), int(nbytes)
        elif line.startswith(("Total", "Used values", "HloLiveRange")):
            break
    if not allocations:
        raise DataError(source, "has no allocations")
    return Assignment(tuple(allocations), values)
