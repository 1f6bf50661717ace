"""Restores graphs in a new process: replays memory, finds kernels, patches and builds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.medusa.functions import find_functions
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

__all__ = ["Restored", "build", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """Graphs of a new process.

    Attributes:
      graphs: the device's graphs by batch size; the others are to be captured.
      addresses: of all allocations, by number, those that are freed already too.
      functions: by the number of their kernel.
      nodes: how many were restored.
    """

    graphs: Mapping[int, int]
    addresses: tuple[int, ...]
    functions: Mapping[int, int]
    nodes: int


def restore(
    artefact: Artefact,
    recorder: Recorder,
    triggered: Iterable[int] = (),
    *,
    batches: Iterable[int] | None = None,
) -> Restored:
    """Restore what can be; warn of what cannot.

    Args:
      artefact: of this device and model: its key has been compared.
      recorder: of the process, which has made the start's own allocations.
      triggered: functions that the captured first layers launch, for kernels that libraries hide.
      batches: batch sizes to restore; None: all.

    Returns:
      The graphs. If memory cannot be replayed, none.
    """
    try:
        addresses = replay(artefact, recorder)
    except ReplayDiffers as problem:
        _warn(f"{problem} All graphs are captured.")
        return Restored({}, (), {}, 0)
    device = recorder.device
    for number, content in artefact.contents.items():
        device.write(addresses[number], content)
    found = find_functions(device, artefact.kernels, artefact.images, triggered)
    wanted = None if batches is None else set(batches)
    graphs: dict[int, int] = {}
    nodes = 0
    for graph in artefact.graphs:
        if wanted is not None and graph.batch not in wanted:
            continue
        try:
            graphs[graph.batch], added = build(device, graph, addresses, found.functions)
        except KeyError as problem:
            why = found.missing[problem.args[0]]
            _warn(f"{why}. The graph of batch size {graph.batch} is captured.")
            continue
        nodes += added
    return Restored(graphs, addresses, found.functions, nodes)


def build(
    device: Device, graph: Graph, addresses: tuple[int, ...], functions: Mapping[int, int]
) -> tuple[int, int]:
    """Return a device's graph and how many nodes it has.

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
    addresses: tuple[int, ...],
    functions: Mapping[int, int],
) -> int:
    if node.kind == "child" and node.child is not None:
        child, count = build(device, node.child, addresses, functions)
        device.add_child(graph, child)
        return count
    parameters = _patched(device, node, addresses) if node.patches else node.parameters
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
    warnings.warn(text, RepositoryWarning, stacklevel=3)
