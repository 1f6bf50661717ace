"""Operations that change a model's placement."""

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
      kind: replicate; migrate; evict (KV moves to another copy).
      with_kv: whether KV moves too.
    """

    kind: Literal["replicate", "migrate", "evict"]
    layers: tuple[int, ...] = ()
    source: int = 0
    device: int = 0
    module: str = "layer"
    with_kv: bool = False


def operations_between(before: Placement, after: Placement) -> tuple[Operation, ...]:
    """Return the operations between two placements.

    Migrations, which free memory, are first, evictions last.
    """
    layers_of: dict[tuple[str, int, int], list[int]] = {}
    for layer, (old, new) in enumerate(zip(before.copies, after.copies, strict=True)):
        gone = [d for d in old if d not in new]
        come = [d for d in new if d not in old]
        moved = min(len(gone), len(come))
        for source, device in zip(gone[:moved], come[:moved], strict=True):
            layers_of.setdefault(("migrate", source, device), []).append(layer)
        for device in come[moved:]:
            layers_of.setdefault(("replicate", old[0], device), []).append(layer)
        for source in gone[moved:]:
            layers_of.setdefault(("evict", source, new[0]), []).append(layer)
    return tuple(_grouped(layers_of))


def _grouped(moves: dict[tuple[str, int, int], list[int]]) -> Iterator[Operation]:
    kinds: tuple[Literal["migrate", "replicate", "evict"], ...] = ("migrate", "replicate", "evict")
    for kind in kinds:
        for (verb, source, device), layers in sorted(moves.items()):
            if verb == kind:
                yield Operation(
                    kind=kind, layers=tuple(layers), source=source, device=device,
                    with_kv=kind != "replicate",
                )  # fmt: skip
