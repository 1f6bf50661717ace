"""Executable graphs shared by batch sizes of a topology."""

from __future__ import annotations

from collections.abc import Iterable

from c2c.systems.medusa.ir import Graph
from c2c.systems.medusa.restore import OnDemand
from c2c.systems.program import Device, DeviceFault

__all__ = ["Templates", "topology_of"]


def topology_of(graph: Graph) -> tuple[object, ...]:
    """Return a graph's topology; equal ones can share an executable."""
    nodes = tuple(
        (
            node.kind,
            node.attributes,  # clusters and their like are fixed when a graph is instantiated
            None if node.child is None else topology_of(node.child),
        )
        for node in graph.nodes
    )
    return (nodes, graph.edges)


class Templates:
    """A process's executable graphs, one a topology, with updated parameters."""

    def __init__(self, device: Device, on_demand: OnDemand, graphs: Iterable[Graph]) -> None:
        self._device, self._held = device, on_demand
        numbers: dict[tuple[object, ...], int] = {}
        self._topology = {g.batch: numbers.setdefault(topology_of(g), len(numbers)) for g in graphs}
        self._executables: dict[int, int] = {}
        self._shown: dict[int, int] = {}  # batch size of each topology's executable
        self.topologies = len(numbers)

    def executable(self, batch: int) -> int | None:
        """Return a batch size's executable graph, or None: capture it.

        It is valid until a request for another of its topology.
        """
        graph = self._held.graph(batch)
        if graph is None:
            return None
        which = self._topology[batch]
        if which not in self._executables:
            self._executables[which] = self._device.instantiate(graph)
        elif self._shown[which] != batch:
            self._show(which, graph)
        self._shown[which] = batch
        return self._executables[which]

    def _show(self, which: int, graph: int) -> None:
        try:
            self._device.update(self._executables[which], graph)
        except DeviceFault:  # a driver has more reasons to refuse than a topology says
            self._device.destroy_executable(self._executables.pop(which))
            self._executables[which] = self._device.instantiate(graph)
