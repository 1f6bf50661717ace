"""From two captures of the same start to graphs whose addresses are patches. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.classify import Classifier, Refused, ReplaceAddress, Seen, patches_of
from c2c.systems.medusa.ir import Graph, Node
from c2c.systems.medusa.owners import Owners
from c2c.systems.medusa.same_start import (
    check_same_start,
    determined_contents,
    held_addresses,
)
from c2c.systems.program import AllocationId, Entry, entries_of

__all__ = ["Analysed", "Refusal", "analyse"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a graph is captured at every start instead of being restored.

    `kernel` is its name, `parameter` and `byte` the place of the word that cannot be told.
    """

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
    """Graphs that can be restored, and why others cannot.

    Attributes:
      allocations: what patches count: allocations in the order of the first capture.
      graphs: with patches.
      refusals: one for each graph that is left out.
      permanent: allocations of the captures that are not freed by their end.
      contents: what they hold, where the start has put something there.
    """

    allocations: tuple[AllocationId, ...]
    graphs: tuple[Graph, ...]
    refusals: tuple[Refusal, ...]
    permanent: tuple[AllocationId, ...]
    contents: Mapping[AllocationId, bytes]


def analyse(
    first: Capture,
    second: Capture,
    replace_address: ReplaceAddress,
    classifier: Classifier = "differential",
) -> Analysed:
    """Return graphs with patches.

    Args:
      first: a capture.
      second: one of the same start by another process, whose allocator leaves gaps between blocks.
        Classifiers that look at one capture only get the first for it.
      replace_address: gives a tensor map another address.
      classifier: see `patches_of`.

    Raises:
      DataError: the two captures are not of the same start, or share addresses.
    """
    check_same_start(first, second)
    work = _Work(first, second, classifier, replace_address)
    graphs, refusals = [], []
    for k, (one, two) in enumerate(zip(first.graphs, second.graphs, strict=True)):
        try:
            graphs.append(work.patched(k, one, two, None))
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
        determined_contents(first, second),
    )


class _AtNode(Exception):
    def __init__(self, number: int, node: Node, cause: Refused) -> None:
        super().__init__(cause.why)
        self.number, self.node, self.cause = number, node, cause


class _Side:
    """One capture, walked from its first event to its last."""

    def __init__(self, capture: Capture, numbers: dict[AllocationId, int]) -> None:
        self._events, self._starts = capture.events, capture.starts
        self._owners = Owners(numbers)
        self._taken = 0

    def at(self, graph: int, node: int) -> Owners:
        """Return who owns what when a node is launched."""
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
    ) -> None:
        self.allocations = tuple(e.allocation for e in first.events if not e.is_free)
        numbers = {name: k for k, name in enumerate(self.allocations)}
        self._first = _Side(first, numbers)
        self._second = self._first if first is second else _Side(second, numbers)
        self._classifier, self._replace_address = classifier, replace_address
        self._entries = _entries(first)
        count = Counter(first.kernels)
        self._ambiguous = {k for k, kernel in enumerate(first.kernels) if count[kernel] > 1}
        self._held = held_addresses(first, second, numbers)

    def patched(self, k: int, one: Graph, two: Graph, outer: int | None) -> Graph:
        """Return the graph with patches; `outer`: the node of graph `k` that it is inside of."""
        nodes = []
        for number, (a, b) in enumerate(zip(one.nodes, two.nodes, strict=True)):
            at = number if outer is None else outer
            if a.child is not None and b.child is not None:
                nodes.append(replace(a, child=self.patched(k, a.child, b.child, at)))
                continue
            try:
                nodes.append(self._node(k, at, a, b))
            except Refused as cause:
                raise _AtNode(at, a, cause) from cause
        return Graph(one.batch, tuple(nodes), one.edges)

    def _node(self, k: int, number: int, one: Node, two: Node) -> Node:
        entry = self._entries[one.kernel] if one.kernel >= 0 else None
        if entry is not None and entry.allocates:
            raise Refused(0, 0, "allocates memory on the device")
        if one.kernel in self._ambiguous:
            raise Refused(0, 0, "stands in two modules that cannot be told apart")
        first = Seen(one, self._first.at(k, number))
        second = Seen(two, self._second.at(k, number))
        patches = patches_of(
            self._classifier, first, second, entry=entry, replace_address=self._replace_address
        )
        if not patches:
            return one
        for patch in patches:
            if patch.allocation in self._held:
                raise Refused(
                    patch.parameter,
                    patch.at,
                    f"points to a buffer that holds addresses, at byte "
                    f"{self._held[patch.allocation]}",
                )
        return replace(one, patches=patches)


def _entries(capture: Capture) -> list[Entry | None]:
    """Return each kernel's declaration, where its image is PTX."""
    found: list[Entry | None] = []
    for kernel in capture.kernels:
        image = capture.images.get(kernel.where, b"") if kernel.source == "image" else b""
        is_text = b".entry" in image
        entries = {e.name: e for e in entries_of(image)} if is_text else {}
        found.append(entries.get(kernel.name))
    return found
