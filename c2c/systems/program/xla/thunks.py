"""Parser of XLA's thunk sequence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from c2c.errors import DataError
from c2c.systems.program.port import Triple

__all__ = ["Thunk", "parse_thunks"]

_THUNK = re.compile(r"^\s*\d+: (k\w+)\s+\[.*?\]\s*(\S*)(.*)$")
_SHAPE = re.compile(
    r"grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]\s+shared_memory: (\d+) bytes"
)


@dataclass(slots=True)
class Thunk:
    """A launch, a copy, or a loop with condition and body."""

    kind: str
    name: str
    grid: Triple = (1, 1, 1)
    block: Triple = (1, 1, 1)
    shared_bytes: int = 0
    condition: list[Thunk] = field(default_factory=list)
    body: list[Thunk] = field(default_factory=list)


def parse_thunks(text: str, source: str = "thunk sequence") -> list[Thunk]:
    """Return the thunks in XLA's text, with loops nested."""
    top: list[Thunk] = []
    # for each depth of indentation, the list of its thunks
    stack: list[tuple[int, list[Thunk]]] = [(0, top)]
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        depth = len(line) - len(line.lstrip())
        if word in ("condition:", "body:"):
            loop = _last_loop(stack, source, number)
            into = loop.condition if word == "condition:" else loop.body
            stack.append((-1, into))
            continue
        match = _THUNK.match(line)
        if match is None:
            raise DataError(f"{source}:{number}", f"not a thunk: {word[:80]}")
        if stack[-1][0] < 0:
            stack[-1] = (depth, stack[-1][1])
        while depth < stack[-1][0]:
            stack.pop()
        stack[-1][1].append(_thunk(match))
    return top


def _last_loop(stack: list[tuple[int, list[Thunk]]], source: str, number: int) -> Thunk:
    while stack:
        into = stack[-1][1]
        if into and into[-1].kind == "kWhile":
            return into[-1]
        stack.pop()
    raise DataError(f"{source}:{number}", "a condition or body without a loop")


def _thunk(match: re.Match[str]) -> Thunk:
    kind, name, rest = match.groups()
    shape = _SHAPE.search(rest)
    if shape is None:
        return Thunk(kind, name)
    x, y, z, *block, shared = (int(n) for n in shape.groups())
    return Thunk(kind, name, (x, y, z), (block[0], block[1], block[2]), shared)
