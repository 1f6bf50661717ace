"""Receiver of woven steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from c2c.models import ModelSpec
from c2c.systems.weaver.live.links import Attend, Bring, Give, Inbox
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layers.cache import Pooled, cached_heads, rows_of
from c2c.transformer.layers.forward import nameless
from c2c.transformer.layers.layer import attention, window_of
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.running.executor import blocks_for, bound
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.shapes import Shapes
from pallas_kernels.arguments import Choice
from pallas_kernels.woven import Status

__all__ = ["ATTEND", "TAKE", "KvHost", "Polls", "bare"]

_jax: Any = jax  # partly untyped


@dataclass(slots=True)
class Polls:
    """Times of a host's polls, in seconds.

    Attributes:
      piece_s: longest time between polls.
      pieces_s: sum of these times.
      squares_s: sum of their squares.
      tasks: times of previous check, taking and answer; None: not recorded.
    """

    count: int = 0
    piece_s: float = 0.0
    poll_s: float = 0.0
    task_s: float = 0.0
    pieces_s: float = 0.0
    squares_s: float = 0.0
    tasks: list[tuple[float, float, float]] | None = None


@dataclass(slots=True)
class _Step:
    """Rows of a sender's step: block tables on the device, positions."""

    tables: Any
    positions: np.ndarray


class KvHost:
    """Keys and values of a sender's sequences, with attention.

    It belongs to its pool's thread.

    Source: WEAVER, sections 3 and 4.1.
    """

    def __init__(
        self,
        pool: KvPool,
        spec: ModelSpec,
        inbox: Inbox,
        shapes: Shapes,
        *,
        reserve: int = 0,
        executables: Executables | None = None,
        backend: Choice = "auto",
    ) -> None:
        """Create a host without sequences.

        Args:
          reserve: superblocks never taken.

        Raises:
          SettingError: too large a reserve.
        """
        self.pool, self.inbox, self.shapes = pool, inbox, shapes
        self.lease = pool.lease(spec, reserve=reserve)
        self.executables = None if executables is None else executables.on(pool.device)
        self.done = 0  # tasks
        self.is_over = False
        self.polls = Polls()
        self._spec = nameless(spec)
        self._blocks: dict[int, list[int]] = {}
        self._step: _Step | Status = Status.OTHER_TABLE
        self._backend: Choice = backend
        self._stage = bound(self.executables)
        self._looked_s = self._ended_s = time.monotonic()

    def ready(self) -> None:
        """Prepare the executables of all polls; nothing is computed."""
        assert self.executables is not None
        ahead, spec, pool = self.executables.bind_ahead, self._spec, bare(self.pool)
        kv_heads, head_dim = cached_heads(spec)
        kv = np.zeros((spec.layers, PAGE_TOKENS, kv_heads, head_dim), self.pool.dtype)
        ahead(_PUT)(pool, kv, kv, np.int32(0), spec=spec)
        for rows in self.shapes.rows:
            q, k = (
                np.zeros((rows, heads, head_dim), self.pool.dtype)
                for heads in (spec.heads, kv_heads)
            )
            tables = np.zeros((rows, self.shapes.width), np.int32)
            ahead(ATTEND)(
                pool, np.int32(0), tables, np.zeros(rows, np.int32), q, k, k,
                spec=spec, backend=self._backend, decode_rows=rows,
            )  # fmt: skip

    def poll(self) -> bool:
        """Process the sender's pending requests; return whether any."""
        polls, begun_s, did = self.polls, time.monotonic(), False
        polls.count += 1
        piece_s = begun_s - self._ended_s
        polls.piece_s = max(polls.piece_s, piece_s)
        polls.pieces_s += piece_s
        polls.squares_s += piece_s**2
        while True:
            looked_s = time.monotonic()
            message = self.inbox.next()
            before_s = self._looked_s
            if message is None or isinstance(message, Attend):  # else it saw no task
                self._looked_s = looked_s
            if message is None:
                break
            did = True
            if isinstance(message, Attend):
                taken_s, done = time.monotonic(), self.done
                self._attend(message)
                now_s = time.monotonic()
                polls.task_s = max(polls.task_s, now_s - taken_s)
                if polls.tasks is not None and self.done > done:
                    polls.tasks.append((before_s, taken_s, now_s))
            elif isinstance(message, Bring):
                message.reply(self._bring(message))
            elif isinstance(message, Give):
                self.lease.give(self._blocks.pop(message.sequence, ()))
            else:
                self.close()
        self._ended_s = time.monotonic()
        if not did:
            polls.poll_s = max(polls.poll_s, self._ended_s - begun_s)
        return did

    def close(self) -> None:
        """Free the blocks of the sender's sequences."""
        self.is_over = True
        for blocks in self._blocks.values():
            self.lease.give(blocks)
        self._blocks.clear()

    def _bring(self, message: Bring) -> bool:
        try:
            blocks = self.lease.take(len(message.blocks), message.sequence)
        except OutOfPages:
            return False
        for block, (k, v) in zip(blocks, message.blocks, strict=True):
            here = jax.device_put((k, v), self.pool.device)
            self.pool.arrays = self._stage(_PUT)(
                bare(self.pool), *here, np.int32(block), spec=self._spec
            )
        _jax.block_until_ready(self.pool.arrays.k)
        self._blocks[message.sequence] = blocks
        return True

    def _attend(self, message: Attend) -> None:
        if message.layer == 0:
            self._step = self._begun(message.sequences, message.lengths)
        step = self._step
        if isinstance(step, Status):
            message.reply(step)
            return
        heads = jax.device_put(message.heads, self.pool.device)
        mixed, self.pool.arrays = self._stage(ATTEND)(
            bare(self.pool), np.int32(message.layer), step.tables, step.positions, *heads,
            spec=self._spec, backend=self._backend, decode_rows=len(step.positions),
        )  # fmt: skip
        _jax.block_until_ready(mixed)
        self.done += 1
        message.reply(mixed)

    def _begun(self, sequences: np.ndarray, lengths: np.ndarray) -> _Step | Status:
        tables = np.full((len(sequences), self.shapes.width), -1, np.int32)
        for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
            if length <= 0:
                continue
            blocks = self._blocks.get(int(sequence))
            if blocks is None:
                return Status.OTHER_TABLE
            more = blocks_for(int(length)) - len(blocks)
            if more > 0:
                try:
                    blocks.extend(self.lease.take(more, sequence))
                except OutOfPages:
                    return Status.NO_BLOCKS
            tables[row, : len(blocks)] = blocks
        positions = np.array(lengths, np.int32) - 1
        return _Step(jax.device_put(tables, self.pool.device), positions)


