"""One KV cache for all models of a device: two flat arrays, handed out in blocks.

A block holds 64 positions of one sequence in all layers of its model (a lease may say in fewer), so
models of unlike layers and heads share the arrays. Superblocks are what models take from each
other: each belongs to one model at a time and goes back when its last block is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.hardware import memory_bytes
from c2c.models import ModelSpec
from c2c.transformer.cache import new_pool
from c2c.transformer.executables import Executables
from c2c.transformer.pages import PAGE_TOKENS, OutOfPages

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
    """Return the keys of 64 positions in all layers; there are as many values."""
    return spec.layers * PAGE_TOKENS * spec.kv_heads * spec.head_dim


def superblock_elements(specs: Iterable[ModelSpec], *, blocks: int = _BLOCKS_A_SUPERBLOCK) -> int:
    """Return the size of a superblock that all these models can divide into their pages."""
    known = list(specs)
    step = math.lcm(*(PAGE_TOKENS * spec.kv_heads * spec.head_dim for spec in known))
    return -(-blocks * max(map(block_elements, known)) // step) * step


def superblocks_for(blocks: int) -> int:
    """Return superblocks that hold so many blocks of any one model.

    >>> superblocks_for(9)
    3
    """
    return -(-blocks // _BLOCKS_A_SUPERBLOCK)


def check_room(nbytes: int, field: str = "cache", *, device: Any = None) -> None:
    """Return if memory of a device, jax's first by default, has room for a cache of so many bytes.

    Raises:
      SettingError: it has not.
    """
    device = jax.devices()[0] if device is None else device
    stats = device.memory_stats()  # None on a CPU
    most = int((stats or {}).get("bytes_limit") or memory_bytes())
    if nbytes > most:
        raise SettingError(
            field, f"{nbytes / 1e9:.1f} GB", f"at most the {most / 1e9:.1f} GB of memory"
        )


class KvPool:
    """The arrays, and which superblocks are free.

    Attributes:
      kept: by key, the lease and first page of blocks that requests to come may begin with. Who
        keeps them says when they are to be forgotten; the least used go before a step lacks blocks.
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
        """Take the memory.

        Args:
          superblocks: how many.
          superblock: elements of each, of keys and of values; see `superblock_elements`.
          dtype: of keys and values.
          executables: where what fills it with zeros comes from; by default jax compiles it.
          device: jax device; by default the first.
        """
        if superblocks < 1:
            raise SettingError("pool.superblocks", superblocks, "a whole number above 0")
        self.device = jax.devices()[0] if device is None else device
        check_room(2 * superblocks * superblock * np.dtype(dtype).itemsize, device=self.device)
        self.arrays = new_pool(
            superblocks * superblock, dtype=dtype, executables=executables, device=self.device
        )
        self.superblock = superblock
        self.superblocks = superblocks
        self.dtype = np.dtype(dtype)
        self.free = list(range(superblocks))[::-1]  # taken from the end
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
        """Return a pool of so many blocks of one model."""
        size = block_elements(spec)
        return cls(blocks, size, dtype=dtype, executables=executables, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return int(2 * self.superblocks * self.superblock * self.dtype.itemsize)

    def lease(self, spec: ModelSpec, *, block_layers: int | None = None, reserve: int = 0) -> Lease:
        """Return what a model takes blocks by.

        Args:
          spec: the model.
          block_layers: layers of a block; by default all. With 1 each layer's keys and values are
            may be on a device of its own; a sequence then has a list of blocks for each layer.
          reserve: superblocks that the lease never takes, so that other models grow into them.

        Raises:
          SettingError: the layers do not divide into such blocks, or the reserve is no part of the
            pool.
        """
        layers = spec.layers if block_layers is None else block_layers
        return Lease(self, spec, layers, reserve)

    def keep(self, key: int, lease: Lease, first: int) -> None:
        """Keep a block of a lease, whoever else uses it, until it is forgotten."""
        lease.share(first)
        self.kept[key] = lease, first

    def forget(self, keys: Iterable[int]) -> None:
        """Keep blocks no longer; those that nobody uses are free."""
        for lease, first in [self.kept.pop(key) for key in keys if key in self.kept]:
            lease.give([first])

    def make_room(self, lease: Lease, count: int) -> None:
        """Forget blocks that nobody uses, the least used first, until a lease could take so many.

        Whoever keeps them counts bytes, and superblocks with a few blocks each leave others none.
        """
        for key, (owner, first) in list(self.kept.items()):
            if lease.available >= count:
                return
            if not owner.is_shared(first):
                self.forget([key])


class Lease:
    """One model's blocks; a block is known by its first page, in pages of the model's size."""

    def __init__(self, pool: KvPool, spec: ModelSpec, block_layers: int, reserve: int) -> None:
        if block_layers < 1 or spec.layers % block_layers:
            raise SettingError(
                "block_layers", block_layers, f"a divisor of the model's {spec.layers} layers"
            )
        if not 0 <= reserve <= pool.superblocks:
            allowed = f"from 0 to the {pool.superblocks} superblocks of the pool"
            raise SettingError("reserve", reserve, allowed)
        page = PAGE_TOKENS * spec.kv_heads * spec.head_dim
        if pool.superblock % page:
            raise ValueError(f"superblocks of {pool.superblock} elements: pages of {page} do not")
        self._pool = pool
        self._pages = pool.superblock // page  # of a superblock
        self._layers = block_layers
        self._blocks = self._pages // block_layers
        self._most = pool.superblocks - reserve
        self._open: dict[int, list[int]] = {}  # superblock: its blocks that nobody holds
        self._more: dict[int, int] = {}  # by block: its users beyond the first

    @property
    def available(self) -> int:
        """Blocks that could be taken now."""
        mine = sum(map(len, self._open.values()))
        return mine + min(len(self._pool.free), self._most - len(self._open)) * self._blocks

    @property
    def most(self) -> int:
        """Blocks that could be taken if no other model had any."""
        return self._most * self._blocks

    @property
    def held(self) -> int:
        """Blocks of sequences, and those that are kept."""
        return sum(self._blocks - len(free) for free in self._open.values())

    def take(self, count: int, sequence: object) -> list[int]:
        """Return the first pages of so many blocks.

        Raises:
          OutOfPages: there are not so many; nothing was taken.
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
        """Count one more user of a block that somebody holds."""
        self._more[first] = self._more.get(first, 0) + 1

    def is_shared(self, first: int) -> bool:
        """Return whether a block has several users."""
        return first in self._more

    def give(self, blocks: Iterable[int]) -> None:
        """Take back blocks from one user each; superblocks without any go back to the pool."""
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
