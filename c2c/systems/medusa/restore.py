"""Restoration of graphs in a new process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.medusa.functions import Found, find_functions
from c2c.systems.medusa.ir import Graph, Node
from c2c.systems.medusa.patches import patched
from c2c.systems.medusa.replay import ReplayDiffers, replay
from c2c.systems.program import (
    CopyCall,
    Device,
    DeviceFault,
    FillCall,
    KernelCall,
    Recorder,
)
from pallas_kernels.repository import RepositoryWarning

__all__ = ["OnDemand", "Restored", "build", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """Restored graphs of a process.

    Attributes:
      graphs: by batch size; others must be captured.
      addresses: by allocation, also freed ones.
      is_in_place: whether addresses are the captured ones.
      told: by number of the name; None: not told.
    """

    graphs: Mapping[int, int]
    addresses: tuple[int, ...]
    functions: Mapping[int, int]
    nodes: int
    is_in_place: bool = False
    told: tuple[int | None, ...] = ()


class OnDemand:
    """An artefact's graphs, built on first use; none, with a warning, if the replay fails.

    Args:
      triggered: functions of the captured first layers.
    """

    def __init__(
        self,
        artefact: Artefact,
        recorder: Recorder,
        triggered: Iterable[int] = (),
        told_values: Mapping[str, int] | None = None,
    ) -> None:
        self._device = recorder.device
        self._made: dict[int, int] = {}
        self._nodes = 0
        self._graphs: dict[int, Graph] = {}
        self._addresses: tuple[int, ...] = ()
        self._names = artefact.told
        self._values = tuple((told_values or {}).get(name) for name in artefact.told)
        self._found = Found()
        self._is_in_place = False
        try:
            self._addresses = replay(artefact, recorder)
        except ReplayDiffers as problem:
            _warn(f"{problem} All graphs are captured.")
            return
        self._is_in_place = self._addresses == artefact.addresses
        for number, content in artefact.contents.items():
            self._device.write(self._addresses[number], content)
        self._found = find_functions(self._device, artefact.kernels, artefact.images, triggered)
        self._graphs = {graph.batch: graph for graph in artefact.graphs}

    def graph(self, batch: int) -> int | None:
        """Return a batch size's graph, or None: capture it."""
        if batch in self._made or batch not in self._graphs:
            return self._made.get(batch)
        addresses = None if self._is_in_place else self._addresses
        if untold := self._untold(self._graphs[batch]):
            _warn(
                f"The value of {untold} was not told. The graph of batch size {batch} is captured."
            )
            del self._graphs[batch]
            return None
        try:
            result, nodes = build(
                self._device, self._graphs[batch], addresses, self._found.functions, self._values
            )
        except (KeyError, DeviceFault) as problem:
            is_fault = isinstance(problem, DeviceFault)
            why = str(problem) if is_fault else self._found.missing[problem.args[0]]
            _warn(f"{why}. The graph of batch size {batch} is captured.")
            del self._graphs[batch]
            return None
        self._made[batch] = result
        self._nodes += nodes
        return result

    def _untold(self, graph: Graph) -> str:
        if None not in self._values:
            return ""
        for node in graph.nodes:
            if node.child is not None and (name := self._untold(node.child)):
                return name
            for value in node.told:
                if self._values[value.name] is None:
                    return self._names[value.name]
        return ""

    def restored(self) -> Restored:
        """Return the graphs built so far."""
        return Restored(
            dict(self._made), self._addresses, self._found.functions, self._nodes,
            self._is_in_place, self._values,
        )  # fmt: skip


def restore(
    artefact: Artefact,
    recorder: Recorder,
    triggered: Iterable[int] = (),
    *,
    batches: Iterable[int] | None = None,
    told_values: Mapping[str, int] | None = None,
) -> Restored:
    """Restore an artefact's graphs; warn of each that must be captured.

    Returns:
      The graphs; none if the replay of memory fails.
    """
    graphs = OnDemand(artefact, recorder, triggered, told_values)
    for batch in [g.batch for g in artefact.graphs] if batches is None else batches:
        graphs.graph(batch)
    return graphs.restored()


def build(
    device: Device,
    graph: Graph,
    addresses: tuple[int, ...] | None,
    functions: Mapping[int, int],
    told_values: tuple[int | None, ...] = (),
) -> tuple[int, int]:
    """Build a graph on a device; return it and its node count.

    Args:
      addresses: [allocation]; None: the captured ones.

    Raises:
      KeyError: a kernel without a function.
      DeviceFault: a refused node; the graph is destroyed.
    """
    for node in graph.nodes:
        if node.kernel >= 0:
            functions[node.kernel]
    handle, count = device.create_graph(), 0
    try:
        for node in graph.nodes:
            count += _add(device, handle, node, addresses, functions, told_values)
        if graph.edges:
            device.add_edges(handle, graph.edges)
    except DeviceFault:
        device.destroy_graph(handle)
        raise
    return handle, count


def _add(
    device: Device,
    graph: int,
    node: Node,
    addresses: tuple[int, ...] | None,
    functions: Mapping[int, int],
    told_values: tuple[int | None, ...],
) -> int:
    if node.kind == "child" and node.child is not None:
        child, count = build(device, node.child, addresses, functions, told_values)
        device.add_child(graph, child)
        return count
    parameters = node.parameters
    if node.told or (node.patches and addresses is not None):
        parameters = patched(node, addresses, told_values, device.replace_address)
    if node.kind == "kernel":
        call = KernelCall(
            functions[node.kernel],
            node.grid,
            node.block,
            node.shared_bytes,
            parameters,
            node.attributes,
        )
        device.add_kernel(graph, call)
    elif node.kind == "copy":
        device.add_copy(graph, CopyCall(*map(_number, parameters)))
    elif node.kind == "fill":
        device.add_fill(graph, FillCall(*map(_number, parameters)))
    elif node.kind == "empty":
        device.add_empty(graph)
    else:
        raise DeviceFault(f"cannot restore a node of kind {node.kind}")
    return 1


def _number(word: bytes) -> int:
    return int.from_bytes(word, "little")


def _warn(text: str) -> None:
    warnings.warn(text, RepositoryWarning, stacklevel=4)
