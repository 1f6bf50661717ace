"""Links of woven steps: messages and transport (WEAVER, section 4.1)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.layers.cache import cached_heads
from c2c.transformer.running.shapes import Shapes
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
    "SlotInbox",
    "SlotLink",
    "check_slot",
    "slot_shape",
]

Block = tuple[Any, Any]  # keys and values, [layers, 64, kv_heads, head_dim]


class LinkLost(RuntimeError):
    """The other side is gone or late; the link is dead."""


class Link(Protocol):
    """Sender's end of a link."""

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Send a sequence's blocks under a new id; return whether fitting."""
        ...

    def give(self, sequence: int) -> None:
        """Announce the end of a sequence."""
        ...

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Start a step of these rows and lengths; -1 and 0 mark empty rows."""
        ...

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Send the next layer's rows; return the time by the monotonic clock."""
        ...

    def wait(self) -> Any:
        """Wait for their attention [rows, heads, head_dim]."""
        ...

    def close(self) -> None:
        """Close the link: the receiver then frees all blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Bring:
    """Message: keep a sequence's blocks under its id; `reply`: whether they fit."""

    sequence: int
    blocks: Sequence[Block]
    reply: Callable[[bool], object]


@dataclass(frozen=True, slots=True)
class Give:
    """Message: a sequence has ended."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Attend:
    """Message: attention of a layer; lengths include the new token."""

    layer: int
    sequences: np.ndarray
    lengths: np.ndarray
    heads: tuple[Any, Any, Any]
    reply: Callable[[Any], object]  # a `Status` if there is no result


class Gone:
    """Message: the sender ends."""


class Inbox(Protocol):
    """Receiver's end of a link."""

    def next(self) -> Bring | Give | Attend | Gone | None:
        """Return the next message; None if none."""
        ...


def slot_shape(spec: ModelSpec, shapes: Shapes, dtype: Any) -> SlotShape:
    """Return a model's slot shape; its table has sequence ids."""
    kv_heads, head_dim = cached_heads(spec)
    return SlotShape(
        rows=shapes.rows[-1], heads=spec.heads, kv_heads=kv_heads, head_dim=head_dim,
        dtype=str(np.dtype(dtype)),
    )  # fmt: skip


def check_slot(shape: SlotShape, minimum: SlotShape) -> None:
    """Validate that a slot has room for steps."""
    if replace(shape, rows=minimum.rows, outstanding=1) != minimum or shape.rows < minimum.rows:
        raise SettingError(
            "slot", f"{shape.nbytes} bytes for {shape.rows} rows",
            f"at least {minimum.nbytes} bytes for {minimum.rows} rows: {minimum}",
        )  # fmt: skip


# Tasks use a slot of `pallas_kernels.woven`; blocks and ends of sequences use a socket.
class SlotLink:
    """Sender's end of a link between two processes."""

    def __init__(
        self, slot: Slot, control: Connection, minimum: SlotShape, *, limit_s: float
    ) -> None:
        """Use a slot that both processes have open.

        Args:
          minimum: required shape, see `slot_shape`.

        Raises:
          SettingError: too small a slot, or other heads.
        """
        check_slot(slot.shape, minimum)
        if limit_s <= 0:
            raise SettingError("limit_s", limit_s, "seconds above 0")
        self._sender, self._control, self._limit_s = Sender(slot), control, limit_s
        _give_up_after(control, limit_s)

    def bring(self, sequence: int, blocks: Sequence[Block]) -> bool:
        """Send a sequence's blocks; return whether the receiver has room."""
        here = [(np.asarray(k), np.asarray(v)) for k, v in blocks]
        self._tell(sequence, here)
        try:
            if not self._control.poll(self._limit_s):
                raise LinkLost(f"no answer in {self._limit_s:g} s")
            return bool(self._control.recv())
        except (EOFError, OSError) as error:
            raise LinkLost("the receiver is gone") from error

    def give(self, sequence: int) -> None:
        """Announce the end of a sequence."""
        self._tell(sequence, None)

    def table(self, sequences: np.ndarray, lengths: np.ndarray) -> None:
        """Start a step of these rows."""
        self._sender.publish(sequences[:, None], lengths)

    def send(self, q: Any, k: Any, v: Any) -> float:
        """Send the next layer's rows."""
        q, k, v = map(np.asarray, (q, k, v))
        self._sender.send(q, k, v)
        return time.monotonic()

    def wait(self) -> Any:
        """Wait for their attention."""
        end_s = time.monotonic() + self._limit_s
        try:
            while (result := self._sender.collect()) is None:
                if time.monotonic() > end_s:
                    raise LinkLost(f"no answer in {self._limit_s:g} s")
                if self._control.poll(0):  # no message is expected now except the end
                    raise LinkLost("the receiver is gone")
                time.sleep(0)
        except TaskFailed:
            raise
        except (SlotError, OSError) as error:
            raise LinkLost(str(error)) from error
        return result

    def close(self) -> None:
        """Close the link."""
        self._control.close()

    def _tell(self, sequence: int, blocks: Sequence[Block] | None) -> None:
        try:
            self._control.send((sequence, blocks))
        except OSError as error:
            raise LinkLost(f"the receiver is gone, or takes nothing: {error}") from error


@dataclass(slots=True)
class SlotInbox:
    """Receiver's end of a link between two processes."""

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
        """Return the next message; None if none."""
        if self.control.closed:
            is_new, self._is_gone = self._is_gone, False
            return Gone() if is_new else None
        try:
            if self.control.poll(0):
                sequence, blocks = self.control.recv()
                return Give(sequence) if blocks is None else Bring(sequence, blocks, self._say)
            task = self._receiver.poll()
        except (EOFError, OSError, SlotError):  # its sequences are freed in any case
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

    def _reply(self, message: Any) -> None:
        if isinstance(message, Status):
            self._receiver.fail(message)
        else:
            self._receiver.answer(np.asarray(message))


def _give_up_after(control: Connection, limit_s: float) -> None:
    span = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
    with socket.socket(fileno=control.fileno()) as here:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            here.setsockopt(socket.SOL_SOCKET, option, span)
        here.detach()
