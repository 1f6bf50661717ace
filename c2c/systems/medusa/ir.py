"""Graphs as data, with captured addresses or patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from c2c.systems.program import Edge, LaunchAttribute, ParameterPlace
from c2c.systems.program.port import NodeKind, Triple

__all__ = ["Graph", "KernelRef", "Node", "Patch", "Told", "count_nodes"]


class Patch(NamedTuple):
    """An address in a node's parameters.

    Attributes:
      at: byte in the parameter, a multiple of 8.
      allocation: number of the allocation.
      offset: bytes from its begin, up to its size.
      is_map: whether the 128 bytes at `at` are a tensor map, for the driver to change.
    """

    parameter: int
    at: int
    allocation: int
    offset: int
    is_map: bool = False


class Told(NamedTuple):
    """A cell of a node's parameters with a told value, such as the rank.

    Attributes:
      nbytes: 4 or 8.
    """

    parameter: int
    at: int
    nbytes: int
    name: int


@dataclass(frozen=True, slots=True)
class KernelRef:
    """A kernel's reference across processes.

    Attributes:
      places: [parameter], offset and size.
      shared_limit: most dynamic shared memory, bytes.
      source: image, symbol (a library exports it) or module (a trigger loads it).
      where: SHA-256 of the image, path of the library, or fingerprint of the module.
    """

    name: str
    places: tuple[ParameterPlace, ...]
    shared_limit: int
    source: Literal["image", "symbol", "module"]
    where: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    `parameters`: a kernel's own; a copy's target, source and size; a fill's target, value, element
    bytes and count, 8 bytes each. An `other` node's only parameter is the reason against it.
    """

    kind: NodeKind | Literal["other"]
    kernel: int = -1
    grid: Triple = (0, 0, 0)
    block: Triple = (0, 0, 0)
    shared_bytes: int = 0
    parameters: tuple[bytes, ...] = ()
    attributes: tuple[LaunchAttribute, ...] = ()
    patches: tuple[Patch, ...] = ()
    child: Graph | None = None
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of one batch size."""

    batch: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def count_nodes(graph: Graph) -> int:
    """Count a graph's nodes, children's included."""
    return sum(1 if n.child is None else count_nodes(n.child) for n in graph.nodes)
