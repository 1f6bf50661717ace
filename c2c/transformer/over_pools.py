"""Base of executors over several devices, a pool each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from c2c.models import ModelSpec
from c2c.transformer.executables import Executables, Stage, in_host_memory
from c2c.transformer.layers.cache import Rows, rows_of
from c2c.transformer.layers.forward import BEGIN, end, nameless
from c2c.transformer.layers.layer import window_of
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.pages import OutOfPages
from c2c.transformer.layers.params import Params
from c2c.transformer.layers.rope import angles
from c2c.transformer.running.executor import SharesNothing, Stored, blocks_for, bound
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.stays import Laid, Stay

__all__ = ["STAND", "Kept", "OverPools", "Path"]

Path = tuple[int, ...]
"""For each layer, the number of the device with its keys and values."""


@dataclass(slots=True)
class Kept:
    """Devices and blocks of a request's KV.

    Attributes:
      path: [layer], device index.
      blocks: int32 [layers, blocks], pages in the device's pool.
    """

    path: Path
    blocks: np.ndarray


# A layer's keys and values of a request are on the device that computes its attention. A step
# begins and ends on the first device, which has embeddings and the head.
class OverPools(SharesNothing, ABC):
    """A model over the devices of several pools."""

    ends_apart = True

    def __init__(
        self, params: Params, spec: ModelSpec, linear: Linear, pools: Sequence[KvPool],
        *, executables: Executables | None,
    ) -> None:  # fmt: skip
        """Lease blocks of each pool; nothing is computed or copied.

        Args:
          params: on the first pool's device with an array per layer, or in host memory.
        """
        first = pools[0].device
        self.spec, self.linear, self.device, self.pools = spec, linear, first, tuple(pools)
        self.nameless = nameless(spec)
        self.executables = None if executables is None else executables.on(first)
        self.stage = tuple(
            bound(None if executables is None else executables.on(pool.device)) for pool in pools
        )
        self.leases = tuple(pool.lease(spec, block_layers=1) for pool in pools)
        self.kept: dict[Stay, Kept] = {}
        heads = {name: array for name, array in params.projections.items() if name == "head"}
        self.ends = replace(params, layers={}, projections=heads)
        self.kinds = [sparse for sparse, _ in feed_forward_places(spec)]
        windows = [window_of(spec, n) for n in range(spec.layers)]
        self.windows = [
            np.int32(array) if spec.partial_window_layers else None for array in windows
        ]

    @abstractmethod
    def path_of(self, stay: Stay) -> Path:
        """Return a new request's path."""

    def put(self, device: int, leaf: Any) -> Any:
        """Return a layer's array on a device; host arrays stay."""
        there: Any = self.pools[device].device
        if in_host_memory(leaf):
            there = SingleDeviceSharding(there, memory_kind="pinned_host")
        return jax.device_put(leaf, there)

    @property
    def available(self) -> int:
        """A layer's blocks free on the fullest device."""
        return min(lease.available for lease in self.leases)

    def keep(self, stay: Stay) -> Kept:
        """Return a request's place for keys and values."""
        if stay not in self.kept:
            empty = np.zeros((self.spec.layers, 0), np.int32)
            self.kept[stay] = Kept(self.path_of(stay), empty)
        return self.kept[stay]

    def lacks(self, stored: Stored) -> int:
        """Return the most blocks that requests lack on a device."""
        needed: Counter[int] = Counter()
        for stay, positions in stored:
            cache = self.keep(stay)
            count = max(0, blocks_for(positions) - cache.blocks.shape[1])
            for device, layers in Counter(cache.path).items():
                needed[device] += count * layers
        return max(
            (max(0, count - self.leases[d].available) for d, count in needed.items()), default=0
        )

    def grow(self, stored: Stored) -> None:
        """Allocate the blocks that requests need.

        Raises:
          OutOfPages: too few blocks are free.
        """
        for stay, positions in stored:
            cache = self.keep(stay)
            count = blocks_for(positions) - cache.blocks.shape[1]
            if count > 0:
                cache.blocks = np.hstack([cache.blocks, self.take(cache.path, count, stay)])

    def take(self, devices: Sequence[int], count: int, stay: Stay) -> np.ndarray:
        """Allocate blocks on each device: int32 [devices, count].

        Raises:
          OutOfPages: too few; nothing was allocated.
        """
        for device, times in Counter(devices).items():
            if (free := self.leases[device].available) < count * times:
                raise OutOfPages(str(stay.request), count * times, free)
        taken = [self.leases[device].take(count, stay.request) for device in devices]
        return np.array(taken, np.int32).reshape(len(devices), count)

    def give(self, stay: Stay) -> None:
        """Free a request's blocks."""
        cache = self.kept.pop(stay, None)
        if cache is not None:
            for device, blocks in zip(cache.path, cache.blocks, strict=True):
                self.leases[device].give(blocks.tolist())

    def tables(self, laid: Laid) -> np.ndarray:
        """Return the blocks of each layer and row: int32 [layers, rows, width], -1: none."""
        tables = np.full((self.spec.layers, len(laid.rows), laid.width), -1, np.int32)
        for row, stay in enumerate(laid.rows):
            if stay is not None:
                blocks = self.kept[stay].blocks
                tables[:, row, : blocks.shape[1]] = blocks
        return tables

    def begin(self, laid: Laid, tokens: Any, *, ahead: bool = False) -> tuple[Any, Rows, Any]:
        """Return embedded tokens, rows, cosine and sine on the first device; `ahead`: shapes."""
        result: tuple[Any, Rows, Any] = self.on(0, ahead=ahead)(BEGIN)(
            self.ends.embed, tokens, laid.positions, self.linear, count=len(laid.rows),
            decode_rows=laid.decode_rows, spec=self.nameless, dtype=str(self.ends.dtype),
        )  # fmt: skip
        return result

    def on(self, device: int, *, ahead: bool = False) -> Any:
        """Return a device's compiler of stages; `ahead`: only that."""
        if not ahead:
            return self.stage[device]
        assert self.executables is not None
        return self.executables.on(self.pools[device].device).bind_ahead

    def stand(
        self, device: int, positions: np.ndarray, count: int, decode_rows: int, *,
        ahead: bool = False,
    ) -> Any:  # fmt: skip
        """Return rows, cosine and sine on a device."""
        return self.on(device, ahead=ahead)(STAND)(
            positions, count=count, decode_rows=decode_rows, spec=self.nameless
        )

    def end(self, x: Any, logit_indices: Any, *, ahead: bool = False) -> Any:
        """Return logits from an output of `compute` without them; `ahead`: only their shape."""
        return end(
            self.ends, x, logit_indices, self.spec, linear=self.linear,
            executables=self.executables, ahead=ahead,
        )  # fmt: skip


def _stand(
    positions: Any, count: int, decode_rows: int, spec: ModelSpec
) -> tuple[Rows, tuple[jax.Array, jax.Array]]:
    rows = rows_of(positions, count, decode_rows)
    return rows, angles(jnp.maximum(positions, 0), rows.lengths, spec)


STAND = Stage(name="stand", function=_stand, static=("count", "decode_rows", "spec"))
