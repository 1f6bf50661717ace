"""Executors: computation of a runner's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from c2c.models import ModelSpec
from c2c.transformer.executables import Executables
from c2c.transformer.layers.forward import end, run
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.layers.params import Params
from c2c.transformer.running.kv_pool import KvPool, Lease
from c2c.transformer.running.stays import Laid, Stay

__all__ = ["Executor", "GaveWay", "OnDevice", "SharesNothing", "Stored", "blocks_for", "bound"]

_jax: Any = jax  # partly untyped

Stored = Sequence[tuple[Stay, int]]
"""Requests, and the positions of each whose keys and values are there after a step."""


class GaveWay(RuntimeError):
    """Requests lost KV on another device; the step had no effect: preempt them."""

    def __init__(self, requests: Sequence[int], why: str) -> None:
        super().__init__(f"{len(requests)} requests are computed again at home: {why}")
        self.requests = tuple(requests)


class Executor(Protocol):
    """Computation of one model's steps.

    Attributes:
      ends_apart: whether `end` may follow `compute`.
    """

    spec: ModelSpec
    device: Any
    executables: Executables | None
    ends_apart: bool

    @property
    def available(self) -> int:
        """Blocks that can be taken on the fullest device."""
        ...

    def lacks(self, stored: Stored) -> int:
        """Return the most blocks that requests lack on a device."""
        ...

    def grow(self, stored: Stored) -> None:
        """Allocate the blocks that requests need."""
        ...

    def give(self, stay: Stay) -> None:
        """Free a request's blocks."""
        ...

    def reuse(self, stay: Stay, most: int) -> int:
        """Attach kept blocks to a prompt; return the count."""
        ...

    def share(self, stay: Stay) -> None:
        """Keep a prompt's blocks for other requests."""
        ...

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted tokens' logits, or the last layer's output.

        Raises:
          GaveWay: requests lost their KV.
        """
        ...

    def end(self, x: Any, logit_indices: Any) -> Any:
        """Return logits from an output of `compute` without them."""
        ...

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Prepare a call shape; return the logits' shape."""
        ...


class SharesNothing:
    """Mixin without prefix sharing."""

    def reuse(self, stay: Stay, most: int) -> int:  # noqa: ARG002
        """Return 0: no blocks are shared."""
        return 0

    def share(self, stay: Stay) -> None:
        """Do nothing: no blocks are kept."""


