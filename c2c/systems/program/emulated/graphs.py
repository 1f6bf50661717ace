"""Graphs of an emulated device."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from c2c.systems.program.port import (
    CopyCall,
    DeviceFault,
    Edge,
    FillCall,
    KernelCall,
    NodeKind,
)

__all__ = ["Capture", "Graph", "Node", "order_of"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph; `call` is a child's handle, None for an empty node."""

    kind: NodeKind
    call: KernelCall | CopyCall | FillCall | int | None


@dataclass(slots=True)
class Graph:
    """Nodes by handle, in order, and edges between positions."""

    nodes: dict[int, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


@dataclass(slots=True)
class Capture:
    """A stream under capture; nodes follow each other unless `told` has edges."""

    graph: Graph
    told: list[Edge] | None = None

    def edges_of(self, position: int) -> list[Edge]:
        """Return the edges to the next node, at `position`, and clear `told`."""
        edges, self.told = self.told, None
        if edges is None:
            return [Edge(position - 1, position)] if position else []
        if any(edge.target != position or edge.source >= position for edge in edges):
            raise DeviceFault("an edge of a capture does not lead to its next node")
        return edges


def order_of(count: int, edges: Sequence[Edge], draw: random.Random) -> list[int]:
    """Return a random topological order of `count` nodes."""
    waits = [0] * count
    after: dict[int, list[int]] = {}
    for edge in edges:
        waits[edge.target] += 1
        after.setdefault(edge.source, []).append(edge.target)
    ready = [(draw.random(), k) for k in range(count) if waits[k] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, k = heapq.heappop(ready)
        order.append(k)
        for target in after.get(k, ()):
            waits[target] -= 1
            if waits[target] == 0:
                heapq.heappush(ready, (draw.random(), target))
    if len(order) < count:
        raise DeviceFault("the graph has a cycle")
    return order