def bare(pool: KvPool) -> Pooled:
    """Return the arrays without tables: donation would invalidate them."""
    return replace(pool.arrays, tables=None)


def _attend(
    pool: Pooled, number: Any, tables: Any, positions: Any, q: Any, k: Any, v: Any,
    spec: ModelSpec, backend: Choice, decode_rows: int,
) -> tuple[jax.Array, Pooled]:  # fmt: skip
    rows = rows_of(positions, tables.shape[0], decode_rows)
    seen = replace(pool, tables=tables).seen_by(spec)
    window = window_of(spec, number)
    cap = spec.attention_cap or None
    mixed, pages = attention(seen, rows, number, window, q, k, v, soft_cap=cap, backend=backend)
    return mixed, replace(pool.with_pages(pages), tables=None)


def _take(pool: Pooled, first: Any, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    pages, which = pool.seen_by(spec), first + np.arange(spec.layers)
    return pages.k[which], pages.v[which]


def _put(pool: Pooled, k: Any, v: Any, to: Any, spec: ModelSpec) -> Pooled:
    pages, which = pool.seen_by(spec), to + np.arange(spec.layers)
    return pool.with_pages(replace(pages, k=pages.k.at[which].set(k), v=pages.v.at[which].set(v)))


ATTEND = Stage(
    name="woven_attend", function=_attend, donated=(0,), static=("spec", "backend", "decode_rows")
)
TAKE = Stage(name="woven_take", function=_take, static=("spec",))
_PUT = Stage(name="woven_put", function=_put, donated=(0,), static=("spec",))
