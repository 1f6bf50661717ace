"""Validation of restored graphs on equal inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.ir import Graph, Patch
from c2c.systems.medusa.restore import Restored, build
from c2c.systems.program import AllocationId, Device

__all__ = ["Difference", "Regions", "Side", "difference", "first_difference", "sides", "validate"]

_SEEN_BYTES = 64 << 10  # compared of each buffer that a node points to

Region = tuple[AllocationId, int, int]  # an allocation, an offset in it, bytes
Equal = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Regions:
    """Memory of a run's inputs (`given`) and outputs (`left`)."""

    given: tuple[Region, ...]
    left: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """An original or restored graph in a process.

    Attributes:
      graph: with patches by `addresses`.
      told: by number of the name; None: not told.
    """

    device: Device
    graph: Graph
    addresses: Sequence[int]
    numbers: Mapping[AllocationId, int]
    functions: Mapping[int, int]
    sizes: Sequence[int]
    told: tuple[int | None, ...] = ()

    def address(self, name: AllocationId) -> int:
        """Return an allocation's address in this process."""
        return self.addresses[self.numbers[name]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first node whose writes differ between two processes."""

    node: int
    kernel: int
    patches: tuple[Patch, ...]
    allocation: int

    def __str__(self) -> str:
        return f"node {self.node} (kernel {self.kernel}) writes others to buffer {self.allocation}"


def sides(
    capture: Capture,
    functions: Mapping[int, int],
    device: Device,
    artefact: Artefact,
    restored: Restored,
    restored_device: Device,
    batch: int,
) -> tuple[Side, Side]:
    """Return the original and a batch size's restored side."""
    numbers = {name: k for k, name in enumerate(artefact.allocations)}
    events = [e for e in capture.events if not e.is_free]
    sizes = [e.nbytes for e in events]
    raw = next(g for g in capture.graphs if g.batch == batch)
    patched = next(g for g in artefact.graphs if g.batch == batch)
    original = Side(device, raw, [e.address for e in events], numbers, functions, sizes)
    return original, Side(
        restored_device,
        patched,
        restored.addresses,
        numbers,
        restored.functions,
        sizes,
        restored.told,
    )


def observe(side: Side, executable: int, regions: Regions, seed: int) -> tuple[bytes, ...]:
    """Run a graph on random bytes; return its outputs."""
    _give(side, regions, seed)
    side.device.launch_graph(executable)
    side.device.synchronise()
    return tuple(
        side.device.read(side.address(name) + offset, nbytes)
        for name, offset, nbytes in regions.left
    )


def validate(
    original: tuple[Side, int],
    restored: tuple[Side, int],
    regions: Regions,
    seeds: Iterable[int] = (0, 1, 2),
    is_close: Equal | None = None,
) -> bool:
    """Return whether two executable graphs agree on random inputs.

    Args:
      is_close: None: bytes are equal.
    """
    for seed in seeds:
        reference, ours = observe(*original, regions, seed), observe(*restored, regions, seed)
        if reference == ours:
            continue
        again = observe(*original, regions, seed)
        for one, two, other in zip(reference, ours, again, strict=True):
            is_free = one != other and is_close is not None and is_close(one, two)
            if one != two and not is_free:
                return False
    return True


def difference(
    original: tuple[Side, int],
    restored: tuple[Side, int],
    regions: Regions,
    seeds: Iterable[int] = (0, 1, 2),
) -> str:
    """Return the first node that differs, for people; empty where `validate` finds none."""
    if validate(original, restored, regions, seeds):
        return ""
    first = first_difference(original[0], restored[0], regions)
    return str(first or "no node alone does: their order may")


def first_difference(
    original: Side, restored: Side, regions: Regions, seed: int = 0
) -> Difference | None:
    """Run both sides node by node; return the first difference."""
    _give(original, regions, seed)
    _give(restored, regions, seed)
    pairs = zip(original.graph.nodes, restored.graph.nodes, strict=True)
    for number, (_, node) in enumerate(pairs):
        places = _places(node.patches, restored.sizes)
        before = [_contents(side, places) for side in (original, restored)]
        for side in (original, restored):
            _run_one(side, number)
        after = [_contents(side, places) for side in (original, restored)]
        for k, (allocation, _, _) in enumerate(places):
            one, two = (a[k] for a in after)
            changed = (before[0][k] != one) | (before[1][k] != two)
            if np.any(changed & (one != two)):
                return Difference(number, node.kernel, node.patches, allocation)
    return None


def _give(side: Side, regions: Regions, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for name, offset, nbytes in regions.given:
        side.device.write(side.address(name) + offset, draw.bytes(nbytes))


def _run_one(side: Side, number: int) -> None:
    single = replace(side.graph, nodes=side.graph.nodes[number : number + 1], edges=())
    graph, _ = build(side.device, single, tuple(side.addresses), side.functions, side.told)
    executable = side.device.instantiate(graph)
    side.device.launch_graph(executable)
    side.device.synchronise()
    side.device.destroy_executable(executable)
    side.device.destroy_graph(graph)


def _places(patches: Iterable[Patch], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the memory to compare at each address: allocation, offset, bytes."""
    nbytes_of = {}
    for patch in patches:
        rest = sizes[patch.allocation] - patch.offset
        nbytes_of[patch.allocation, patch.offset] = min(rest, _SEEN_BYTES)
    return sorted((a, offset, nbytes) for (a, offset), nbytes in nbytes_of.items() if nbytes)


def _contents(side: Side, places: Iterable[tuple[int, int, int]]) -> list[np.ndarray]:
    return [
        np.frombuffer(side.device.read(side.addresses[a] + offset, nbytes), dtype=np.uint8)
        for a, offset, nbytes in places
    ]
