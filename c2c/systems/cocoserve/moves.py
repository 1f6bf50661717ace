"""Effects of operations on a serving model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from c2c.errors import SettingError
from c2c.systems.cocoserve.live.spread import Spread
from c2c.systems.cocoserve.modules import LAYER
from c2c.systems.cocoserve.operations import Operation
from c2c.systems.cocoserve.placement import Placement
from c2c.transformer.over_pools import Path

__all__ = ["after"]


def after(
    operation: Operation,
    before: Spread,
    paths: Mapping[int, Path],
    *,
    requests: Collection[int] = (),
) -> tuple[Spread, dict[int, Path]]:
    """Return the spread after an operation, and requests' paths.

    Args:
      requests: that move to new copies.

    Raises:
      SettingError: parts of layers, or impossible.
    """
    if operation.module != LAYER:
        raise SettingError("operation.module", operation.module, f"{LAYER}: whole layers move live")
    layers, device, source = operation.layers, operation.device, operation.source
    placement = Placement(before.copies)
    is_here = all(device in before.copies[n] for n in layers if n < len(before.copies))
    if operation.kind == "replicate":
        placement = placement.replicated(layers, device)
        goes = {r: _through(p, layers, device) for r, p in paths.items() if r in requests}
        ways = [*before.paths, *(_through(p, layers, device) for p in before.paths)]
    elif operation.kind == "migrate" and is_here and requests:
        goes = {r: _through(p, layers, device) for r, p in paths.items() if r in requests}
        ways = list(before.paths)
    else:
        if operation.kind == "migrate":
            placement = placement.migrated(layers, source, device)
        else:
            placement = placement.evicted(layers, source)
        goes = {r: _through(p, layers, device, source) for r, p in paths.items()}
        ways = [_through(p, layers, device, source) for p in before.paths]
    spread = Spread(placement.copies, _few(ways))
    return spread, {r: goes.get(r, path) for r, path in paths.items()}


def _through(path: Path, layers: Iterable[int], device: int, source: int | None = None) -> Path:
    changed = list(path)
    for number in layers:
        if source is None or changed[number] == source:
            changed[number] = device
    return tuple(changed)


def _few(ways: Iterable[Path]) -> tuple[Path, ...]:
    result = list(dict.fromkeys(ways))
    return tuple(result if len(result) <= 4 else [result[0], *result[-3:]])
