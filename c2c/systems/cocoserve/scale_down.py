"""Algorithm 2: migrate modules, evict copies, lower the batch until a device meets its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from c2c.errors import SettingError, unknown_name
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
    """The outcome of Algorithm 2.

    Attributes:
      placement: at its end.
      batch: rows of a step from then on.
      operations: that it ran, in order.
    """

    placement: Placement
    batch: int
    operations: tuple[Operation, ...]

    @property
    def caps(self) -> tuple[int, ...]:
        """Batches that it tried."""
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
    """Return what Algorithm 2 does.

    As printed, a migration does not change P', the loop over the batch tests P, lowers the batch
    below 1, drops the batch that ended the violation, and P is returned. Repaired, P' follows every
    operation, the batch is at least 1 and the last one is kept, and P' is returned. The device g of
    phase 2 is unbound in print; it is the source here.

    Phase 1 moves modules of the last layers first, to a device that holds a neighbour of the layer,
    else to the one with the most memory. Phase 2 evicts first what adds least to the speedup.

    Args:
      placement: P.
      batch: rows of a step.
      is_violating: whether a placement with a batch misses targets by more than theta, or runs out
        of memory.
      free_bytes: of each device, for modules that go there.
      sizes: bytes of the modules "layer", "kv", "attention" and "feed_forward" of a layer, with
        their KV.
      estimate: of the speedup, for the order of evictions.
      source: device that violates; None: the model's first.
      batch_step: rows that each round of phase 3 takes away.
      cause: of the violation; memory moves layers with KV, then KV alone; load moves halves.
      undo: whether a migration that leaves the violation is taken back.
      is_printed: as printed, not repaired.
    """
    if cause not in get_args(Cause):
        raise unknown_name("cause", cause, get_args(Cause))
    if batch_step < 1:
        raise SettingError("batch_step", batch_step, "a whole number above 0")
    here = placement.first if source is None else source
    done: list[Operation] = []
    made, free = placement, dict(free_bytes)

    def ended(rows: int = batch) -> Relief:
        return Relief(placement=made, batch=rows, operations=tuple(done))

    if not is_printed and not is_violating(made, batch):
        return ended()
    for module in _MODULES[cause]:
        for layer in reversed(range(placement.layers)):
            device = _destination(made, layer, here, free, sizes[module])
            if device is None:
                continue
            moved = made.migrated([layer], here, device, module)
            helped = not is_violating(made if is_printed else moved, batch)
            if undo and not helped:
                continue
            done.append(_migration(layer, here, device, module))
            free[device] -= sizes[module]
            made = made if is_printed else moved
            if helped:
                return ended()
    for layer in _evictees(made, here, estimate):
        made = made.evicted([layer], here)
        home = made.copies[layer][0]
        done.append(
            Operation(kind="evict", layers=(layer,), source=here, device=home, with_kv=True)
        )
        if not is_violating(made, batch):
            return ended()
    rows = batch
    while rows >= (1 if is_printed else 2) and is_violating(
        placement if is_printed else made, rows
    ):
        fewer = rows - batch_step if is_printed else max(1, rows - batch_step)
        done += [Operation(kind="cap", rows=fewer), Operation(kind="offload", module="kv")]
        if is_printed and not is_violating(made, fewer):
            break
        rows = fewer
    made = placement if is_printed else made
    return ended(rows)


def _migration(layer: int, source: int, device: int, module: str) -> Operation:
    return Operation(
        kind="migrate", layers=(layer,), source=source, device=device, module=module,
        with_kv=module in _WITH_KV,
    )  # fmt: skip


def _destination(
    placement: Placement, layer: int, source: int, free: Mapping[int, float], size: float
) -> int | None:
    """Return the device that a module of a layer goes to; None: none can."""
    if not placement.holds(layer, source):
        return None
    can = [d for d, room in free.items() if room >= size and not placement.holds(layer, d)]
    beside = [i for i in (layer - 1, layer + 1) if 0 <= i < placement.layers]
    joins = {d: any(placement.holds(i, d) for i in beside) for d in can}
    return max(can, key=lambda d: (joins[d], free[d], -d), default=None)


def _evictees(placement: Placement, device: int, estimate: Estimate) -> list[int]:
    """Return layers with another copy, those first whose copy here adds least to the speedup."""
    copied = [i for i, p in enumerate(placement.counts) if p > 1 and placement.holds(i, device)]
    return sorted(copied, key=lambda i: (-estimate.of(placement.evicted([i], device)), i))
