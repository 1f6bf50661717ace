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
    """The device refused or failed: an address that is not there, a function that is not loaded."""


class ParameterPlace(NamedTuple):
    """Place of a parameter in a function's parameter buffer."""

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
    """A row of `length` elements set to one value."""

    target: int
    value: int
    element_bytes: int
    length: int


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
    def allocate(self, nbytes: int) -> int:
        """Return the address of a new segment."""

    def release(self, address: int) -> None:
        """Give a segment back; reads of it fail from now on."""

    def reserve(self, nbytes: int, address: int) -> int:
        """Return the begin of a range of addresses without memory, at `address` if it is free."""

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Put memory behind a part of a reserved range."""

    def write(self, address: int, data: bytes) -> None:
        """Copy from the host."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy to the host."""

    def free_bytes(self) -> int:
        """Return how much memory no segment has."""

    def replace_address(self, tensor_map: bytes, address: int) -> bytes:
        """Return a tensor map of the same shape over another address."""

    # modules and functions
    def load_module(self, image: bytes) -> int:
        """Load an image."""

    def get_function(self, module: int, name: str) -> int:
        """Return a module's function by name."""

    def functions(self, module: int) -> tuple[int, ...]:
        """Return all functions of a module; some may not be loaded yet."""

    def function_name(self, function: int) -> str:
        """Return a function's name."""

    def function_module(self, function: int) -> int:
        """Return the module a function is in."""

    def parameter_places(self, function: int) -> tuple[ParameterPlace, ...]:
        """Return where parameters stand in the parameter buffer."""

    def ensure_loaded(self, function: int) -> None:
        """Load a function that only its module's list has so far."""

    def shared_limit(self, function: int) -> int:
        """Return how much dynamic shared memory launches may ask for."""

    def set_shared_limit(self, function: int, nbytes: int) -> None:
        """Allow launches more dynamic shared memory."""

    def symbol(self, library: str, name: str) -> int | None:
        """Return the function of a library's symbol; None: there is no such symbol."""

    # one stream, and its capture
    def launch(self, call: KernelCall) -> None:
        """Launch a kernel, or put it into the graph under capture."""

    def copy(self, call: CopyCall) -> None:
        """Copy within device memory."""

    def fill(self, call: FillCall) -> None:
        """Set elements to one value."""

    def synchronise(self) -> None:
        """Wait for the stream."""

    def begin_capture(self) -> None:
        """Put what follows into a graph instead of running it."""

    def captured_nodes(self) -> int:
        """Return how many nodes the graph under capture has."""

    def depend_on(self, edges: Sequence[Edge]) -> None:
        """Say what the next captured node waits for."""

    def end_capture(self) -> int:
        """Return the captured graph."""

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
        """Return the graph of a child node."""

    # graphs, made
    def create_graph(self) -> int:
        """Return a new graph."""

    def add_kernel(self, graph: int, call: KernelCall) -> int:
        """Add a kernel node."""

    def add_copy(self, graph: int, call: CopyCall) -> int:
        """Add a node that copies."""

    def add_fill(self, graph: int, call: FillCall) -> int:
        """Add a node that fills."""

    def add_child(self, graph: int, child: int) -> int:
        """Add a graph as a node."""

    def add_empty(self, graph: int) -> int:
        """Add a node that does nothing."""

    def add_edges(self, graph: int, edges: Sequence[Edge]) -> None:
        """Add edges between nodes by position."""

    def instantiate(self, graph: int) -> int:
        """Return something that can be launched."""

    def update(self, executable: int, graph: int) -> None:
        """Put the parameters of a graph of the same topology into an executable one."""

    def upload(self, executable: int) -> None:
        """Bring an executable graph to the device."""

    def launch_graph(self, executable: int) -> None:
        """Run all nodes of a graph, in some order that its edges allow."""

    def destroy_graph(self, graph: int) -> None:
        """Forget a graph."""

    def destroy_executable(self, executable: int) -> None:
        """Forget an executable graph."""

    def describe(self) -> dict[str, Any]:
        """Return the device's part of an artefact's key."""


class Peer(Device, Protocol):
    """A device beside others in one process: what each does in order, and what waits for what.

    Calls go to the device that was entered last, but those of this class to their own.
    """

    def enter(self) -> None:
        """Make this the device that calls go to."""

    def record(self) -> int:
        """Return an event that happens when all that was started here has ended."""

    def wait(self, event: int) -> None:
        """Have what is started from now on begin after an event of any device."""

    def receive(self, call: CopyCall, source: Peer) -> None:
        """Copy from another device's memory into this one's, in this one's order."""

    def forget(self, event: int) -> None:
        """Give an event back."""
