"""Analysis of two captures of a start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.classify import Classifier, Refused, ReplaceAddress, Seen, patches_of
from c2c.systems.medusa.ir import Graph, Node, Told
from c2c.systems.medusa.owners import Owners
from c2c.systems.medusa.patches import patched
from c2c.systems.medusa.same_start import (
    check_same_events,
    check_same_start,
    determined_contents,
    differing_contents,
    held_addresses,
)
from c2c.systems.medusa.told import masked, told_in
from c2c.systems.program import AllocationId, Entry, Event, entries_of

__all__ = ["Analysed", "Refusal", "analyse"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A graph that is captured at every start: reason, and position of its word."""

    batch: int
    node: int
    kernel: str
    parameter: int
    byte: int
    why: str

    def __str__(self) -> str:
        return (
            f"graph of batch size {self.batch} is not restored: node {self.node} "
            f"({self.kernel or 'no kernel'}), parameter {self.parameter}, byte {self.byte}: "
            f"{self.why}"
        )


@dataclass(frozen=True, slots=True)
class Analysed:
    """Restorable graphs, and refusals of others.

    Attributes:
      allocations: in order of the first capture; patches index them.
      refusals: a graph each.
      permanent: allocations of the captures, live at their end.
      contents: of permanent allocations written by the start.
      told: names of told values, by number.
    """

    allocations: tuple[AllocationId, ...]
    graphs: tuple[Graph, ...]
    refusals: tuple[Refusal, ...]
    permanent: tuple[AllocationId, ...]
    contents: Mapping[AllocationId, bytes]
    told: tuple[str, ...] = ()


def analyse(
    first: Capture,
    second: Capture,
    replace_address: ReplaceAddress,
    classifier: Classifier = "differential",
    other_rank: Capture | None = None,
) -> Analysed:
    """Return a start's graphs, with patches for addresses.

    Args:
      second: the same start by another process, with gaps between blocks.
      other_rank: of the last rank, if the others are of the first; None: one rank.

    Raises:
      DataError: not the same start, or shared addresses.
    """
    check_same_start(first, second)
    if other_rank is not None:
        check_same_events(first, other_rank)
    contents = determined_contents(first, second)
    work = _Work(first, second, classifier, replace_address, other_rank, contents)
    graphs, refusals = [], []
    others = first.graphs if other_rank is None else other_rank.graphs
    for k, (one, two, other) in enumerate(zip(first.graphs, second.graphs, others, strict=True)):
        try:
            graphs.append(work.patched(k, one, two, other, None))
        except _AtNode as at:
            kernel = first.kernels[at.node.kernel].name if at.node.kernel >= 0 else ""
            cause = at.cause
            refusals.append(
                Refusal(one.batch, at.number, kernel, cause.parameter, cause.at, cause.why)
            )
    return Analysed(
        work.allocations,
        tuple(graphs),
        tuple(refusals),
        tuple(first.contents),
        contents,
        work.names,
    )


class _AtNode(Exception):
    def __init__(self, number: int, node: Node, cause: Refused) -> None:
        super().__init__(cause.why)
        self.number, self.node, self.cause = number, node, cause


class _Side:
    def __init__(self, capture: Capture, numbers: dict[AllocationId, int]) -> None:
        self._events, self._starts = capture.events, capture.starts
        self._owners = Owners(numbers)
        self._taken = 0

    def at(self, graph: int, node: int) -> Owners:
        events = self._events
        while self._taken < len(events):
            event = events[self._taken]
            if self._taken >= self._starts[graph] and not (
                event.graph == graph and event.node <= node
            ):
                break
            self._owners.take(event)
            self._taken += 1
        return self._owners


