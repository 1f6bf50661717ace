"""The device as launch programs see it: some forty calls of a GPU's driver, with plain values.

`Emulated` and `Driver` implement it. Handles are integers that mean something to their device only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

__all__ = [
    "FULL",
    "PROGRAMMATIC",
    "TENSOR_MAP_BYTES",
    "CopyCall",
    "Device",
    "DeviceFault",
    "Edge",
    "FillCall",
    "KernelCall",
    "LaunchAttribute",
    "NodeKind",
    "ParameterPlace",
    "Triple",
]

Triple = tuple[int, int, int]
NodeKind = Literal["kernel", "copy", "fill", "child", "empty"]

TENSOR_MAP_BYTES: Final = 128

# Types of edges, by the driver's numbers (CUgraphDependencyType).
FULL: Final = 0
PROGRAMMATIC: Final = 1


class DeviceFault(RuntimeError):
    """The device refused or failed: an address that is not there, a function that is not loaded."""


class ParameterPlace(NamedTuple):
    """Where a parameter stands in a function's parameter buffer."""

    offset: int
    nbytes: int


class LaunchAttribute(NamedTuple):
    """An attribute of a launch, such as its cluster: the driver's number and the value's bytes."""

    number: int
    value: bytes


class KernelCall(NamedTuple):
    """A kernel's launch, with the bytes of every parameter."""

    function: int
    grid: Triple
    block: Triple
    shared_bytes: int
    parameters: tuple[bytes, ...]
    attributes: tuple[LaunchAttribute, ...] = ()


class CopyCall(NamedTuple):
    """A copy of bytes within device memory."""

    target: int
    source: int
    nbytes: int


class FillCall(NamedTuple):
    """A row of `count` elements set to one value."""

    target: int
    value: int
    element_bytes: int
    count: int


class Edge(NamedTuple):
    """One node waits for another. Ports and type as the driver has them (`CUgraphEdgeData`)."""

    source: int  # position among the graph's nodes
    target: int
    from_port: int = 0
    to_port: int = 0
    type: int = FULL


class Device(Protocol):
    """A GPU, an emulated one, or a driver library that pretends to have one."""

    # memory
    def allocate(self, nbytes: int) -> int: ...
    def release(self, address: int) -> None: ...
    def write(self, address: int, data: bytes) -> None: ...
    def read(self, address: int, nbytes: int) -> bytes: ...
    def free_bytes(self) -> int: ...
    def replace_address(self, tensor_map: bytes, address: int) -> bytes: ...

    # modules and functions
    def load_module(self, image: bytes) -> int: ...
    def get_function(self, module: int, name: str) -> int: ...
    def functions(self, module: int) -> tuple[int, ...]: ...
    def function_name(self, function: int) -> str: ...
    def function_module(self, function: int) -> int: ...
    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]: ...
    def ensure_loaded(self, function: int) -> None: ...
    def shared_limit(self, function: int) -> int: ...
    def set_shared_limit(self, function: int, nbytes: int) -> None: ...
    def symbol(self, library: str, name: str) -> int | None: ...

    # one stream, and its capture
    def launch(self, call: KernelCall) -> None: ...
    def copy(self, call: CopyCall) -> None: ...
    def fill(self, call: FillCall) -> None: ...
    def synchronise(self) -> None: ...
    def begin_capture(self) -> None: ...
    def captured_nodes(self) -> int: ...
    def depend_on(self, edges: Sequence[Edge]) -> None: ...
    def end_capture(self) -> int: ...

    # graphs, read
    def nodes(self, graph: int) -> tuple[int, ...]: ...
    def edges(self, graph: int) -> tuple[Edge, ...]: ...
    def node_kind(self, node: int) -> NodeKind | str: ...
    def kernel_of(self, node: int) -> KernelCall: ...
    def copy_of(self, node: int) -> CopyCall: ...
    def fill_of(self, node: int) -> FillCall: ...
    def child_of(self, node: int) -> int: ...

    # graphs, made
    def create_graph(self) -> int: ...
    def add_kernel(self, graph: int, call: KernelCall) -> int: ...
    def add_copy(self, graph: int, call: CopyCall) -> int: ...
    def add_fill(self, graph: int, call: FillCall) -> int: ...
    def add_child(self, graph: int, child: int) -> int: ...
    def add_empty(self, graph: int) -> int: ...
    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None: ...
    def instantiate(self, graph: int) -> int: ...
    def upload(self, executable: int) -> None: ...
    def launch_graph(self, executable: int) -> None: ...
    def destroy_graph(self, graph: int) -> None: ...
    def destroy_executable(self, executable: int) -> None: ...

    def describe(self) -> dict[str, Any]: ...
