"""Capture of one start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from c2c.systems.medusa.ir import Graph, KernelRef, Node
from c2c.systems.program import (
    AllocationId,
    Device,
    DeviceFault,
    Event,
    Recorder,
    image_key,
)

__all__ = ["Capture", "CapturedGraphs", "module_fingerprint"]


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured start.

    Attributes:
      begin: events before the first capture.
      starts: events before each graph's capture.
      graphs: graphs with this process's addresses.
      contents: of buffers allocated during the captures and live at their end.
      images: images of kernels, by SHA-256.
      arenas: begin of each pool's range; empty: no ranges.
      told: told values, by name.
    """

    events: tuple[Event, ...]
    begin: int
    starts: tuple[int, ...]
    kernels: tuple[KernelRef, ...]
    graphs: tuple[Graph, ...]
    contents: Mapping[AllocationId, bytes]
    images: Mapping[str, bytes]
    arenas: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)


def module_fingerprint(device: Device, module: int) -> str:
    """Return the hash of a module's function names."""
    names = sorted(device.function_name(f) for f in device.functions(module))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


class CapturedGraphs:
    """Reader of a process's graphs by batch size."""

    def __init__(
        self, recorder: Recorder, images: Mapping[int, bytes], libraries: Iterable[str] = ()
    ) -> None:
        self._recorder = recorder
        self._device = recorder.device
        self._images, self._libraries = images, tuple(libraries)
        self._begin = len(recorder.events)
        self._kernels: dict[int, int] = {}  # function -> number
        self._refs: list[KernelRef] = []
        self._used: dict[str, bytes] = {}
        self._graphs: list[Graph] = []
        self._starts: list[int] = []

    def add(self, batch: int, graph: int) -> None:
        """Read the graph that was captured last."""
        self._graphs.append(self._read(batch, graph))
        self._starts.append(self._recorder.starts[-1])

    @property
    def functions(self) -> dict[int, int]:
        """Functions of this process, by number of their kernel."""
        return {number: function for function, number in self._kernels.items()}

    def finish(self, told_values: Mapping[str, int] | None = None) -> Capture:
        """Return the capture, with permanent buffers' contents."""
        recorder = self._recorder
        contents = {
            e.allocation: self._device.read(e.address, e.nbytes)
            for e in recorder.events[self._begin :]
            if not e.is_free and recorder.is_live(e.allocation)
        }
        arenas = recorder.allocator.arenas
        return Capture(
            events=tuple(recorder.events),
            begin=self._begin,
            starts=tuple(self._starts),
            kernels=tuple(self._refs),
            graphs=tuple(self._graphs),
            contents=contents,
            images=dict(self._used),
            arenas={} if arenas is None else dict(arenas.begins),
            told=dict(told_values or {}),
        )

    def _read(self, batch: int, graph: int) -> Graph:
        nodes = tuple(self._node(batch, node) for node in self._device.nodes(graph))
        return Graph(batch, nodes, self._device.edges(graph))

    def _node(self, batch: int, node: int) -> Node:
        kind = self._device.node_kind(node)
        try:
            return self._read_node(batch, kind, node)
        except DeviceFault as problem:  # a form that the device cannot read
            return _other(str(problem))

    def _read_node(self, batch: int, kind: str, node: int) -> Node:
        device = self._device
        if kind == "kernel":
            call = device.kernel_of(node)
            return Node(
                "kernel",
                self._kernel(call.function),
                call.grid,
                call.block,
                call.shared_bytes,
                call.parameters,
                call.attributes,
            )
        if kind == "copy":
            return Node("copy", parameters=_words(*device.copy_of(node)))
        if kind == "fill":
            return Node("fill", parameters=_words(*device.fill_of(node)))
        if kind == "child":
            return Node("child", child=self._read(batch, device.child_of(node)))
        if kind == "empty":
            return Node("empty")
        return _other(f"a {kind} node")

    def _kernel(self, function: int) -> int:
        if function not in self._kernels:
            self._kernels[function] = len(self._refs)
            self._refs.append(self._ref(function))
        return self._kernels[function]

    def _ref(self, function: int) -> KernelRef:
        device = self._device
        name, module = device.function_name(function), device.function_module(function)
        facts = (name, device.parameter_places(function), device.shared_limit(function))
        image = self._images.get(module)
        if image is not None:
            key = image_key(image)
            self._used[key] = image
            return KernelRef(*facts, "image", key)
        for library in self._libraries:
            if device.symbol(library, name) == function:
                return KernelRef(*facts, "symbol", library)
        return KernelRef(*facts, "module", module_fingerprint(device, module))


def _other(description: str) -> Node:
    return Node("other", parameters=(description.encode(),))


def _words(*values: int) -> tuple[bytes, ...]:
    return tuple(value.to_bytes(8, "little") for value in values)
