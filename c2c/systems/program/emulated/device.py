"""`Emulated`: the device port in Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, Final

from c2c.systems.program.emulated.graphs import Capture, Graph, Node, order_of
from c2c.systems.program.emulated.kernels import execute, sealed
from c2c.systems.program.emulated.libraries import Library, Modules, libraries_by_path
from c2c.systems.program.emulated.memory import Memory
from c2c.systems.program.port import (
    TENSOR_MAP_BYTES,
    CopyCall,
    DeviceFault,
    Edge,
    FillCall,
    KernelCall,
    NodeKind,
    ParameterPlace,
    Peer,
)

__all__ = ["Emulated"]

_SHARED_MOST: Final = 227 << 10


class Emulated(Peer):
    """An emulated GPU with immediate calls.

    Args:
      seed: of addresses, function order, unwritten memory, node order.
      libraries: of kernels.
      memory_bytes: of the device.
    """

    def __init__(
        self,
        seed: int,
        libraries: Sequence[Library] = (),
        memory_bytes: int = 80 << 30,
        name: str = "emulated",
    ) -> None:
        # a random stream for each cause, so that loading a module does not change later addresses
        self._draw, memory, modules = (random.Random(f"{seed} {k}") for k in range(3))  # noqa: S311
        self._memory_bytes, self._name = memory_bytes, name
        self._memory = Memory(memory_bytes, memory)
        self._modules = Modules(libraries_by_path(libraries), modules)
        self._graphs: dict[int, Graph] = {}
        self._executables: dict[int, Graph] = {}
        self._graph_of: dict[int, int] = {}  # node -> graph
        self._capture: Capture | None = None
        self._events: set[int] = set()
        self._handles = 0x6600_0000_0000 + self._draw.randrange(1 << 20) * 16

    def describe(self) -> dict[str, Any]:
        """Return name and memory; `mig` is empty, `driver` 0."""
        return {"gpu": self._name, "memory_bytes": self._memory_bytes, "mig": "", "driver": 0}

    # memory

    def allocate(self, nbytes: int) -> int:
        """Allocate at a random address."""
        return self._memory.allocate(nbytes)

    def release(self, address: int) -> None:
        """Release a segment and its content."""
        self._memory.release(address)

    def reserve(self, nbytes: int, address: int) -> int:
        """Reserve at `address` if free, else behind all segments."""
        return self._memory.reserve(nbytes, address)

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Map memory; refused outside reserved ranges and over segments."""
        self._memory.allocate_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Write within one segment."""
        self._memory.write(address, data)

    def read(self, address: int, nbytes: int) -> bytes:
        """Read within a segment; unwritten bytes are noise."""
        return self._memory.read(address, nbytes)

    def free_bytes(self) -> int:
        """Return `memory_bytes` minus the bytes of all segments."""
        return self._memory.free_bytes

    def replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """Return a tensor map with a new address and checksum."""
        if len(tensor_map) != TENSOR_MAP_BYTES:
            raise DeviceFault(f"a tensor map of {len(tensor_map)} bytes")
        return sealed(tensor_map, address)

    # modules and functions

    def load_module(self, image: bytes) -> int:
        """Load PTX; the functions get handles in random order."""
        return self._modules.load(image)

    def get_function(self, module: int, name: str) -> int:
        """Load and return a module's function."""
        return self._modules.find(module, name)

    def functions(self, module: int) -> tuple[int, ...]:
        """Return a module's functions in random order."""
        return self._modules.by_module[module]

    def function_name(self, function: int) -> str:
        """Return the entry's name."""
        return self._modules.function(function).entry.name

    def function_module(self, function: int) -> int:
        """Return the image's module."""
        return self._modules.function(function).module

    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]:
        """Return the places that the PTX declares."""
        return self._modules.function(function).entry.places

    def ensure_loaded(self, function: int) -> None:
        """Mark a function as loaded."""
        self._modules.function(function).is_loaded = True

    def shared_limit(self, function: int) -> int:
        """Return the limit, 48 KiB unless set."""
        return self._modules.function(function).shared_limit

    def set_shared_limit(self, function: int, nbytes: int) -> None:
        """Set the limit, to at most 227 KiB."""
        if nbytes > _SHARED_MOST:
            raise DeviceFault(f"{nbytes} bytes of shared memory, above {_SHARED_MOST}")
        self._modules.function(function).shared_limit = nbytes

    def symbol(self, library: str, name: str) -> int | None:
        """Return a library's kernel, or None if hidden or absent."""
        symbol = self._modules.libraries.get(library)
        if symbol is None or symbol.is_hidden:
            return None
        return self._modules.of_library(library, name)

    def library_function(self, library: str, name: str) -> int:
        """Return a library's kernel, also a hidden one."""
        function = self._modules.of_library(library, name)
        if function is None:
            raise DeviceFault(f"{library} has no kernel {name}")
        return function

    # one stream, and its capture

    def launch(self, call: KernelCall) -> None:
        """Check function, parameters and shared memory, then run or capture."""
        self._check(call)
        self._do("kernel", call)

    def copy(self, call: CopyCall) -> None:
        """Run or capture a copy."""
        self._do("copy", call)

    def fill(self, call: FillCall) -> None:
        """Run or capture a fill."""
        self._do("fill", call)

    def synchronise(self) -> None:
        """Do nothing; refused during a capture."""
        if self._capture is not None:
            raise DeviceFault("a stream under capture cannot be waited for")

    def begin_capture(self) -> None:
        """Begin a capture; refused during another."""
        if self._capture is not None:
            raise DeviceFault("a capture is under way already")
        self._capture = Capture(Graph())

    def captured_nodes(self) -> int:
        """Return the nodes captured so far."""
        return len(self._captured().graph.nodes)

    def depend_on(self, edges: Sequence[Edge]) -> None:
        """Set the next captured node's edges; by default the previous one's."""
        self._captured().told = list(edges)

    def end_capture(self) -> int:
        """End the capture; return a handle of its graph."""
        graph = self._captured().graph
        self._capture = None
        handle = self._new()
        self._graphs[handle] = graph
        self._graph_of.update(dict.fromkeys(graph.nodes, handle))
        return handle

    # events and copies between devices

    def enter(self) -> None:
        """Do nothing: calls go to their object."""

    def record(self) -> int:
        """Return an event that has occurred; refused in a capture."""
        if self._capture is not None:
            raise DeviceFault("cannot record an event of a stream under capture")
        event = self._new()
        self._events.add(event)
        return event

    def wait(self, event: int) -> None:
        """Do nothing: the event has occurred."""

    def receive(self, call: CopyCall, source: Peer) -> None:
        """Copy by way of the host, at once."""
        self._memory.write(call.target, source.read(call.source, call.nbytes))

    def forget(self, event: int) -> None:
        """Forget an event's handle."""
        self._events.remove(event)

    # graphs, read

    def nodes(self, graph: int) -> tuple[int, ...]:
        """Return the nodes' handles in order of creation."""
        return tuple(self._graphs[graph].nodes)

    def edges(self, graph: int) -> tuple[Edge, ...]:
        """Return the edges in order of creation."""
        return tuple(self._graphs[graph].edges)

    def node_kind(self, node: int) -> NodeKind:
        """Return the node's kind."""
        return self._node(node).kind

    def kernel_of(self, node: int) -> KernelCall:
        """Return the node's launch."""
        call = self._node(node).call
        assert isinstance(call, KernelCall)
        return call

    def copy_of(self, node: int) -> CopyCall:
        """Return the node's copy."""
        call = self._node(node).call
        assert isinstance(call, CopyCall)
        return call

    def fill_of(self, node: int) -> FillCall:
        """Return the node's fill."""
        call = self._node(node).call
        assert isinstance(call, FillCall)
        return call

    def child_of(self, node: int) -> int:
        """Return the node's graph."""
        call = self._node(node).call
        assert isinstance(call, int)
        return call

    # graphs, made

    def create_graph(self) -> int:
        """Return a handle of a new graph."""
        handle = self._new()
        self._graphs[handle] = Graph()
        return handle

    def add_kernel(self, graph: int, call: KernelCall) -> int:
        """Add a kernel node, after a launch's check."""
        self._check(call)
        return self._add(graph, Node("kernel", call))

    def add_copy(self, graph: int, call: CopyCall) -> int:
        """Add a copy node, without a check of its addresses."""
        return self._add(graph, Node("copy", call))

    def add_fill(self, graph: int, call: FillCall) -> int:
        """Add a fill node."""
        return self._add(graph, Node("fill", call))

    def add_child(self, graph: int, child: int) -> int:
        """Add a child node, which runs the graph as at launch."""
        return self._add(graph, Node("child", child))

    def add_empty(self, graph: int) -> int:
        """Add an empty node."""
        return self._add(graph, Node("empty", None))

    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None:
        """Add edges; refused for missing nodes."""
        record = self._graphs[graph]
        for edge in edges:
            if not (0 <= edge.source < len(record.nodes) and 0 <= edge.target < len(record.nodes)):
                raise DeviceFault(f"{edge} names a node that the graph lacks")
        record.edges.extend(edges)

    def instantiate(self, graph: int) -> int:
        """Copy nodes and edges into an executable graph without cycles."""
        record = self._graphs[graph]
        order_of(len(record.nodes), record.edges, self._draw)
        handle = self._new()
        self._executables[handle] = Graph(dict(record.nodes), list(record.edges))
        return handle

    def update(self, executable: int, graph: int) -> None:
        """Replace an executable graph's nodes; refused for other kinds or edges."""
        old, new = self._executables[executable], self._graphs[graph]
        kinds = [[node.kind for node in version.nodes.values()] for version in (old, new)]
        if kinds[0] != kinds[1] or set(old.edges) != set(new.edges):
            raise DeviceFault("cannot update an executable graph to another topology")
        self._executables[executable] = Graph(dict(new.nodes), list(new.edges))

    def upload(self, executable: int) -> None:
        """Do nothing; refused if there is no such executable graph."""
        if executable not in self._executables:
            raise DeviceFault("no such executable graph")

    def launch_graph(self, executable: int) -> None:
        """Run nodes in a random order allowed by edges."""
        self._run(self._executables[executable])

    def destroy_graph(self, graph: int) -> None:
        """Remove a graph and its nodes."""
        for node in self._graphs.pop(graph).nodes:
            self._graph_of.pop(node)

    def destroy_executable(self, executable: int) -> None:
        """Remove an executable graph."""
        del self._executables[executable]

    def _captured(self) -> Capture:
        if self._capture is None:
            raise DeviceFault("no capture is under way")
        return self._capture

    def _do(self, kind: NodeKind, call: KernelCall | CopyCall | FillCall) -> None:
        if self._capture is None:
            self._carry_out(call)
            return
        graph = self._capture.graph
        edges = self._capture.edges_of(len(graph.nodes))
        graph.nodes[self._new()] = Node(kind, call)
        graph.edges.extend(edges)

    def _check(self, call: KernelCall) -> None:
        function = self._modules.function(call.function)
        sizes = tuple(p.nbytes for p in function.entry.parameters)
        if tuple(map(len, call.parameters)) != sizes:
            raise DeviceFault(f"{function.entry.name} expects parameters of {sizes} bytes")
        if not function.is_loaded:
            raise DeviceFault(f"{function.entry.name} is not loaded")
        if call.shared_bytes > function.shared_limit:
            raise DeviceFault(f"{function.entry.name}: {call.shared_bytes} bytes of shared memory")

    def _run(self, graph: Graph) -> None:
        nodes = list(graph.nodes.values())
        for k in order_of(len(nodes), graph.edges, self._draw):
            call = nodes[k].call
            if isinstance(call, int):
                self._run(self._graphs[call])
            elif call is not None:
                self._carry_out(call)

    def _carry_out(self, call: KernelCall | CopyCall | FillCall) -> None:
        if isinstance(call, KernelCall):
            execute(self._modules.function(call.function).entry, call, self._memory)
        elif isinstance(call, CopyCall):
            self._memory.write(call.target, self._memory.read(call.source, call.nbytes))
        else:
            element = struct.pack("<Q", call.value)[: call.element_bytes]
            self._memory.write(call.target, element * call.length)

    def _add(self, graph: int, node: Node) -> int:
        handle = self._new()
        self._graphs[graph].nodes[handle] = node
        self._graph_of[handle] = graph
        return handle

    def _node(self, node: int) -> Node:
        return self._graphs[self._graph_of[node]].nodes[node]

    def _new(self) -> int:
        self._handles += 16
        return self._handles
