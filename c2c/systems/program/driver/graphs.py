"""CUDA graphs through the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from c2c.systems.program.driver.calls import (
    ATTRIBUTES,
    Packed,
    attribute_value,
    bindings,
    checked,
    edge_data,
    raw_attribute,
)
from c2c.systems.program.port import (
    CopyCall,
    DeviceFault,
    Edge,
    FillCall,
    KernelCall,
    LaunchAttribute,
    ParameterPlace,
)

__all__ = ["Graphs"]

_KINDS: Final = {0: "kernel", 1: "copy", 2: "fill", 4: "child", 5: "empty"}
_DEVICE_MEMORY: Final = 2
_INVALID_VALUE: Final = 1


class Graphs:
    """Graph calls of `Driver`."""

    def __init__(self) -> None:
        self._d = bindings()
        self._order: dict[int, list[int]] = {}  # nodes of graphs, as launched or added
        self._places: dict[int, tuple[ParameterPlace, ...]] = {}

    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]:
        """Return the parameters that `cuFuncGetParamInfo` lists, possibly none."""
        if function not in self._places:
            places: list[ParameterPlace] = []
            while True:
                status, offset, nbytes = self._d.cuFuncGetParamInfo(
                    self._d.CUfunction(function), len(places)
                )
                if int(status) == _INVALID_VALUE:  # past the last parameter
                    break
                if int(status):
                    raise DeviceFault(f"cuFuncGetParamInfo: {getattr(status, 'name', status)}")
                places.append(ParameterPlace(int(offset), int(nbytes)))
            self._places[function] = tuple(places)
        return self._places[function]

    def nodes(self, graph: int) -> tuple[int, ...]:
        """Return a graph's nodes as launched or added, else by the driver."""
        if graph not in self._order:
            handle = self._d.CUgraph(graph)
            _, count = checked(self._d.cuGraphGetNodes, handle, 0)
            handles, _ = checked(self._d.cuGraphGetNodes, handle, count) if count else ([], 0)
            self._order[graph] = [int(node) for node in handles]
        return tuple(self._order[graph])

    def edges(self, graph: int) -> tuple[Edge, ...]:
        """Return the edges of `cuGraphGetEdges`, by position among `nodes`."""
        handle = self._d.CUgraph(graph)
        *_, count = checked(self._d.cuGraphGetEdges, handle, 0)
        if not count:
            return ()
        sources, targets, data, _ = checked(self._d.cuGraphGetEdges, handle, count)
        where = {node: k for k, node in enumerate(self.nodes(graph))}
        return tuple(
            Edge(where[int(a)], where[int(b)], int(e.from_port), int(e.to_port), int(e.type))
            for a, b, e in zip(sources, targets, data, strict=True)
        )

    def node_kind(self, node: int) -> str:
        """Return a node's kind, or the driver's name."""
        kind = checked(self._d.cuGraphNodeGetType, self._d.CUgraphNode(node))
        return _KINDS.get(int(kind), getattr(kind, "name", str(kind)))

    def kernel_of(self, node: int) -> KernelCall:
        """Return a kernel node's launch, with copied parameters."""
        handle = self._d.CUgraphNode(node)
        params = checked(self._d.cuGraphKernelNodeGetParams, handle)
        function = int(params.func) or int(checked(self._d.cuKernelGetFunction, params.kern))
        places = self.parameter_places(function)
        if places and not int(params.kernelParams):
            raise DeviceFault("a kernel node whose parameters are one buffer")
        array = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
        parameters = tuple(
            ctypes.string_at(array[k] or 0, place.nbytes) for k, place in enumerate(places)
        )
        return KernelCall(
            function,
            (params.gridDimX, params.gridDimY, params.gridDimZ),
            (params.blockDimX, params.blockDimY, params.blockDimZ),
            params.sharedMemBytes,
            parameters,
            self._attributes(handle),
        )

    def _attributes(self, node: Any) -> tuple[LaunchAttribute, ...]:
        result = []
        for number in ATTRIBUTES:
            kind = self._d.CUlaunchAttributeID(number)
            value = raw_attribute(checked(self._d.cuGraphKernelNodeGetAttribute, node, kind))
            if any(value):
                result.append(LaunchAttribute(number, value))
        return tuple(result)

    def copy_of(self, node: int) -> CopyCall:
        """Return a copy node's call."""
        params = checked(self._d.cuGraphMemcpyNodeGetParams, self._d.CUgraphNode(node))
        kinds = {int(params.srcMemoryType), int(params.dstMemoryType)}
        later = (params.srcY, params.srcZ, params.dstY, params.dstZ)  # rows and planes are skipped
        if kinds != {_DEVICE_MEMORY} or params.Height > 1 or params.Depth > 1 or any(later):
            raise DeviceFault("a memcpy node that is not one row of device memory")
        return CopyCall(
            int(params.dstDevice) + params.dstXInBytes,
            int(params.srcDevice) + params.srcXInBytes,
            params.WidthInBytes,
        )

    def fill_of(self, node: int) -> FillCall:
        """Return a fill node's call."""
        params = checked(self._d.cuGraphMemsetNodeGetParams, self._d.CUgraphNode(node))
        if params.height > 1:
            raise DeviceFault("a memset node of several rows")
        return FillCall(int(params.dst), params.value, params.elementSize, params.width)

    def child_of(self, node: int) -> int:
        """Return the graph of `cuGraphChildGraphNodeGetGraph`."""
        return int(checked(self._d.cuGraphChildGraphNodeGetGraph, self._d.CUgraphNode(node)))

    def create_graph(self) -> int:
        """Create a graph with `cuGraphCreate`."""
        graph = int(checked(self._d.cuGraphCreate, 0))
        self._order[graph] = []
        return graph

    def add_kernel(self, graph: int, call: KernelCall) -> int:
        """Add a kernel node and set its attributes."""
        d = self._d
        packed = Packed(call.parameters)
        params = d.CUDA_KERNEL_NODE_PARAMS()
        params.func = d.CUfunction(call.function)
        params.gridDimX, params.gridDimY, params.gridDimZ = call.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = call.block
        params.sharedMemBytes = call.shared_bytes
        params.kernelParams = packed.address
        node = self._added(graph, d.cuGraphAddKernelNode, params)
        for attribute in call.attributes:
            checked(
                d.cuGraphKernelNodeSetAttribute,
                d.CUgraphNode(node),
                d.CUlaunchAttributeID(attribute.number),
                attribute_value(attribute),
            )
        return node

    def add_copy(self, graph: int, call: CopyCall) -> int:
        """Add a node of one row with `cuGraphAddMemcpyNode`."""
        d = self._d
        params = d.CUDA_MEMCPY3D()
        params.srcMemoryType = params.dstMemoryType = d.CUmemorytype(_DEVICE_MEMORY)
        params.srcDevice, params.dstDevice = d.CUdeviceptr(call.source), d.CUdeviceptr(call.target)
        params.WidthInBytes, params.Height, params.Depth = call.nbytes, 1, 1
        return self._added(graph, d.cuGraphAddMemcpyNode, params, self._context())

    def add_fill(self, graph: int, call: FillCall) -> int:
        """Add a node of one row with `cuGraphAddMemsetNode`."""
        d = self._d
        params = d.CUDA_MEMSET_NODE_PARAMS()
        params.dst, params.value = d.CUdeviceptr(call.target), call.value
        params.elementSize, params.width, params.height = call.element_bytes, call.length, 1
        return self._added(graph, d.cuGraphAddMemsetNode, params, self._context())

    def add_child(self, graph: int, child: int) -> int:
        """Add a node with `cuGraphAddChildGraphNode`."""
        return self._added(graph, self._d.cuGraphAddChildGraphNode, self._d.CUgraph(child))

    def add_empty(self, graph: int) -> int:
        """Add a node with `cuGraphAddEmptyNode`."""
        return self._added(graph, self._d.cuGraphAddEmptyNode)

    def _added(self, graph: int, call: Any, *arguments: Any) -> int:
        node = int(checked(call, self._d.CUgraph(graph), None, 0, *arguments))
        self._order[graph].append(node)
        return node

    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None:
        """Add edges with `cuGraphAddDependencies`."""
        nodes = [self._d.CUgraphNode(node) for node in self.nodes(graph)]
        checked(
            self._d.cuGraphAddDependencies,
            self._d.CUgraph(graph),
            [nodes[edge.source] for edge in edges],
            [nodes[edge.target] for edge in edges],
            [edge_data(edge) for edge in edges],
            len(edges),
        )

    def instantiate(self, graph: int) -> int:
        """Instantiate with `cuGraphInstantiate`."""
        return int(checked(self._d.cuGraphInstantiate, self._d.CUgraph(graph), 0))

    def update(self, executable: int, graph: int) -> None:
        """Update with `cuGraphExecUpdate`, which may refuse more."""
        handle = self._d.CUgraphExec(executable)
        checked(self._d.cuGraphExecUpdate, handle, self._d.CUgraph(graph))

    def destroy_graph(self, graph: int) -> None:
        """Destroy with `cuGraphDestroy`."""
        self._order.pop(graph, None)
        checked(self._d.cuGraphDestroy, self._d.CUgraph(graph))

    def destroy_executable(self, executable: int) -> None:
        """Destroy with `cuGraphExecDestroy`."""
        checked(self._d.cuGraphExecDestroy, self._d.CUgraphExec(executable))

    def _context(self) -> Any:
        raise NotImplementedError  # `Driver` has it
