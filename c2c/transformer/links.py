"""Links between the sender and the receiver of woven steps: what is said, and two ways to say it.

Both ends of a `QueueLink` are in one process. A `SlotLink` and a `SlotInbox` are in two: tasks go
through a slot of `pallas_kernels.woven`, blocks that come and sequences that go over a socket.

Source: WEAVER, section 4.1.
"""

from __future__ import annotations

import queue
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.shapes import Shapes
from pallas_kernels.woven import (
    Receiver,
    Sender,
    Slot,
    SlotError,
    SlotShape,
    Status,
    TaskFailed,
)

__all__ = [
    "Attend",
    "Block",
    "Bring",
    "Give",
    "Gone",
    "Inbox",
    "Link",
    "LinkLost",
    "QueueLink",
    "SlotInbox",
    "SlotLink",
    "check_slot",
    "slot_shape",
]

_jax: Any = jax  # parts of it are untyped

Block = tuple[Any, Any]  # keys and values, [layers, 64, kv_heads, head_dim]


class LinkLost(RuntimeError):
    """The other side is gone or late; it is not asked any more."""


class Link(Protocol):
    """The sender's end."""

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Hand a sequence over under a number never used before; say if there was room for it."""
        ...

    def give(self, sequence: int) -> None:
        """Say that a sequence is over."""
        ...

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Begin a step of these rows; lengths are with its tokens, -1 and 0 where there is none."""
        ...

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Hand over the next layer's rows; return when that was, by the monotonic clock."""
        ...

    def wait(self) -> Any:
        """Return their attention [rows, heads, head_dim].

        Raises:
          TaskFailed: there is none: no blocks, or another table.
          LinkLost: also of the others.
        """
        ...

    def close(self) -> None:
        """End it: the receiver then frees what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Bring:
    """A sequence's blocks are to be kept under its number; `reply` is told if there is room."""

    sequence: int
    blocks: Sequence[Block]
    reply: Callable[[bool], object]


@dataclass(frozen=True, slots=True)
class Give:
    """A sequence is over."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Attend:
    """A layer's task: rows of sequences whose lengths count the new token."""

    layer: int
    sequences: np.ndarray
    lengths: np.ndarray
    heads: tuple[Any, Any, Any]
    reply: Callable[[Any], object]  # a `Status` where there is no result


class Gone:
    """The sender ends."""


class Inbox(Protocol):
    """The receiver's end."""

    def next(self) -> Bring | Give | Attend | Gone | None:
        """Return what came next, if anything did."""
        ...


class QueueLink:
    """Both ends in one process, for two threads."""

    def __init__(self, *, limit_s: float = 30.0) -> None:
        """Take how long the receiver may take for anything."""
        self._limit_s = limit_s
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._rows: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))
        self._layer = self._sent = 0

    def next(self) -> Any:
        """Return what came next, if anything did."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Hand a sequence over; say if there was room for it."""
        self._reply = queue.SimpleQueue()
        self._queue.put(Bring(sequence, blocks, self._reply.put))
        return bool(self._answer())

    def give(self, sequence: int) -> None:
        """Say that a sequence is over."""
        self._queue.put(Give(sequence))

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Begin a step of these rows."""
        self._rows, self._layer = (sequences, lengths), 0

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Hand over the next layer's rows."""
        _jax.block_until_ready((q, k, v))
        self._reply = queue.SimpleQueue()
        self._queue.put(Attend(self._layer, *self._rows, (q, k, v), self._reply.put))
        self._layer, self._sent = self._layer + 1, self._sent + 1
        return time.monotonic()

    def wait(self) -> Any:
        """Return their attention."""
        found = self._answer()
        if isinstance(found, Status):
            raise TaskFailed(self._sent - 1, found)
        return found

    def close(self) -> None:
        """End it."""
        self._queue.put(Gone())

    def _answer(self) -> Any:
        try:
            return self._reply.get(timeout=self._limit_s)
        except queue.Empty:
            raise LinkLost(f"no answer in {self._limit_s:g} s") from None


def slot_shape(spec: ModelSpec, shapes: Shapes, dtype: Any) -> SlotShape:
    """Return the slot of a model's steps; its table has the numbers of sequences for pages."""
    return SlotShape(
        rows=shapes.rows[-1], heads=spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim,
        dtype=str(np.dtype(dtype)),
    )  # fmt: skip


