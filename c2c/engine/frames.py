"""Frames over a Unix socket: length, then msgpack of `c2c.engine.messages`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from c2c.engine.messages import AnyFrame, Frame

__all__ = ["Connection", "SocketFrames", "frames_in", "packed"]

_MOST_BYTES = 1 << 28
_PIECE_BYTES = 1 << 18
_SPIN_S = 0.0005  # a worker's next plan usually arrives within this time
_LENGTH = struct.Struct("<I")

_log = logging.getLogger("c2c.engine")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def packed(*frames: Frame) -> bytes:
    """Return frames as bytes."""
    bodies = [_encoder.encode(frame) for frame in frames]
    return b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))


def frames_in(data: bytearray) -> list[AnyFrame]:
    """Remove and return the complete frames."""
    result, offset = [], 0
    while len(data) >= offset + _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, offset)
        if length > _MOST_BYTES:
            raise ValueError(f"a frame of {length} bytes is too long")
        first, past = offset + _LENGTH.size, offset + _LENGTH.size + length
        if len(data) < past:
            break
        result.append(_decoder.decode(data[first:past]))
        offset = past
    del data[:offset]
    return result


class Connection(asyncio.Protocol):
    """Connection that delivers frames in the receiving callback.

    A task that awaits frames runs an iteration later.
    """

    def __init__(self, on_connect: Callable[[Connection], None] = lambda _: None) -> None:
        """Create a connection; `on_connect` is called once connected."""
        self._made = on_connect
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()  # of incomplete frames
        self._frames: asyncio.Queue[AnyFrame | None] = asyncio.Queue()
        self._take: Callable[[AnyFrame], None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Start; frames are written at once."""
        self._transport = transport
        transport.set_write_buffer_limits(0)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Deliver frames; an error in one ends the connection."""
        self._data += data
        try:
            for frame in frames_in(self._data):
                if self._take is None:
                    self._frames.put_nowait(frame)
                else:
                    self._take(frame)
        except Exception:  # noqa: BLE001 (other connections continue)
            _log.exception("closing a connection: a frame cannot be handled")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Signal the connection's end."""
        del error
        self._frames.put_nowait(None)
        if not self._over.done():
            self._over.set_result(None)

    async def next(self) -> AnyFrame | None:
        """Return the next frame; None at the end."""
        return await self._frames.get()

    async def each(self, take: Callable[[AnyFrame], None]) -> None:
        """Call `take` with every further frame until the end."""
        while not self._frames.empty():
            if (frame := self._frames.get_nowait()) is not None:
                take(frame)
        self._take = take
        await self._over

    def send(self, *frames: Frame) -> None:
        """Send frames in one write; a lost peer shows later."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(packed(*frames))

    def close(self) -> None:
        """Close after all sent frames are written."""
        if self._transport is not None:
            self._transport.close()


class SocketFrames:
    """Frames over a blocking socket, for a computing process."""

    def __init__(self, connection: socket.socket) -> None:
        """Create frames over a connected socket."""
        self._socket = connection
        self._data = bytearray()  # of incomplete frames
        self._sending = threading.Lock()

    def send(self, *frames: Frame) -> None:
        """Send frames in one write, in any thread."""
        with self._sending:
            self._socket.sendall(packed(*frames))

    def _look(self) -> bytes | None:
        try:
            return self._socket.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def receive(self, *, waits: bool) -> list[AnyFrame] | None:
        """Return received frames, possibly none; None at the end."""
        data = self._look()
        if data is None and waits:
            # Waking takes longer than most waits, so poll first, yielding the core to others.
            end_s = time.perf_counter() + _SPIN_S
            while data is None and time.perf_counter() < end_s:
                os.sched_yield()
                data = self._look()
            if data is None:
                data = self._socket.recv(_PIECE_BYTES)
        if data is None:
            return []
        if not data:
            return None
        self._data += data
        return frames_in(self._data)