class _Work:
    def __init__(
        self,
        first: Capture,
        second: Capture,
        classifier: Classifier,
        replace_address: ReplaceAddress,
        other: Capture | None,
        contents: Mapping[AllocationId, bytes],
    ) -> None:
        self.allocations = tuple(e.allocation for e in first.events if not e.is_free)
        numbers = {name: k for k, name in enumerate(self.allocations)}
        self._first = _Side(first, numbers)
        self._second = self._first if first is second else _Side(second, numbers)
        self._classifier, self._replace_address = classifier, replace_address
        self._entries = _entries(first)
        count = Counter(first.kernels)
        self._ambiguous = {k for k, kernel in enumerate(first.kernels) if count[kernel] > 1}
        buffers = held_addresses(first, second, numbers)
        self._unlike = {
            number: f"points to a buffer that holds addresses, at byte {offset}"
            for number, offset in buffers.items()
        }
        self.names = tuple(sorted(first.told))
        self._told = first.told, second.told, {} if other is None else other.told
        self._addresses: tuple[int, ...] | None = None  # those of the other rank
        if other is not None:
            self._addresses = tuple(e.address for e in _in_order(other, self.allocations))
            self._unlike |= {
                number: f"points to a buffer whose content differs on other ranks, at byte {offset}"
                for number, offset in differing_contents(contents, other, numbers).items()
            }

    def patched(self, k: int, one: Graph, two: Graph, other: Graph, outer: int | None) -> Graph:
        nodes = []
        triples = zip(one.nodes, two.nodes, other.nodes, strict=True)
        for number, (a, b, c) in enumerate(triples):
            index = number if outer is None else outer
            if a.child is not None and b.child is not None and c.child is not None:
                nodes.append(replace(a, child=self.patched(k, a.child, b.child, c.child, index)))
                continue
            try:
                nodes.append(self._node(k, index, a, b, c))
            except Refused as cause:
                raise _AtNode(index, a, cause) from cause
        return Graph(one.batch, tuple(nodes), one.edges)

    def _node(self, k: int, number: int, one: Node, two: Node, other: Node) -> Node:
        if one.kind == "other":
            name = one.parameters[0].decode(errors="replace")
            raise Refused(
                0, 0, f"{name}; kernel, memcpy, memset, child graph and empty nodes are restored"
            )
        entry = self._entries[one.kernel] if one.kernel >= 0 else None
        if entry is not None and entry.allocates:
            raise Refused(0, 0, "allocates memory on the device")
        if one.kernel in self._ambiguous:
            raise Refused(0, 0, "is in two modules that cannot be distinguished")
        cells: tuple[Told, ...] = ()
        if self.names:
            seen = [(one.parameters, self._told[0]), (two.parameters, self._told[1])]
            cells = told_in(one.parameters, two.parameters, seen, self.names, is_complete=False)
            two = replace(two, parameters=masked(two.parameters, cells, one.parameters))
        first = Seen(one, self._first.at(k, number))
        second = Seen(two, self._second.at(k, number))
        patches = patches_of(
            self._classifier, first, second, entry=entry, replace_address=self._replace_address
        )
        for patch in patches:
            if patch.allocation in self._unlike:
                raise Refused(patch.parameter, patch.at, self._unlike[patch.allocation])
        result = replace(one, patches=patches, told=cells) if patches or cells else one
        return result if self._addresses is None else self._on_all_ranks(result, one, two, other)

    def _on_all_ranks(self, node: Node, one: Node, two: Node, other: Node) -> Node:
        values = [self._told[2][name] for name in self.names]
        expected = patched(node, self._addresses, values, self._replace_address)
        seen = list(
            zip((one.parameters, two.parameters, other.parameters), self._told, strict=True)
        )
        cells = told_in(expected, other.parameters, seen, self.names, is_complete=True)
        return replace(node, told=(*node.told, *cells)) if cells else node


def _in_order(capture: Capture, allocations: tuple[AllocationId, ...]) -> list[Event]:
    event_of = {e.allocation: e for e in capture.events if not e.is_free}
    return [event_of[name] for name in allocations]


def _entries(capture: Capture) -> list[Entry | None]:
    result: list[Entry | None] = []
    for kernel in capture.kernels:
        image = capture.images.get(kernel.where, b"") if kernel.source == "image" else b""
        is_text = b".entry" in image
        entries = {e.name: e for e in entries_of(image)} if is_text else {}
        result.append(entries.get(kernel.name))
    return result
