"""Layout changes of a serving spread model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.ranges import Count, check_value
from c2c.systems.cocoserve.live.spread import OverDevices, Spread, layer_bytes
from c2c.transformer.executables import Stage, in_host_memory
from c2c.transformer.layers.cache import Pooled, cached_heads
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.over_pools import Path
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.stays import Stay

__all__ = ["PIECE_BYTES", "Moved", "Relayout", "ready_to_move"]

PIECE_BYTES: Final = 64 << 20
_POSITIONS: Final = 1024  # positions of one layer in one copying call


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Totals of a layout change.

    Attributes:
      kv_bytes: with repeats.
      requests: requests whose KV moved.
    """

    weight_bytes: int
    kv_bytes: int
    pieces: int
    requests: int


@dataclass(slots=True)
class _Going:
    """A moving request: new path, new blocks, and copied positions."""

    path: Path
    blocks: np.ndarray  # int32 [layers, blocks]; of layers that stay those that it has
    done: np.ndarray  # int64 [layers]


class Relayout:
    """A layout change, from its creation to `Moved`, `cancel` or an error.

    Source: CoCoServe, section 3.1.
    """

    def __init__(
        self,
        over: OverDevices,
        target: Spread,
        homes: Mapping[int, Path] | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """Check that devices have room; nothing is copied.

        Args:
          homes: new paths by request id; by default as few layers move as possible.
          piece_bytes: copied at a step boundary.

        Raises:
          SettingError: another model, other devices, a change under way, or no room.
        """
        layers, devices = over.spec.layers, len(over.pools)
        if len(target.copies) != layers:
            raise SettingError("spread.copies", len(target.copies), f"the model's {layers} layers")
        highest = max(d for holders in target.copies for d in holders)
        if highest >= devices:
            raise SettingError("spread.copies", highest, f"a device from 0 to {devices - 1}")
        for request, path in (homes or {}).items():
            if not target.has(path):
                raise SettingError(
                    f"homes[{request}]", list(path), "a path over devices that hold its layers"
                )
        if over.on_give is not None:
            raise SettingError("spread", "another change", "one change at a time")
        check_value(piece_bytes, Count, "piece_bytes")
        self._over, self._target, self._homes = over, target, dict(homes or {})
        self._piece_bytes = piece_bytes
        self._going: dict[Stay, _Going] = {}
        self._arrays: dict[tuple[int, int], list[Any]] = {}  # copied arrays of layers under way
        self._missing = [
            (number, d) for number, holders in enumerate(target.copies) for d in holders
            if (number, d) not in over.weights
        ]  # fmt: skip
        self._left = 0  # bytes that were to be copied after the last boundary
        self._weights, self._kv, self._pieces = 0, 0, 0
        self._check_bytes()
        self._check_blocks()
        over.on_give = self._gone

    def _check_bytes(self) -> None:
        over, added = self._over, Counter[int]()
        for number, device in self._missing:
            added[device] += layer_bytes(over.source(number, device))
        for device, needed in added.items() if over.capacity_bytes is not None else ():
            assert over.capacity_bytes is not None
            free = over.capacity_bytes[device] - over.held_bytes(device)
            if needed > free:
                raise SettingError(
                    f"spread.copies on device {device}", f"{needed} bytes",
                    f"at most {free:.0f} free bytes",
                )  # fmt: skip

    def _check_blocks(self) -> None:
        over, needed = self._over, Counter[int]()
        for stay, cache in over.kept.items():
            for old, new in zip(cache.path, self._path_of(stay), strict=True):
                needed[new] += cache.blocks.shape[1] * (old != new)
        for device, count in needed.items():
            free = over.leases[device].available
            if count > free:
                raise SettingError(
                    f"homes on device {device}", f"{count} blocks", f"at most {free} free blocks"
                )

    def _path_of(self, stay: Stay) -> Path:
        old = self._over.kept[stay].path
        if stay.request in self._homes:
            return self._homes[stay.request]
        if self._target.has(old):
            return old
        return min(
            self._target.paths, key=lambda p: sum(a != b for a, b in zip(p, old, strict=True))
        )

    def advance(self) -> Moved | None:
        """Copy the next piece between steps; return totals after the switch, else None.

        Raises:
          OutOfPages: the change is undone.
        """
        budget = self._piece_bytes
        copied = self._copy_weights(budget)
        budget -= copied
        if not self._missing:
            try:
                rest_bytes = self._remaining()
            except OutOfPages:
                self.cancel()
                raise
            budget += max(0, rest_bytes - self._left)
            while budget > 0 and rest_bytes > 0:
                size = self._copy_positions()
                budget, rest_bytes, copied = budget - size, rest_bytes - size, copied + size
            self._left = rest_bytes
            if rest_bytes == 0:
                self._pieces += copied > 0
                return self._published()
        self._pieces += copied > 0
        return None

    def cancel(self) -> None:
        """Cancel the change and undo it."""
        for stay in list(self._going):
            self._gone(stay)
        self._arrays.clear()
        self._over.on_give = None

    def _copy_weights(self, budget: int) -> int:
        over, copied = self._over, 0
        while self._missing and copied < budget:
            number, device = key = self._missing[0]
            leaves, tree = jax.tree.flatten(over.source(number, device))
            there = self._arrays.setdefault(key, [])
            leaf = leaves[len(there)]
            there.append(over.put(device, leaf))
            copied += 0 if in_host_memory(leaf) else leaf.nbytes
            if len(there) == len(leaves):
                self._arrays[key] = [jax.tree.unflatten(tree, there)]
                self._missing.pop(0)
        self._weights += copied
        return copied

    def _slot_bytes(self) -> int:
        values = math.prod(cached_heads(self._over.spec))
        return 2 * values * int(self._over.pools[0].dtype.itemsize)

    def _remaining(self) -> int:
        """Return the bytes of positions to copy, blocks allocated."""
        over, rest = self._over, 0
        for stay, cache in over.kept.items():
            path = self._path_of(stay)
            moves = np.array(path) != np.array(cache.path)
            if not moves.any():
                continue
            if stay not in self._going:
                none = np.zeros((len(path), 0), np.int32)
                self._going[stay] = _Going(path, none, np.zeros(len(path), np.int64))
            going, count = self._going[stay], cache.blocks.shape[1]
            have = going.blocks.shape[1]
            if have < count:
                more = cache.blocks[:, have:].copy()
                there = [d for d, is_moved in zip(path, moves, strict=True) if is_moved]
                more[moves] = over.take(there, count - have, stay)
                going.blocks = np.hstack([going.blocks, more])
            going.done[~moves] = stay.written
            rest += int((stay.written - going.done).sum())
        return rest * self._slot_bytes()

    def _copy_positions(self) -> int:
        """Copy positions between two devices, up to a call's size; return bytes."""
        pair, pages, slots, to, total = None, [], [], [], 0
        for stay, going in self._going.items():
            cache = self._over.kept[stay]
            for number in np.flatnonzero(going.done < stay.written):
                ends = cache.path[number], going.path[number]
                if pair not in (None, ends):
                    continue
                pair, first = ends, int(going.done[number])
                past = min(stay.written, first + _POSITIONS - total)
                positions = np.arange(first, past)
                pages.append(cache.blocks[number, positions // PAGE_TOKENS])
                to.append(going.blocks[number, positions // PAGE_TOKENS])
                slots.append(positions % PAGE_TOKENS)
                going.done[number] = past
                total += past - first
                if total == _POSITIONS:
                    break
            if total == _POSITIONS:
                break
        assert pair is not None  # some positions remain
        source, device = pair
        out = np.iinfo(np.int32).max
        padded = [
            np.concatenate([*parts, np.full(_POSITIONS - total, fill)]).astype(np.int32)
            for parts, fill in ((pages, 0), (slots, 0), (to, out))
        ]
        _copy(self._over, source, device, *padded)
        self._kv += total * self._slot_bytes()
        return total * self._slot_bytes()

    def _published(self) -> Moved:
        over = self._over
        for stay, going in self._going.items():
            cache = over.kept[stay]
            for number in np.flatnonzero(np.array(cache.path) != np.array(going.path)):
                over.leases[cache.path[number]].give(cache.blocks[number].tolist())
            over.kept[stay] = replace(cache, path=going.path, blocks=going.blocks)
        pairs = {(n, d) for n, devices in enumerate(self._target.copies) for d in devices}
        layers = {key: layer for key, (layer,) in self._arrays.items()}
        over.weights = {k: v for k, v in (over.weights | layers).items() if k in pairs}
        over.spread, over.on_give = self._target, None
        return Moved(
            weight_bytes=self._weights, kv_bytes=self._kv, pieces=self._pieces,
            requests=len(self._going),
        )  # fmt: skip

    def _gone(self, stay: Stay) -> None:
        going = self._going.pop(stay, None)
        if going is not None:
            cache = self._over.kept[stay]
            for number in np.flatnonzero(np.array(cache.path) != np.array(going.path)):
                self._over.leases[going.path[number]].give(going.blocks[number].tolist())


def ready_to_move(over: OverDevices) -> None:
    """Prepare executables that copy keys and values between devices."""
    index = np.zeros(_POSITIONS, np.int32)
    executables = over.executables
    assert executables is not None
    for pool in over.pools:
        ahead = executables.on(pool.device).bind_ahead
        taken = ahead(_TAKE)(_bare(pool), index, index, spec=over.nameless)
        ahead(_PUT)(_bare(pool), *taken, index, index, spec=over.nameless)


def _copy(over: OverDevices, source: int, device: int, pages: Any, slots: Any, to: Any) -> None:
    pools = over.pools
    taken = over.stage[source](_TAKE)(_bare(pools[source]), pages, slots, spec=over.nameless)
    here = jax.device_put(taken, pools[device].device)
    pools[device].arrays = over.stage[device](_PUT)(
        _bare(pools[device]), *here, to, slots, spec=over.nameless
    )


def _bare(pool: KvPool) -> Pooled:
    return replace(pool.arrays, tables=None)


def _take(pool: Pooled, pages: Any, slots: Any, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    seen = pool.seen_by(spec)
    return seen.k[pages, slots], seen.v[pages, slots]


def _put(pool: Pooled, k: Any, v: Any, to: Any, slots: Any, spec: ModelSpec) -> Pooled:
    seen = pool.seen_by(spec)
    k, v = (plane.at[to, slots].set(new, mode="drop") for plane, new in ((seen.k, k), (seen.v, v)))
    return pool.with_pages(replace(seen, k=k, v=v))


_TAKE = Stage(name="relayout_take", function=_take, static=("spec",))
_PUT = Stage(name="relayout_put", function=_put, donated=(0,), static=("spec",))
