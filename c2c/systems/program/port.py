"""Device port: driver calls of launch programs."""

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
    "Peer",
    "Triple",
]

Triple = tuple[int, int, int]
NodeKind = Literal["kernel", "copy", "fill", "child", "empty"]

TENSOR_MAP_BYTES: Final = 128

# Types of edges, by the driver's numbers (CUgraphDependencyType).
FULL: Final = 0
PROGRAMMATIC: Final = 1


class DeviceFault(RuntimeError):
    """Failure of a device, such as a refused call."""


class ParameterPlace(NamedTuple):
    """Offset and size of a parameter in the parameter buffer, bytes."""

    offset: int
    nbytes: int


class LaunchAttribute(NamedTuple):
    """An attribute of a launch: driver's number and value's bytes."""

    number: int
    value: bytes


class KernelCall(NamedTuple):
    """A kernel's launch, with every parameter's bytes."""

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
    """A fill: `length` consecutive elements set to one value."""

    target: int
    value: int
    element_bytes: int
    length: int


class Edge(NamedTuple):
    """A dependency: `target` waits for `source`; ports and type as in `CUgraphEdgeData`."""

    source: int  # position among the graph's nodes
    target: int
    from_port: int = 0
    to_port: int = 0
    type: int = FULL


class Device(Protocol):
    """A device with one stream: a GPU, an emulated GPU, or a fake driver library.

    A refused call raises `DeviceFault`.

    Handles are integers, valid on their own device only.
    """

    # memory
    def allocate(self, nbytes: int) -> int:
        """Allocate a segment; return its address."""

    def release(self, address: int) -> None:
        """Release a segment; later reads of it fail."""

    def reserve(self, nbytes: int, address: int) -> int:
        """Reserve addresses without memory, at `address` if free; return the begin."""

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Map memory at an address of a reserved range."""

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes from the host into device memory."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy bytes from device memory to the host."""

    def free_bytes(self) -> int:
        """Return the bytes of unallocated device memory."""

    def replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """Return a copy of a tensor map with another address."""

    # modules and functions
    def load_module(self, image: bytes) -> int:
        """Load an image; return its module."""

    def get_function(self, module: int, name: str) -> int:
        """Load and return a function of a module."""

    def functions(self, module: int) -> tuple[int, ...]:
        """Return all functions of a module, loaded or not."""

    def function_name(self, function: int) -> str:
        """Return a function's name."""

    def function_module(self, function: int) -> int:
        """Return a function's module."""

    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]:
        """Return the offset and size of each parameter in the parameter buffer."""

    def ensure_loaded(self, function: int) -> None:
        """Load a function unless it is loaded."""

    def shared_limit(self, function: int) -> int:
        """Return the limit of a launch's dynamic shared memory, in bytes."""

    def set_shared_limit(self, function: int, nbytes: int) -> None:
        """Set the limit of a launch's dynamic shared memory, in bytes."""

    def symbol(self, library: str, name: str) -> int | None:
        """Return the function of a library's symbol, or None."""

    # one stream, and its capture
    def launch(self, call: KernelCall) -> None:
        """Launch a kernel, or capture it."""

    def copy(self, call: CopyCall) -> None:
        """Copy within device memory, or capture the copy."""

    def fill(self, call: FillCall) -> None:
        """Fill elements with a value, or capture this."""

    def synchronise(self) -> None:
        """Wait until the stream is idle."""

    def begin_capture(self) -> None:
        """Begin to capture calls instead of running them."""

    def captured_nodes(self) -> int:
        """Count nodes of the graph under capture."""

    def depend_on(self, edges: Sequence[Edge]) -> None:
        """Set the edges to the next captured node."""

    def end_capture(self) -> int:
        """End the capture; return its graph."""

    # graphs, read
    def nodes(self, graph: int) -> tuple[int, ...]:
        """Return a graph's nodes in order of creation."""

    def edges(self, graph: int) -> tuple[Edge, ...]:
        """Return a graph's edges."""

    def node_kind(self, node: int) -> NodeKind | str:
        """Return a node's kind."""

    def kernel_of(self, node: int) -> KernelCall:
        """Return a kernel node's launch."""

    def copy_of(self, node: int) -> CopyCall:
        """Return a copy node's call."""

    def fill_of(self, node: int) -> FillCall:
        """Return a fill node's call."""

    def child_of(self, node: int) -> int:
        """Return a child node's graph."""

    # graphs, made
    def create_graph(self) -> int:
        """Return a new, empty graph."""

    def add_kernel(self, graph: int, call: KernelCall) -> int:
        """Add a kernel node; return it."""

    def add_copy(self, graph: int, call: CopyCall) -> int:
        """Add a copy node; return it."""

    def add_fill(self, graph: int, call: FillCall) -> int:
        """Add a fill node; return it."""

    def add_child(self, graph: int, child: int) -> int:
        """Add a node that runs another graph; return it."""

    def add_empty(self, graph: int) -> int:
        """Add an empty node; return it."""

    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None:
        """Add edges between nodes by position."""

    def instantiate(self, graph: int) -> int:
        """Return an executable copy of the graph."""

    def update(self, executable: int, graph: int) -> None:
        """Set an executable graph's parameters, of equal topology."""

    def upload(self, executable: int) -> None:
        """Upload an executable graph to the device."""

    def launch_graph(self, executable: int) -> None:
        """Launch an executable graph; nodes run as edges allow."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""

    def destroy_executable(self, executable: int) -> None:
        """Destroy an executable graph."""

    def describe(self) -> dict[str, Any]:
        """Return the device's fields of an artefact's key."""


class Peer(Device, Protocol):
    """A device among several of a process, ordered by events.

    Calls of `Device` go to the device entered last, others to their own.
    """

    def enter(self) -> None:
        """Make this the current device."""

    def record(self) -> int:
        """Return an event after everything launched so far."""

    def wait(self, event: int) -> None:
        """Delay this device's later launches until any device's event."""

    def receive(self, call: CopyCall, source: Peer) -> None:
        """Copy from another device's memory, in this stream's order."""

    def forget(self, event: int) -> None:
        """Destroy an event."""
