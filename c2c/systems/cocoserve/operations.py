"""Operations that take a model from one placement to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from c2c.systems.cocoserve.placement import Placement

__all__ = ["Operation", "operations_between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation on a served model.

    Attributes:
      kind: replicate copies, migrate moves, evict removes a copy and brings the KV of its sequences
        home, cap lowers the rows of a step, offload sends the KV of rows above it to host memory.
      layers: of the model, in order.
      source: device that they are read from, or evicted from.
      device: that they go to, or the KV of evicted copies.
      module: of each layer; see `c2c.systems.cocoserve.modules`.
      with_kv: whether the KV of the layers moves along.
      rows: of a step from now on; of a cap.
    """

    kind: Literal["replicate", "migrate", "evict", "cap", "offload"]
    layers: tuple[int, ...] = ()
    source: int = 0
    device: int = 0
    module: str = "layer"
    with_kv: bool = False
    rows: int = 0


def operations_between(before: Placement, after: Placement) -> tuple[Operation, ...]:
    """Return what changes a placement of layers into another, a run of operations.

    A layer that has lost a copy here and got one there has migrated. Layers of one kind and
    two devices are one operation. Migrations are first, as they free memory, evictions last.
    """
    found: dict[tuple[str, int, int], list[int]] = {}
    for layer, (old, new) in enumerate(zip(before.copies, after.copies, strict=True)):
        gone = [d for d in old if d not in new]
        come = [d for d in new if d not in old]
        moved = min(len(gone), len(come))
        for source, device in zip(gone[:moved], come[:moved], strict=True):
            found.setdefault(("migrate", source, device), []).append(layer)
        for device in come[moved:]:
            found.setdefault(("replicate", old[0], device), []).append(layer)
        for source in gone[moved:]:
            found.setdefault(("evict", source, new[0]), []).append(layer)
    return tuple(_grouped(found))


def _grouped(found: dict[tuple[str, int, int], list[int]]) -> Iterator[Operation]:
    kinds: tuple[Literal["migrate", "replicate", "evict"], ...] = ("migrate", "replicate", "evict")
    for kind in kinds:
        for (each, source, device), layers in sorted(found.items()):
            if each == kind:
                yield Operation(
                    kind=kind, layers=tuple(layers), source=source, device=device,
                    with_kv=kind != "replicate",
                )  # fmt: skip
