"""Column format of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from c2c.systems.medusa.ir import Graph, KernelRef, Node, Patch, Told
from c2c.systems.program import Edge, LaunchAttribute, ParameterPlace

__all__ = ["graphs_from", "graphs_to", "kernels_from", "kernels_to"]

_KINDS: Final = ("kernel", "copy", "fill", "child", "empty", "other")
_TYPES: Final = {
    "graphs": "<i8",  # batch, nodes, edges
    "nodes": "<i8",  # kind, kernel, grid, block, shared, counts of what follows, attributes, child
    "sizes": "<u4",  # of each parameter
    "patches": "<i8",
    "told": "<i8",
    "edges": "<i8",
}
_WIDTHS: Final = {"graphs": 3, "nodes": 14, "sizes": 1, "patches": 5, "told": 4, "edges": 5}


def kernels_to(kernels: Sequence[KernelRef]) -> list[list[Any]]:
    """Return kernels as JSON values."""
    return [[k.name, k.places, k.shared_limit, k.source, k.where] for k in kernels]


def kernels_from(values: Sequence[Sequence[Any]]) -> tuple[KernelRef, ...]:
    """Return kernels from JSON values."""
    return tuple(
        KernelRef(name, tuple(ParameterPlace(*p) for p in places), limit, source, where)
        for name, places, limit, source, where in values
    )


def graphs_to(graphs: Sequence[Graph]) -> tuple[list[Any], dict[str, bytes]]:
    """Return graphs as (distinct attribute lists, columns); child graphs last."""
    queue = list(graphs)
    attributes: dict[tuple[LaunchAttribute, ...], int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in _TYPES}
    words: list[bytes] = []
    for graph in queue:  # grows during the loop: children are appended
        columns["graphs"].append((graph.batch, len(graph.nodes), len(graph.edges)))
        columns["edges"].extend(graph.edges)
        for node in graph.nodes:
            child = -1
            if node.child is not None:
                child = len(queue)
                queue.append(node.child)
            which = attributes.setdefault(node.attributes, len(attributes))
            columns["nodes"].append(
                (
                    _KINDS.index(node.kind), node.kernel, *node.grid, *node.block,
                    node.shared_bytes, len(node.parameters), len(node.patches), len(node.told),
                    which, child,
                )
            )  # fmt: skip
            columns["sizes"].extend(map(len, node.parameters))
            columns["patches"].extend(node.patches)
            columns["told"].extend(node.told)
            words.extend(node.parameters)
    blobs = {name: np.array(rows, dtype=_TYPES[name]).tobytes() for name, rows in columns.items()}
    cells = [[[a.number, a.value.hex()] for a in group] for group in attributes]
    return cells, blobs | {"words": b"".join(words)}


def graphs_from(
    count: int, attribute_rows: Sequence[Any], blobs: Mapping[str, bytes]
) -> tuple[Graph, ...]:
    """Return the first `count` graphs, with child graphs in their nodes."""
    rows = {name: _rows(blobs[name], name) for name in _TYPES}
    attributes = [
        tuple(LaunchAttribute(n, bytes.fromhex(v)) for n, v in group) for group in attribute_rows
    ]
    ends = [0, *itertools.accumulate(rows["sizes"])]
    patches = [Patch(p, place, a, o, bool(m)) for p, place, a, o, m in rows["patches"]]
    told_cells = [Told(*row) for row in rows["told"]]
    edges = [Edge(*row) for row in rows["edges"]]
    words, flat, taken, patched, cell = blobs["words"], rows["nodes"], 0, 0, 0
    # children follow their parents: all nodes are read first, then nested
    pieces: list[tuple[int, list[Node], list[int], tuple[Edge, ...]]] = []
    node_at = edge_at = 0
    for batch, nodes, lines in rows["graphs"]:
        graph_nodes, children = [], []
        for row in flat[node_at : node_at + nodes]:
            kind, kernel, gx, gy, gz, bx, by, bz, shared, n, m, t, which, child = row
            parameters = tuple(words[ends[k] : ends[k + 1]] for k in range(taken, taken + n))
            graph_nodes.append(
                Node(
                    _KINDS[kind], kernel, (gx, gy, gz), (bx, by, bz), shared, parameters,
                    attributes[which], tuple(patches[patched : patched + m]),
                    told=tuple(told_cells[cell : cell + t]),
                )
            )  # fmt: skip
            children.append(child)
            taken, patched, cell = taken + n, patched + m, cell + t
        pieces.append((batch, graph_nodes, children, tuple(edges[edge_at : edge_at + lines])))
        node_at, edge_at = node_at + nodes, edge_at + lines
    done: dict[int, Graph] = {}
    for k in reversed(range(len(pieces))):
        batch, graph_nodes, children, lines_of = pieces[k]
        for place, child in enumerate(children):
            if child >= 0:
                graph_nodes[place] = Node("child", child=done[child])
        done[k] = Graph(batch, tuple(graph_nodes), lines_of)
    return tuple(done[k] for k in range(count))


def _rows(data: bytes, name: str) -> list[Any]:
    values = np.frombuffer(data, dtype=_TYPES[name])
    width = _WIDTHS[name]
    return values.tolist() if width == 1 else values.reshape(-1, width).tolist()
