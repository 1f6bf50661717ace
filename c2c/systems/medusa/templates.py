"""One executable graph a topology, which batch sizes of it use by turns.

35 executables hold device memory 35 times and are instantiated 35 times. Graphs that differ in
parameters only share one: before another batch size runs, the driver puts its parameters in.
"""

from __future__ import annotations

from collections.abc import Iterable

from c2c.systems.medusa.ir import Graph
from c2c.systems.medusa.restore import OnDemand
from c2c.systems.program import Device, DeviceFault

__all__ = ["Templates", "topology_of"]


def topology_of(graph: Graph) -> tuple[object, ...]:
    """Return what graphs must have in common to share an executable: all but parameters."""
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
    """Executable graphs of a process.

    Args:
      device: of the process.
      held: its graphs.
      graphs: of the artefact.
    """

    def __init__(self, device: Device, held: OnDemand, graphs: Iterable[Graph]) -> None:
        self._device, self._held = device, held
        numbers: dict[tuple[object, ...], int] = {}
        self._topology = {g.batch: numbers.setdefault(topology_of(g), len(numbers)) for g in graphs}
        self._executables: dict[int, int] = {}
        self._shown: dict[int, int] = {}  # by topology, whose parameters its executable has
        self.topologies = len(numbers)

    def executable(self, batch: int) -> int | None:
        """Return what can be launched for a batch size, until another one is asked for.

        None: it has to be captured.
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
        """Put a graph's parameters into its topology's executable, or make that anew."""
        try:
            self._device.update(self._executables[which], graph)
        except DeviceFault:  # a driver has more reasons to refuse than a topology says
            self._device.destroy_executable(self._executables.pop(which))
            self._executables[which] = self._device.instantiate(graph)
