"""Algorithm 2: migrate modules, evict copies, lower the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from c2c.ranges import Count, check_value
from c2c.systems.cocoserve.operations import Operation
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.speedup import Estimate

__all__ = ["Cause", "Relief", "scale_down"]

Cause = Literal["any", "memory", "load"]

_MODULES: Final[Mapping[Cause, tuple[str, ...]]] = {
    "any": ("layer",),
    "memory": ("layer", "kv"),
    "load": ("attention", "feed_forward"),
}
_WITH_KV: Final = ("layer", "kv", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Result of Algorithm 2.

    Attributes:
      operations: those that were run, in order.
    """

    placement: Placement
    batch: int
    operations: tuple[Operation, ...]

    @property
    def caps(self) -> tuple[int, ...]:
        """Batches that were tried."""
        return tuple(o.rows for o in self.operations if o.kind == "cap")


def scale_down(
    placement: Placement,
    batch: int,
    is_violating: Callable[[Placement, int], bool],
    *,
    free_bytes: Mapping[int, float],
    sizes: Mapping[str, float],
    estimate: Estimate,
    source: int | None = None,
    batch_step: int = 5,
    cause: Cause = "any",
    undo: bool = False,
    is_printed: bool = False,
) -> Relief:
    """Return the result of Algorithm 2, repaired or as printed."""
    check_value(cause, Cause, "cause")
    check_value(batch_step, Count, "batch_step")
    here = placement.first if source is None else source
    done: list[Operation] = []
    result, free = placement, dict(free_bytes)

    def ended(rows: int = batch) -> Relief:
        return Relief(placement=result, batch=rows, operations=tuple(done))

    if not is_printed and not is_violating(result, batch):
        return ended()
    for module in _MODULES[cause]:
        for layer in reversed(range(placement.layers)):
            device = _destination(result, layer, here, free, sizes[module])
            if device is None:
                continue
            moved = result.migrated([layer], here, device, module)
            helped = not is_violating(result if is_printed else moved, batch)
            if undo and not helped:
                continue
            done.append(_migration(layer, here, device, module))
            free[device] -= sizes[module]
            result = result if is_printed else moved
            if helped:
                return ended()
    for layer in _evictees(result, here, estimate):
        result = result.evicted([layer], here)
        home = result.copies[layer][0]
        done.append(
            Operation(kind="evict", layers=(layer,), source=here, device=home, with_kv=True)
        )
        if not is_violating(result, batch):
            return ended()
    rows = batch
    while rows >= (1 if is_printed else 2) and is_violating(
        placement if is_printed else result, rows
    ):
        fewer = rows - batch_step if is_printed else max(1, rows - batch_step)
        done += [Operation(kind="cap", rows=fewer), Operation(kind="offload", module="kv")]
        if is_printed and not is_violating(result, fewer):
            break
        rows = fewer
    result = placement if is_printed else result
    return ended(rows)


def _migration(layer: int, source: int, device: int, module: str) -> Operation:
    return Operation(
        kind="migrate", layers=(layer,), source=source, device=device, module=module,
        with_kv=module in _WITH_KV,
    )  # fmt: skip


def _destination(
    placement: Placement, layer: int, source: int, free: Mapping[int, float], size: float
) -> int | None:
    if not placement.holds(layer, source):
        return None
    can = [d for d, room in free.items() if room >= size and not placement.holds(layer, d)]
    beside = [i for i in (layer - 1, layer + 1) if 0 <= i < placement.layers]
    joins = {d: any(placement.holds(i, d) for i in beside) for d in can}
    return max(can, key=lambda d: (joins[d], free[d], -d), default=None)


def _evictees(placement: Placement, device: int, estimate: Estimate) -> list[int]:
    copied = [i for i, p in enumerate(placement.counts) if p > 1 and placement.holds(i, device)]
    return sorted(copied, key=lambda i: (-estimate.of(placement.evicted([i], device)), i))
