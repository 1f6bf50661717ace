"""Checks that two captures are of the same start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.ir import Graph, Node
from c2c.systems.program import AllocationId, Event

__all__ = [
    "check_same_events",
    "check_same_start",
    "determined_contents",
    "differing_contents",
    "held_addresses",
]

_WHO = "two captures"


def check_same_start(first: Capture, second: Capture) -> None:
    """Refuse unequal events and graphs, or shared addresses."""
    if first is not second:
        check_same_events(first, second)
        _check_apart(first.events, second.events)


def check_same_events(first: Capture, second: Capture) -> None:
    """Refuse unequal allocations, launches and graphs."""
    one, two = _by_thread(first.events), _by_thread(second.events)
    for thread in sorted(one.keys() | two.keys()):
        a, b = one.get(thread, []), two.get(thread, [])
        for k, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                raise DataError(_WHO, f"event {k} of thread {thread}: {x} in one, {y} in the other")
        if len(a) != len(b):
            raise DataError(_WHO, f"thread {thread}: {len(a)} events in one, {len(b)} in the other")
    if first.kernels != second.kernels:
        pairs = zip(first.kernels, second.kernels, strict=False)
        name = next((a.name for a, b in pairs if a != b), "their number")
        raise DataError(_WHO, f"their kernels differ: {name}")
    for g, h in zip(first.graphs, second.graphs, strict=False):
        _check_graphs(g, h)
    if len(first.graphs) != len(second.graphs):
        raise DataError(
            _WHO, f"{len(first.graphs)} graphs in one, {len(second.graphs)} in the other"
        )
    if first.told.keys() != second.told.keys():
        names = sorted(first.told.keys() ^ second.told.keys())
        raise DataError(_WHO, f"only one was told {', '.join(names)}")


def _by_thread(events: tuple[Event, ...]) -> dict[str, list[tuple[object, ...]]]:
    result: dict[str, list[tuple[object, ...]]] = {}
    for e in events:
        result.setdefault(e.thread, []).append((e.allocation, e.nbytes, e.graph, e.node))
    return result


def _check_graphs(one: Graph, two: Graph) -> None:
    where = f"graph of batch size {one.batch}"
    if (one.batch, one.edges, len(one.nodes)) != (two.batch, two.edges, len(two.nodes)):
        raise DataError(_WHO, f"{where} has different nodes or edges in them")
    for k, (a, b) in enumerate(zip(one.nodes, two.nodes, strict=True)):
        if _shape(a) != _shape(b):
            raise DataError(_WHO, f"{where}, node {k} is a different launch in them")
        if a.child is not None and b.child is not None:
            _check_graphs(a.child, b.child)


def _shape(node: Node) -> tuple[object, ...]:
    return (node.kind, node.kernel, node.grid, node.block, node.shared_bytes, node.attributes)


def _check_apart(first: tuple[Event, ...], second: tuple[Event, ...]) -> None:
    spans = [
        (e.address, e.address + e.nbytes, k)
        for k, events in enumerate((first, second))
        for e in events
        if not e.is_free
    ]
    reach = [0, 0]
    for start, end, k in sorted(spans):
        if start <= reach[1 - k]:
            raise DataError(_WHO, f"both have memory at {start:#x}", "Capture again.")
        reach[k] = max(reach[k], end)


def determined_contents(first: Capture, second: Capture) -> dict[AllocationId, bytes]:
    """Return permanent contents with a word equal in both captures."""
    contents = {}
    for name, one in first.contents.items():
        two = second.contents[name]
        a, b = _whole_words(one), _whole_words(two)
        if one[len(a) * 8 :] == two[len(a) * 8 :] != b"" or bool(np.any(a == b)):
            contents[name] = one
    return contents


def differing_contents(
    contents: Mapping[AllocationId, bytes], other: Capture, numbers: Mapping[AllocationId, int]
) -> dict[int, int]:
    """Return allocations with other content on another rank, with the first byte."""
    result = {}
    for name, one in contents.items():
        two = other.contents[name]
        if one != two:
            result[numbers[name]] = next(
                k for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b
            )
    return result


def held_addresses(
    first: Capture, second: Capture, numbers: Mapping[AllocationId, int]
) -> dict[int, int]:
    """Return permanent allocations with an address, also freed, and its byte."""
    result: dict[int, int] = {}
    spans = [_spans(capture.events) for capture in (first, second)]
    for name, one in first.contents.items():
        a, b = _whole_words(one), _whole_words(second.contents[name])
        places = np.flatnonzero((a != b) & _inside(spans[0], a) & _inside(spans[1], b))
        if places.size:
            result[numbers[name]] = int(places[0]) * 8
    return result


def _whole_words(data: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(data, dtype="<u8", count=len(data) // 8)


def _spans(events: tuple[Event, ...]) -> NDArray[np.uint64]:
    rows = np.array(
        sorted((e.address, e.address + e.nbytes) for e in events if e.nbytes), dtype=np.uint64
    ).reshape(-1, 2)
    return np.stack([rows[:, 0], np.maximum.accumulate(rows[:, 1])])


def _inside(spans: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    begins, ends = spans
    if not begins.size:
        return np.zeros(words.shape, dtype=np.bool_)
    k = np.searchsorted(begins, words, side="right")
    result: NDArray[np.bool_] = (k > 0) & (words <= ends[np.maximum(k, 1) - 1])
    return result
