"""The emulated device: the port's calls over memory, modules and graphs of one process."""

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
    """A GPU of one emulated process.

    Args:
      seed: of everything that differs between processes: addresses, the order of modules, what
        unwritten memory holds, the order in which independent nodes run.
      libraries: of kernels, loaded when they are used.
      memory_bytes: of the device.
      name: of the device, part of an artefact's key.
    """

    def __init__(
        self,
        seed: int,
        libraries: Sequence[Library] = (),
        memory_bytes: int = 80 << 30,
        name: str = "emulated",
    ) -> None:
        # a stream a cause, so that what is loaded does not move what is allocated
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
        """Return the device's part of an artefact's key."""
        return {"gpu": self._name, "memory_bytes": self._memory_bytes, "mig": "", "driver": 0}

    # memory

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new segment."""
        return self._memory.allocate(nbytes)

    def release(self, address: int) -> None:
        """Give a segment back; reads of it fail from now on."""
        self._memory.release(address)

    def reserve(self, nbytes: int, address: int) -> int:
        """Return the begin of a range of addresses without memory, at `address` if it is free."""
        return self._memory.reserve(nbytes, address)

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Put memory behind a part of a reserved range."""
        self._memory.allocate_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Copy from the host."""
        self._memory.write(address, data)

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy to the host."""
        return self._memory.read(address, nbytes)

    def free_bytes(self) -> int:
        """Return how much memory no segment has."""
        return self._memory.free_bytes

    def replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """Return a tensor map of the same shape over another address."""
        if len(tensor_map) != TENSOR_MAP_BYTES:
            raise DeviceFault(f"a tensor map of {len(tensor_map)} bytes")
        return sealed(tensor_map, address)

    # modules and functions

    def load_module(self, image: bytes) -> int:
        """Load an image."""
        return self._modules.load(image)

    def get_function(self, module: int, name: str) -> int:
        """Return a module's function by name."""
        return self._modules.find(module, name)

    def functions(self, module: int) -> tuple[int, ...]:
        """Return all functions of a module; some may not be loaded yet."""
        return self._modules.by_module[module]

    def function_name(self, function: int) -> str:
        """Return a function's name."""
        return self._modules.function(function).entry.name

    def function_module(self, function: int) -> int:
        """Return the module a function is in."""
        return self._modules.function(function).module

    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]:
        """Return where parameters stand in the parameter buffer."""
        return self._modules.function(function).entry.places

    def ensure_loaded(self, function: int) -> None:
        """Load a function that only its module's list has so far."""
        self._modules.function(function).is_loaded = True

    def shared_limit(self, function: int) -> int:
        """Return how much dynamic shared memory launches may ask for."""
        return self._modules.function(function).shared_limit

    def set_shared_limit(self, function: int, nbytes: int) -> None:
        """Allow launches more dynamic shared memory."""
        if nbytes > _SHARED_MOST:
            raise DeviceFault(f"{nbytes} bytes of shared memory")
        self._modules.function(function).shared_limit = nbytes

    def symbol(self, library: str, name: str) -> int | None:
        """Return the function of a library's symbol; None: there is no such symbol."""
        found = self._modules.libraries.get(library)
        if found is None or found.is_hidden:
            return None
        return self._modules.of_library(library, name)

    def library_function(self, library: str, name: str) -> int:
        """Return a function as its own library gets it, hidden or not. No call of a driver's."""
        function = self._modules.of_library(library, name)
        if function is None:
            raise DeviceFault(f"{library} has no kernel {name}")
        return function

    # one stream, and its capture

    def launch(self, call: KernelCall) -> None:
        """Launch a kernel, or put it into the graph under capture."""
        self._check(call)
        self._do("kernel", call)

    def copy(self, call: CopyCall) -> None:
        """Copy within device memory."""
        self._do("copy", call)

    def fill(self, call: FillCall) -> None:
        """Set elements to one value."""
        self._do("fill", call)

    def synchronise(self) -> None:
        """Wait for the stream."""
        if self._capture is not None:
            raise DeviceFault("a stream under capture cannot be waited for")

    def begin_capture(self) -> None:
        """Put what follows into a graph instead of running it."""
        if self._capture is not None:
            raise DeviceFault("a capture is under way already")
        self._capture = Capture(Graph())

    def captured_nodes(self) -> int:
        """Return how many nodes the graph under capture has."""
        return len(self._captured().graph.nodes)

    def depend_on(self, edges: Sequence[Edge]) -> None:
        """Say what the next captured node waits for."""
        self._captured().told = list(edges)

    def end_capture(self) -> int:
        """Return the captured graph."""
        graph = self._captured().graph
        self._capture = None
        handle = self._new()
        self._graphs[handle] = graph
        self._graph_of.update(dict.fromkeys(graph.nodes, handle))
        return handle

    # beside others; all that is started has ended at once

    def enter(self) -> None:
        """Make this the device that calls go to."""

    def record(self) -> int:
        """Return an event that happens when all that was started here has ended."""
        if self._capture is not None:
            raise DeviceFault("an event of a stream under capture")
        event = self._new()
        self._events.add(event)
        return event

    def wait(self, event: int) -> None:
        """Have what is started from now on begin after an event of any device."""

    def receive(self, call: CopyCall, source: Peer) -> None:
        """Copy from another device's memory into this one's, in this one's order."""
        self._memory.write(call.target, source.read(call.source, call.nbytes))

    def forget(self, event: int) -> None:
        """Give an event back."""
        self._events.remove(event)

    # graphs, read

    def nodes(self, graph: int) -> tuple[int, ...]:
        """Return a graph's nodes in order of creation."""
        return tuple(self._graphs[graph].nodes)

    def edges(self, graph: int) -> tuple[Edge, ...]:
        """Return a graph's edges."""
        return tuple(self._graphs[graph].edges)

    def node_kind(self, node: int) -> NodeKind:
        """Return a node's kind."""
        return self._node(node).kind

    def kernel_of(self, node: int) -> KernelCall:
        """Return a kernel node's launch."""
        call = self._node(node).call
        assert isinstance(call, KernelCall)
        return call

    def copy_of(self, node: int) -> CopyCall:
        """Return a copy node's call."""
        call = self._node(node).call
        assert isinstance(call, CopyCall)
        return call

    def fill_of(self, node: int) -> FillCall:
        """Return a fill node's call."""
        call = self._node(node).call
        assert isinstance(call, FillCall)
        return call

    def child_of(self, node: int) -> int:
        """Return the graph of a child node."""
        call = self._node(node).call
        assert isinstance(call, int)
        return call

    # graphs, made

    def create_graph(self) -> int:
        """Return a new graph."""
        handle = self._new()
        self._graphs[handle] = Graph()
        return handle

    def add_kernel(self, graph: int, call: KernelCall) -> int:
        """Add a kernel node."""
        self._check(call)
        return self._add(graph, Node("kernel", call))

    def add_copy(self, graph: int, call: CopyCall) -> int:
        """Add a node that copies."""
        return self._add(graph, Node("copy", call))

    def add_fill(self, graph: int, call: FillCall) -> int:
        """Add a node that fills."""
        return self._add(graph, Node("fill", call))

    def add_child(self, graph: int, child: int) -> int:
        """Add a graph as a node."""
        return self._add(graph, Node("child", child))

    def add_empty(self, graph: int) -> int:
        """Add a node that does nothing."""
        return self._add(graph, Node("empty", None))

    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None:
        """Add edges between nodes by position."""
        made = self._graphs[graph]
        for edge in edges:
            if not (0 <= edge.source < len(made.nodes) and 0 <= edge.target < len(made.nodes)):
                raise DeviceFault(f"{edge} names nodes that are not there")
        made.edges.extend(edges)

    def instantiate(self, graph: int) -> int:
        """Return something that can be launched."""
        made = self._graphs[graph]
        order_of(len(made.nodes), made.edges, self._draw)
        handle = self._new()
        self._executables[handle] = Graph(dict(made.nodes), list(made.edges))
        return handle

    def update(self, executable: int, graph: int) -> None:
        """Put the parameters of a graph of the same topology into an executable one."""
        old, new = self._executables[executable], self._graphs[graph]
        kinds = [[node.kind for node in each.nodes.values()] for each in (old, new)]
        if kinds[0] != kinds[1] or set(old.edges) != set(new.edges):
            raise DeviceFault("an executable graph is not updated to another topology")
        self._executables[executable] = Graph(dict(new.nodes), list(new.edges))

    def upload(self, executable: int) -> None:
        """Bring an executable graph to the device."""
        if executable not in self._executables:
            raise DeviceFault("no such executable graph")

    def launch_graph(self, executable: int) -> None:
        """Run all nodes of a graph, in some order that its edges allow."""
        self._run(self._executables[executable])

    def destroy_graph(self, graph: int) -> None:
        """Forget a graph."""
        for node in self._graphs.pop(graph).nodes:
            self._graph_of.pop(node)

    def destroy_executable(self, executable: int) -> None:
        """Forget an executable graph."""
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
            raise DeviceFault(f"{function.entry.name} takes parameters of {sizes} bytes")
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