class OnDevice:
    """A model on its pool's device.

    Attributes:
      poll: callback after each layer and the logits, which are waited for; may replace the pool's
        arrays.
    """

    poll: Callable[[], object] | None = None

    def __init__(
        self,
        params: Params,
        spec: ModelSpec,
        linear: Linear,
        pool: KvPool,
        *,
        executables: Executables | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Lease blocks of a pool; nothing is computed.

        Args:
          pool: shared with the device's other executors.
        """
        self.params, self.spec, self.linear, self.pool = params, spec, linear, pool
        self.lease = pool.lease(spec) if lease is None else lease
        self.device = pool.device
        self.executables = None if executables is None else executables.on(pool.device)
        self.ends_apart = linear.placement.by_layer
        self._blocks: dict[Stay, list[int]] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return self.lease.available

    def lacks(self, stored: Stored) -> int:
        """Return blocks that requests lack, kept ones evicted first."""
        count = sum(n for _, n in self._growth(stored))
        if count > self.lease.available:
            self.pool.make_room(self.lease, count)
        return max(0, count - self.lease.available)

    def grow(self, stored: Stored) -> None:
        """Allocate the blocks that requests need.

        Raises:
          OutOfPages: too few blocks are free.
        """
        for stay, count in self._growth(stored):
            self._blocks.setdefault(stay, []).extend(self.lease.take(count, stay.request))

    def give(self, stay: Stay) -> None:
        """Free a request's blocks."""
        self.lease.give(self._blocks.pop(stay, ()))

    def reuse(self, stay: Stay, most: int) -> int:
        """Attach kept blocks to a prompt; return the shared first blocks."""
        cache, blocks = self.pool.kept, self._blocks.setdefault(stay, [])
        for key in stay.keys[stay.shared : most]:
            if key not in cache:
                break
            cache[key] = cache.pop(key)  # most recently used
            first = cache[key][1]
            self.lease.share(first)
            self.lease.give(blocks[stay.shared :])  # part of the same block, at most
            blocks[stay.shared :] = [first]
            stay.shared += 1
        return stay.shared

    def share(self, stay: Stay) -> None:
        """Keep a prompt's blocks for others; of two copies one."""
        blocks, whole = self._blocks[stay], min(len(stay.keys), stay.filled // PAGE_TOKENS)
        for number in range(stay.shared, whole):
            key = stay.keys[number]
            if key in self.pool.kept:
                self.lease.give([blocks[number]])
                blocks[number] = self.pool.kept[key][1]
                self.lease.share(blocks[number])
            else:
                self.pool.keep(key, self.lease, blocks[number])
        stay.shared = whole

    def compute(
        self, laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True
    ) -> Any:
        """Return the wanted logits, or the last layer's output."""
        result, self.pool.arrays = self._run(
            laid, tokens, logit_indices, self.tables(laid), has_logits=has_logits,
            between=None if self.poll is None else self._between,
        )  # fmt: skip
        if self.poll is not None:
            _jax.block_until_ready(result)
            self.poll()
        return result

    def tables(self, laid: Laid) -> np.ndarray:
        """Return each row's blocks: int32 [rows, width], -1 for none."""
        tables = np.full((len(laid.rows), laid.width), -1, np.int32)
        for row, stay in zip(tables, laid.rows, strict=True):
            blocks = self.blocks(stay)
            row[: len(blocks)] = blocks
        return tables

    def blocks(self, stay: Stay | None) -> Sequence[int]:
        """Return the first pages of a request's blocks."""
        return () if stay is None else self._blocks.get(stay, ())

    def _between(self, cache: Any) -> Any:
        _jax.block_until_ready(cache.k)
        self.pool.arrays = cache
        assert self.poll is not None
        self.poll()
        return replace(self.pool.arrays, tables=cache.tables)

    def end(self, x: Any, logit_indices: Any) -> Any:
        """Return logits from an output of `compute` without them."""
        return end(
            self.params,
            x,
            logit_indices,
            self.spec,
            linear=self.linear,
            executables=self.executables,
        )

    def ready(self, laid: Laid, tokens: Any) -> Any:
        """Prepare a call shape; return the logits' shape."""
        tables = np.full((len(laid.rows), laid.width), -1, np.int32)
        between = None if self.poll is None else lambda cache: cache  # as many layers a call
        logits, _ = self._run(laid, tokens, laid.wanted, tables, ahead=True, between=between)
        return logits

    def _run(
        self, laid: Laid, tokens: Any, logit_indices: Any, tables: np.ndarray, **more: Any
    ) -> Any:
        pool = self.pool.arrays
        return run(
            self.params,
            tokens,
            laid.positions,
            type(pool)(k=pool.k, v=pool.v, tables=jax.device_put(tables, self.device)),
            self.spec,
            linear=self.linear,
            decode_rows=laid.decode_rows,
            logit_indices=logit_indices,
            executables=self.executables,
            **more,
        )

    def _growth(self, stored: Stored) -> list[tuple[Stay, int]]:
        counts = ((s, blocks_for(n) - len(self._blocks.get(s, ()))) for s, n in stored)
        return [(stay, count) for stay, count in counts if count > 0]


def blocks_for(positions: int) -> int:
    """Return the number of blocks of a sequence with this many positions.

    >>> blocks_for(0), blocks_for(64), blocks_for(65)
    (0, 1, 2)
    """
    return -(-positions // PAGE_TOKENS)


def bound(executables: Executables | None) -> Callable[[Any], Callable[..., Any]]:
    """Return a caching binder of stages."""
    functions: dict[Any, Callable[..., Any]] = {}

    def call(stage: Any) -> Callable[..., Any]:
        if executables is None:
            run: Callable[..., Any] = stage.jitted
            return run
        if stage not in functions:
            functions[stage] = executables.bind(stage)
        return functions[stage]

    return call
