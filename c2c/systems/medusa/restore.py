"""Restores graphs in a new process: replays memory, finds kernels, patches and builds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.medusa.functions import Found, find_functions
from c2c.systems.medusa.ir import Graph, Node
from c2c.systems.medusa.replay import ReplayDiffers, replay
from c2c.systems.program import (
    TENSOR_MAP_BYTES,
    CopyCall,
    Device,
    DeviceFault,
    FillCall,
    KernelCall,
    Recorder,
)
from pallas_kernels.repository import RepositoryWarning

__all__ = ["OnDemand", "Restored", "build", "most_used_first", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """Graphs of a new process.

    Attributes:
      graphs: the device's graphs by batch size; the others are to be captured.
      addresses: of all allocations, by number, those that are freed already too.
      functions: by the number of their kernel.
      nodes: how many were restored.
      is_in_place: every allocation has the address that the captured process had, so that no
        parameter was changed.
    """

    graphs: Mapping[int, int]
    addresses: tuple[int, ...]
    functions: Mapping[int, int]
    nodes: int
    is_in_place: bool = False


class OnDemand:
    """Graphs of an artefact, each built when it is asked for first.

    Memory is replayed and kernels are found at once; what cannot be is warned of.

    Args:
      artefact: of this device and model: its key has been compared.
      recorder: of the process, which has made the start's own allocations.
      triggered: functions that the captured first layers launch, for kernels that libraries hide.
    """

    def __init__(
        self, artefact: Artefact, recorder: Recorder, triggered: Iterable[int] = ()
    ) -> None:
        self._device = recorder.device
        self._made: dict[int, int] = {}
        self._nodes = 0
        self._graphs: dict[int, Graph] = {}
        self._addresses: tuple[int, ...] = ()
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
        """Return the device's graph of a batch size; None: it has to be captured."""
        if batch in self._made or batch not in self._graphs:
            return self._made.get(batch)
        addresses = None if self._is_in_place else self._addresses
        try:
            made, nodes = build(self._device, self._graphs[batch], addresses, self._found.functions)
        except KeyError as problem:
            why = self._found.missing[problem.args[0]]
            _warn(f"{why}. The graph of batch size {batch} is captured.")
            del self._graphs[batch]
            return None
        self._made[batch] = made
        self._nodes += nodes
        return made

    def restored(self) -> Restored:
        """Return what has been built so far."""
        return Restored(
            dict(self._made), self._addresses, self._found.functions, self._nodes,
            self._is_in_place,
        )  # fmt: skip


def restore(
    artefact: Artefact,
    recorder: Recorder,
    triggered: Iterable[int] = (),
    *,
    batches: Iterable[int] | None = None,
) -> Restored:
    """Restore what can be; warn of what cannot.

    Args:
      artefact: see `OnDemand`.
      recorder: likewise.
      triggered: likewise.
      batches: batch sizes to restore, in this order; None: all.

    Returns:
      The graphs. If memory cannot be replayed, none.
    """
    held = OnDemand(artefact, recorder, triggered)
    for batch in [g.batch for g in artefact.graphs] if batches is None else batches:
        held.graph(batch)
    return held.restored()


def most_used_first(batch_sizes: Iterable[int], uses: Mapping[int, int]) -> tuple[int, ...]:
    """Return batch sizes in the order to restore them in: by how often earlier runs used each.

    >>> most_used_first((1, 2, 4, 8), {4: 90, 1: 7})
    (4, 1, 2, 8)
    """
    return tuple(sorted(batch_sizes, key=lambda batch: (-uses.get(batch, 0), batch)))


def build(
    device: Device, graph: Graph, addresses: tuple[int, ...] | None, functions: Mapping[int, int]
) -> tuple[int, int]:
    """Return a device's graph and how many nodes it has.

    Args:
      device: of the process.
      graph: with patches.
      addresses: that patches put in, by allocation; None: those that were captured.
      functions: by the number of their kernel.

    Raises:
      KeyError: a kernel, by number, has no function.
    """
    for node in graph.nodes:
        if node.kernel >= 0:
            functions[node.kernel]
    made, count = device.create_graph(), 0
    for node in graph.nodes:
        count += _add(device, made, node, addresses, functions)
    if graph.edges:
        device.add_edges(made, graph.edges)
    return made, count


def _add(
    device: Device,
    graph: int,
    node: Node,
    addresses: tuple[int, ...] | None,
    functions: Mapping[int, int],
) -> int:
    if node.kind == "child" and node.child is not None:
        child, count = build(device, node.child, addresses, functions)
        device.add_child(graph, child)
        return count
    parameters = node.parameters
    if node.patches and addresses is not None:
        parameters = _patched(device, node, addresses)
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
        raise DeviceFault(f"a node of kind {node.kind}")
    return 1


def _patched(device: Device, node: Node, addresses: tuple[int, ...]) -> tuple[bytes, ...]:
    parameters: list[bytes] = list(node.parameters)
    for number, at, allocation, offset, is_map in node.patches:
        address = addresses[allocation] + offset
        old = parameters[number]
        if is_map:
            end = at + TENSOR_MAP_BYTES
            word = device.replace_address(old[at:end], address)
        else:
            end = at + 8
            word = address.to_bytes(8, "little")
        parameters[number] = word if len(old) == end - at else old[:at] + word + old[end:]
    return tuple(parameters)


def _number(word: bytes) -> int:
    return int.from_bytes(word, "little")


def _warn(text: str) -> None:
    warnings.warn(text, RepositoryWarning, stacklevel=4)
