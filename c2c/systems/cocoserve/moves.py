"""Operations on a model as it serves: the spread after one, and the paths of requests by then.

The paper's operations are on placements; a served model also has requests, whose keys and values go
where their layers are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from c2c.errors import SettingError
from c2c.systems.cocoserve.modules import LAYER
from c2c.systems.cocoserve.operations import Operation
from c2c.systems.cocoserve.placement import Placement
from c2c.transformer.spread import Path, Spread

__all__ = ["after"]


def after(
    operation: Operation,
    before: Spread,
    paths: Mapping[int, Path],
    *,
    requests: Collection[int] = (),
) -> tuple[Spread, dict[int, Path]]:
    """Return the spread after an operation, and the paths of the requests that are here.

    Args:
      operation: on whole layers: replicate, migrate or evict.
      before: the spread.
      paths: of the requests that are here, by number.
      requests: those that a new copy takes over; with `migrate` between copies of one layer
        (`with_kv` and the device holds the layers), those that move.

    Raises:
      SettingError: an operation of another kind or on parts of layers, or one that the spread does
        not allow: see `Placement`.
    """
    if operation.kind not in ("replicate", "migrate", "evict"):
        raise SettingError("operation", operation.kind, "replicate, migrate or evict")
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
    """Return a path with layers on a device, or only those that were on the source."""
    changed = list(path)
    for number in layers:
        if source is None or changed[number] == source:
            changed[number] = device
    return tuple(changed)


def _few(ways: Iterable[Path]) -> tuple[Path, ...]:
    """Return the different paths, those of new requests: the first and the last three."""
    found = list(dict.fromkeys(ways))
    return tuple(found if len(found) <= 4 else [found[0], *found[-3:]])
