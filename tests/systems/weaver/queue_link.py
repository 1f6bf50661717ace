"""A link of woven steps between two threads of a process."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from c2c.systems.weaver.live.links import Attend, Block, Bring, Give, Gone, LinkLost
from pallas_kernels.woven import Status, TaskFailed


class QueueLink:
    """Both ends of a link between two threads of a process."""

    def __init__(self, *, limit_s: float = 30.0) -> None:
        """Set the receiver's timeout."""
        self._limit_s = limit_s
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._rows: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))
        self._layer = self._sent = 0

    def next(self) -> Any:
        """Return the next message; None if there is none."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Send a sequence's blocks; return whether the receiver has room."""
        self._reply = queue.SimpleQueue()
        self._queue.put(Bring(sequence, blocks, self._reply.put))
        return bool(self._answer())

    def give(self, sequence: int) -> None:
        """Announce the end of a sequence."""
        self._queue.put(Give(sequence))

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Start a step of these rows."""
        self._rows, self._layer = (sequences, lengths), 0

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Send the next layer's rows."""
        jax.block_until_ready((q, k, v))
        self._reply = queue.SimpleQueue()
        self._queue.put(Attend(self._layer, *self._rows, (q, k, v), self._reply.put))
        self._layer, self._sent = self._layer + 1, self._sent + 1
        return time.monotonic()

    def wait(self) -> Any:
        """Wait for their attention."""
        result = self._answer()
        if isinstance(result, Status):
            raise TaskFailed(self._sent - 1, result)
        return result

    def close(self) -> None:
        """Close the link."""
        self._queue.put(Gone())

    def _answer(self) -> Any:
        try:
            return self._reply.get(timeout=self._limit_s)
        except queue.Empty:
            raise LinkLost(f"no answer in {self._limit_s:g} s") from None
