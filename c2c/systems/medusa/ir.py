"""Graphs as data: what is captured, and the same with addresses replaced by patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from c2c.systems.program import Edge, LaunchAttribute, ParameterPlace
from c2c.systems.program.port import NodeKind, Triple

__all__ = ["Graph", "KernelRef", "Node", "Patch", "Told", "count_nodes"]


class Patch(NamedTuple):
    """An address in a node's parameters: where it stands, and what it points to.

    Attributes:
      parameter: which parameter.
      at: byte in it, a multiple of 8.
      allocation: number of the allocation among the artefact's.
      offset: bytes from the allocation's begin; its size: one past the end.
      is_map: the 128 bytes there are a tensor map, which only the driver can change.
    """

    parameter: int
    at: int
    allocation: int
    offset: int
    is_map: bool = False


class Told(NamedTuple):
    """A cell of a node's parameters that holds what the process was told, such as its rank.

    Attributes:
      parameter: which parameter.
      at: byte in it.
      nbytes: 4 or 8.
      name: number of the value's name among the artefact's.
    """

    parameter: int
    at: int
    nbytes: int
    name: int


@dataclass(frozen=True, slots=True)
class KernelRef:
    """A reference that finds a kernel in another process.

    Attributes:
      name: as the driver has it (mangled).
      places: where its parameters stand.
      shared_limit: dynamic shared memory that launches may ask for.
      source: image: loaded from bytes that the artefact has; symbol: a library shows it; module: it
        is hidden, and found among the functions of a module that something else has loaded.
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

    `parameters` of a kernel are its own; a copy has target, source and bytes, a fill target, value,
    element bytes and count, each as 8 bytes. `child` is the graph inside a child node. An `other`
    node is one that cannot be restored; its one parameter says in words what it is.
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
    """Return a graph's nodes, those inside child nodes instead of the child."""
    return sum(1 if n.child is None else count_nodes(n.child) for n in graph.nodes)