def check_slot(shape: SlotShape, wanted: SlotShape) -> None:
    """Return if a slot has room for steps.

    Raises:
      SettingError: it has too few rows, or is of other heads.
    """
    if replace(shape, rows=wanted.rows, outstanding=1) != wanted or shape.rows < wanted.rows:
        raise SettingError(
            "slot", f"{shape.nbytes} bytes for {shape.rows} rows",
            f"at least {wanted.nbytes} bytes for {wanted.rows} rows: {wanted}",
        )  # fmt: skip


class SlotLink:
    """The sender's end between two processes."""

    def __init__(
        self, slot: Slot, control: Connection, wanted: SlotShape, *, limit_s: float
    ) -> None:
        """Take a slot that both processes have open.

        Args:
          slot: for tasks.
          control: a socket, for the rest.
          wanted: what steps need, see `slot_shape`.
          limit_s: how long the receiver may take for anything.

        Raises:
          SettingError: the slot is too small for a step, or of other heads.
        """
        check_slot(slot.shape, wanted)
        if limit_s <= 0:
            raise SettingError("limit_s", limit_s, "seconds above 0")
        self._sender, self._control, self._limit_s = Sender(slot), control, limit_s
        _give_up_after(control, limit_s)

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Hand a sequence over; say if there was room for it."""
        here = [(np.asarray(k), np.asarray(v)) for k, v in blocks]
        self._tell(sequence, here)
        try:
            if not self._control.poll(self._limit_s):
                raise LinkLost(f"no answer in {self._limit_s:g} s")
            return bool(self._control.recv())
        except (EOFError, OSError) as error:
            raise LinkLost("the receiver is gone") from error

    def give(self, sequence: int) -> None:
        """Say that a sequence is over."""
        self._tell(sequence, None)

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Begin a step of these rows."""
        self._sender.publish(sequences[:, None], lengths)

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Hand over the next layer's rows."""
        q, k, v = map(np.asarray, (q, k, v))
        self._sender.send(q, k, v)
        return time.monotonic()

    def wait(self) -> Any:
        """Return their attention."""
        end_s = time.monotonic() + self._limit_s
        try:
            while (found := self._sender.collect()) is None:
                if time.monotonic() > end_s:
                    raise LinkLost(f"no answer in {self._limit_s:g} s")
                if self._control.poll(0):  # nothing is said now: it can only be the end
                    raise LinkLost("the receiver is gone")
                time.sleep(0)
        except TaskFailed:
            raise
        except (SlotError, OSError) as error:
            raise LinkLost(str(error)) from error
        return found

    def close(self) -> None:
        """End it."""
        self._control.close()

    def _tell(self, sequence: int, blocks: Sequence[Block] | None) -> None:
        try:
            self._control.send((sequence, blocks))
        except OSError as error:
            raise LinkLost(f"the receiver is gone, or takes nothing: {error}") from error


@dataclass(slots=True)
class SlotInbox:
    """The receiver's end between two processes."""

    slot: Slot
    control: Connection
    limit_s: float = 30.0  # how long half a message may be the last that came
    _receiver: Receiver = field(init=False)
    _version: int = field(init=False, default=-1)
    _layer: int = field(init=False, default=0)
    _is_gone: bool = field(init=False, default=False)  # and nobody was told

    def __post_init__(self) -> None:
        self._receiver = Receiver(self.slot)
        _give_up_after(self.control, self.limit_s)

    def next(self) -> Bring | Give | Attend | Gone | None:
        """Return what came next, if anything did."""
        if self.control.closed:
            is_new, self._is_gone = self._is_gone, False
            return Gone() if is_new else None
        try:
            if self.control.poll(0):
                sequence, blocks = self.control.recv()
                return Give(sequence) if blocks is None else Bring(sequence, blocks, self._say)
            task = self._receiver.poll()
        except (EOFError, OSError, SlotError):  # however it ends, its sequences go
            self.control.close()
            return Gone()
        if task is None:
            return None
        version = self.slot.version.load()
        self._layer = self._layer + 1 if version == self._version else 0
        self._version = version
        return Attend(self._layer, task.pages[:, 0], task.lengths, (task.q, task.k, task.v),
                       self._reply)  # fmt: skip

    def _say(self, there: bool) -> None:
        try:
            self.control.send(there)
        except OSError:
            self.control.close()
            self._is_gone = True

    def _reply(self, found: Any) -> None:
        if isinstance(found, Status):
            self._receiver.fail(found)
        else:
            self._receiver.answer(np.asarray(found))


def _give_up_after(control: Connection, limit_s: float) -> None:
    """Have a socket's reads and writes fail that take longer: the peer may be stopped."""
    span = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
    with socket.socket(fileno=control.fileno()) as here:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            here.setsockopt(socket.SOL_SOCKET, option, span)
        here.detach()
