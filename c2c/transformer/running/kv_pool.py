"""KV pool of a device's models: two flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.hardware import memory_bytes
from c2c.models import ModelSpec
from c2c.ranges import Count, check_value
from c2c.transformer.executables import Executables
from c2c.transformer.layers.cache import cached_heads, new_pool
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages

__all__ = [
    "KvPool",
    "Lease",
    "block_elements",
    "check_room",
    "superblock_elements",
    "superblocks_for",
]

_BLOCKS_A_SUPERBLOCK = 4  # of the largest model: at most a fifth is lost to what does not fit


def block_elements(spec: ModelSpec) -> int:
    """Return key and value elements of 64 positions in all layers."""
    return spec.layers * _page_elements(spec)


def _page_elements(spec: ModelSpec) -> int:
    return PAGE_TOKENS * math.prod(cached_heads(spec))


def superblock_elements(specs: Iterable[ModelSpec], *, blocks: int = _BLOCKS_A_SUPERBLOCK) -> int:
    """Return a superblock size for all these models' pages."""
    models = list(specs)
    step = math.lcm(*map(_page_elements, models))
    return -(-blocks * max(map(block_elements, models)) // step) * step


def superblocks_for(blocks: int) -> int:
    """Return the superblocks for these blocks of a model.

    >>> superblocks_for(9)
    3
    """
    return -(-blocks // _BLOCKS_A_SUPERBLOCK)


def check_room(nbytes: int, field: str = "cache", *, device: Any = None) -> None:
    """Check a device's memory for a cache."""
    device = jax.devices()[0] if device is None else device
    stats = device.memory_stats()  # None on a CPU
    most = int((stats or {}).get("bytes_limit") or memory_bytes())
    if nbytes > most:
        raise SettingError(
            field, f"{nbytes / 1e9:.1f} GB", f"at most the {most / 1e9:.1f} GB of memory"
        )


# A block holds 64 positions of one sequence in all layers of its model (or in fewer, by its lease),
# so models with different layers and heads share the arrays. A superblock belongs to one model at a
# time and returns to the pool when its last block is freed.
class KvPool:
    """Key and value arrays, and their free superblocks.

    Attributes:
      kept: lease and first page of kept blocks by key, least used first.
    """

    def __init__(
        self,
        superblocks: int,
        superblock: int,
        *,
        dtype: Any,
        executables: Executables | None = None,
        device: Any = None,
    ) -> None:
        """Allocate the arrays.

        Args:
          superblock: key elements, and value elements; see `superblock_elements`.
        """
        check_value(superblocks, Count, "pool.superblocks")
        self.device = jax.devices()[0] if device is None else device
        check_room(2 * superblocks * superblock * np.dtype(dtype).itemsize, device=self.device)
        self.arrays = new_pool(
            superblocks * superblock, dtype=dtype, executables=executables, device=self.device
        )
        self.superblock = superblock
        self.superblocks = superblocks
        self.dtype = np.dtype(dtype)
        self.free = list(range(superblocks))[::-1]  # allocated from the end
        self.kept: dict[int, tuple[Lease, int]] = {}

    @classmethod
    def for_one(
        cls,
        spec: ModelSpec,
        blocks: int,
        *,
        dtype: Any,
        executables: Executables | None = None,
        device: Any = None,
    ) -> KvPool:
        """Return a pool with blocks of one model."""
        size = block_elements(spec)
        return cls(blocks, size, dtype=dtype, executables=executables, device=device)

    @property
    def nbytes(self) -> int:
        """Total bytes of keys and values."""
        return int(2 * self.superblocks * self.superblock * self.dtype.itemsize)

    def lease(self, spec: ModelSpec, *, block_layers: int | None = None, reserve: int = 0) -> Lease:
        """Return a new lease for a model's blocks.

        Args:
          block_layers: by default all; 1: layers with own blocks, on any devices.
          reserve: superblocks never taken.

        Raises:
          SettingError: indivisible layers, or a reserve above the pool.
        """
        layers = spec.layers if block_layers is None else block_layers
        return Lease(self, spec, layers, reserve)

    def keep(self, key: int, lease: Lease, first: int) -> None:
        """Keep a lease's block until it is forgotten."""
        lease.share(first)
        self.kept[key] = lease, first

    def forget(self, keys: Iterable[int]) -> None:
        """Stop keeping blocks; unused ones become free."""
        for lease, first in [self.kept.pop(key) for key in keys if key in self.kept]:
            lease.give([first])

    def make_room(self, lease: Lease, count: int) -> None:
        """Evict unused kept blocks, least recently used first, for a lease."""
        for key, (owner, first) in list(self.kept.items()):
            if lease.available >= count:
                return
            if not owner.is_shared(first):
                self.forget([key])


class Lease:
    """A model's blocks; an id is the first page."""

    def __init__(self, pool: KvPool, spec: ModelSpec, block_layers: int, reserve: int) -> None:
        if block_layers < 1 or spec.layers % block_layers:
            raise SettingError(
                "block_layers", block_layers, f"a divisor of the model's {spec.layers} layers"
            )
        if not 0 <= reserve <= pool.superblocks:
            allowed = f"from 0 to the {pool.superblocks} superblocks of the pool"
            raise SettingError("reserve", reserve, allowed)
        page = _page_elements(spec)
        if pool.superblock % page:
            raise ValueError(f"superblocks of {pool.superblock} elements do not divide into {page}")
        self._pool = pool
        self._pages = pool.superblock // page  # per superblock
        self._layers = block_layers
        self._blocks = self._pages // block_layers
        self._most = pool.superblocks - reserve
        self._open: dict[int, list[int]] = {}  # free blocks by superblock
        self._more: dict[int, int] = {}  # further users by block

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        mine = sum(map(len, self._open.values()))
        return mine + min(len(self._pool.free), self._most - len(self._open)) * self._blocks

    @property
    def most(self) -> int:
        """Blocks that a lone model could take."""
        return self._most * self._blocks

    @property
    def held(self) -> int:
        """Blocks of sequences, and kept blocks."""
        return sum(self._blocks - len(free) for free in self._open.values())

    def take(self, count: int, sequence: object) -> list[int]:
        """Allocate blocks; return their first pages.

        Raises:
          OutOfPages: too few; nothing was allocated.
        """
        if count > self.available:
            raise OutOfPages(str(sequence), count, self.available)
        taken: list[int] = []
        while len(taken) < count:
            free = next((blocks for blocks in self._open.values() if blocks), None)
            if free is None:
                number = self._pool.free.pop()
                first = number * self._pages
                free = [first + j * self._layers for j in range(self._blocks)][::-1]
                self._open[number] = free
            taken.append(free.pop())
        return taken

    def share(self, first: int) -> None:
        """Count one more user of an allocated block."""
        self._more[first] = self._more.get(first, 0) + 1

    def is_shared(self, first: int) -> bool:
        """Return whether a block has several users."""
        return first in self._more

    def give(self, blocks: Iterable[int]) -> None:
        """Release blocks by a user each; empty superblocks return."""
        for first in blocks:
            if first in self._more:
                self._more[first] -= 1
                if not self._more[first]:
                    del self._more[first]
                continue
            number = first // self._pages
            free = self._open[number]
            free.append(first)
            if len(free) == self._blocks:
                del self._open[number]
                self._pool.free.append(number)
