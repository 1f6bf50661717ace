"""Original and restored graphs on the same inputs, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.ir import Graph, Patch
from c2c.systems.medusa.restore import Restored, build
from c2c.systems.program import AllocationId, Device

__all__ = ["Difference", "Regions", "Side", "first_difference", "observe", "sides", "validate"]

_SEEN_BYTES = 64 << 10  # of each buffer that a node points to, when looking for the node

Region = tuple[AllocationId, int, int]  # an allocation, an offset in it, bytes
Equal = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Regions:
    """Memory that a run is given and that it leaves. State (a KV cache) is in both."""

    given: tuple[Region, ...]
    left: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """A graph in one process.

    Attributes:
      device: of the process.
      graph: as nodes; patches are applied with `addresses`.
      addresses: of allocations, by number.
      numbers: of allocations by name.
      functions: by the number of their kernel.
      sizes: of allocations, by number.
      told: what the process was told, by number of its name.
    """

    device: Device
    graph: Graph
    addresses: Sequence[int]
    numbers: Mapping[AllocationId, int]
    functions: Mapping[int, int]
    sizes: Sequence[int]
    told: tuple[int | None, ...] = ()

    def address(self, name: AllocationId) -> int:
        """Return where an allocation is in this process."""
        return self.addresses[self.numbers[name]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first node after which the two processes' memory differs."""

    node: int
    kernel: int
    patches: tuple[Patch, ...]
    allocation: int


def sides(
    capture: Capture,
    functions: Mapping[int, int],
    device: Device,
    artefact: Artefact,
    restored: Restored,
    restored_device: Device,
    batch: int,
) -> tuple[Side, Side]:
    """Return the two sides of a batch size: as it was captured, and as it was restored."""
    numbers = {name: k for k, name in enumerate(artefact.allocations)}
    made = [e for e in capture.events if not e.is_free]
    sizes = [e.nbytes for e in made]
    raw = next(g for g in capture.graphs if g.batch == batch)
    patched = next(g for g in artefact.graphs if g.batch == batch)
    original = Side(device, raw, [e.address for e in made], numbers, functions, sizes)
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
    """Return what a run leaves when it is given random bytes."""
    _give(side, regions, seed)
    side.device.launch_graph(executable)
    side.device.synchronise()
    return tuple(
        side.device.read(side.address(name) + at, nbytes) for name, at, nbytes in regions.left
    )


def validate(
    original: tuple[Side, int],
    restored: tuple[Side, int],
    regions: Regions,
    seeds: Iterable[int] = (0, 1, 2),
    is_close: Equal | None = None,
) -> bool:
    """Return whether two executable graphs leave the same on the same random inputs.

    Args:
      original: a side and its executable graph.
      restored: the other.
      regions: what they are given and leave.
      seeds: one run each.
      is_close: where the original itself differs between two runs (sums in any order): what is
        equal enough. None: bytes have to be equal.
    """
    for seed in seeds:
        wanted, ours = observe(*original, regions, seed), observe(*restored, regions, seed)
        if wanted == ours:
            continue
        again = observe(*original, regions, seed)
        for one, two, other in zip(wanted, ours, again, strict=True):
            is_free = one != other and is_close is not None and is_close(one, two)
            if one != two and not is_free:
                return False
    return True


def first_difference(
    original: Side, restored: Side, regions: Regions, seed: int = 0
) -> Difference | None:
    """Run both node by node; return the first node whose writes differ, if any.

    Memory that nobody wrote differs between processes anyway, so that only what a node changes is
    compared.
    """
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
    for name, at, nbytes in regions.given:
        side.device.write(side.address(name) + at, draw.bytes(nbytes))


def _run_one(side: Side, number: int) -> None:
    single = replace(side.graph, nodes=side.graph.nodes[number : number + 1], edges=())
    graph, _ = build(side.device, single, tuple(side.addresses), side.functions, side.told)
    executable = side.device.instantiate(graph)
    side.device.launch_graph(executable)
    side.device.synchronise()
    side.device.destroy_executable(executable)
    side.device.destroy_graph(graph)


def _places(patches: Iterable[Patch], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return what to look at behind each address: allocation, offset, bytes."""
    found = {}
    for patch in patches:
        rest = sizes[patch.allocation] - patch.offset
        found[patch.allocation, patch.offset] = min(rest, _SEEN_BYTES)
    return sorted((a, offset, nbytes) for (a, offset), nbytes in found.items() if nbytes)


def _contents(side: Side, places: Iterable[tuple[int, int, int]]) -> list[np.ndarray]:
    return [
        np.frombuffer(side.device.read(side.addresses[a] + offset, nbytes), dtype=np.uint8)
        for a, offset, nbytes in places
    ]
