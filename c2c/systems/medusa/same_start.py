"""Whether two captures are of one start, and which buffers hold addresses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from c2c.errors import DataError
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.ir import Graph, Node
from c2c.systems.program import AllocationId, Event

__all__ = ["check_same_start", "held_addresses"]

_WHO = "two captures"


def check_same_start(first: Capture, second: Capture) -> None:
    """Raise DataError unless both did the same, at addresses that have nothing in common."""
    if first is second:
        return
    one, two = _by_thread(first.events), _by_thread(second.events)
    for thread in sorted(one.keys() | two.keys()):
        a, b = one.get(thread, []), two.get(thread, [])
        for k, (x, y) in enumerate(zip(a, b, strict=False)):
            if x != y:
                raise DataError(_WHO, f"event {k} of thread {thread} is {x} in one, {y} in other")
        if len(a) != len(b):
            raise DataError(_WHO, f"thread {thread} has {len(a)} events in one, {len(b)} in other")
    if first.kernels != second.kernels:
        pairs = zip(first.kernels, second.kernels, strict=False)
        name = next((a.name for a, b in pairs if a != b), "their number")
        raise DataError(_WHO, f"they do not use the same kernels: {name} differs")
    for g, h in zip(first.graphs, second.graphs, strict=False):
        _check_graphs(g, h)
    if len(first.graphs) != len(second.graphs):
        raise DataError(_WHO, f"{len(first.graphs)} graphs in one, {len(second.graphs)} in other")
    _check_apart(first.events, second.events)


def _by_thread(events: tuple[Event, ...]) -> dict[str, list[tuple[object, ...]]]:
    found: dict[str, list[tuple[object, ...]]] = {}
    for e in events:
        found.setdefault(e.thread, []).append((e.allocation, e.nbytes, e.graph, e.node))
    return found


def _check_graphs(one: Graph, two: Graph) -> None:
    where = f"graph of batch size {one.batch}"
    if (one.batch, one.edges, len(one.nodes)) != (two.batch, two.edges, len(two.nodes)):
        raise DataError(_WHO, f"{where} has other nodes or edges in the other")
    for k, (a, b) in enumerate(zip(one.nodes, two.nodes, strict=True)):
        if _shape(a) != _shape(b):
            raise DataError(_WHO, f"{where}, node {k} is another launch in the other")
        if a.child is not None and b.child is not None:
            _check_graphs(a.child, b.child)


def _shape(node: Node) -> tuple[object, ...]:
    return (node.kind, node.kernel, node.grid, node.block, node.shared_bytes, node.attributes)


def _check_apart(first: tuple[Event, ...], second: tuple[Event, ...]) -> None:
    """A word that is equal in both is taken for a constant, so no address may be."""
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


def held_addresses(
    first: Capture, second: Capture, numbers: Mapping[AllocationId, int]
) -> dict[int, int]:
    """Return allocations that hold an address of another one, with the byte where it stands.

    A word of a permanent buffer that lies in the same place of the same allocation in both captures
    is an address (a table of pointers); restoring the word would restore a stale one.
    """
    found: dict[int, int] = {}
    spans = [_spans(capture.events, numbers) for capture in (first, second)]
    for name, one in first.contents.items():
        two = second.contents.get(name, b"")
        count = min(len(one), len(two)) // 8
        a, b = (np.frombuffer(data, dtype="<u8", count=count) for data in (one, two))
        for k in np.flatnonzero(a != b):
            places = [_place(s, int(w[k])) for s, w in zip(spans, (a, b), strict=True)]
            if places[0] is not None and places[0] == places[1]:
                found[numbers[name]] = int(k) * 8
                break
    return found


def _spans(
    events: tuple[Event, ...], numbers: Mapping[AllocationId, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return begins, ends and numbers of all allocations, by begin; the latest of equal ones."""
    rows = {e.address: (e.address + e.nbytes, numbers[e.allocation]) for e in events if e.nbytes}
    begins = np.array(sorted(rows), dtype=np.uint64)
    ends = np.array([rows[int(k)][0] for k in begins], dtype=np.uint64)
    return begins, ends, np.array([rows[int(k)][1] for k in begins], dtype=np.int64)


def _place(spans: tuple[np.ndarray, np.ndarray, np.ndarray], word: int) -> tuple[int, int] | None:
    begins, ends, who = spans
    k = int(np.searchsorted(begins, np.uint64(word), side="right")) - 1
    if k < 0 or word >= int(ends[k]):
        return None
    return int(who[k]), word - int(begins[k])
