"""Limits of client connections: size, time, number."""

from __future__ import annotations

import asyncio
import resource
import uuid
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from c2c.engine.front.failures import ApiError
from c2c.engine.front.guard import MOST_BODY_BYTES

__all__ = ["BoundedConnection"]

_MOST_HEAD_BYTES = 1 << 16
_MOST_FRAME_BYTES = 1 << 20  # bytes outside the body: head, chunk lengths, trailers
_MOST_BYTES = 2 * MOST_BODY_BYTES  # bytes of a body that are read after its request was answered
_ARRIVES_S = 20.0  # for the head; a body may take longer at the least rate
_LEAST_BYTES = 20_000  # least bytes of a body in that time
_LINGERS_S = 2.0  # reading after an error
_OWN_FILES = 128  # file descriptors of this process besides connections


class BoundedConnection(HttpToolsProtocol):
    """Connection that ends, with OpenAI's error, at a large, slow or invalid request."""

    _timer: asyncio.TimerHandle | None = None
    _frame = _body = 0  # bytes of the request
    _before = 0  # bytes of the body when the timer was set
    _has_head = _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, or refuse without file descriptors."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_FILES:
            self._refuse(503, "too many connections are open", retry_s=1.0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request, within the limits."""
        if self._is_refused:
            return
        self._frame += len(data)
        super().data_received(data)
        most = _MOST_FRAME_BYTES if self._has_head else _MOST_HEAD_BYTES
        if self._frame > most:
            self._refuse(431, f"expected at most {most} bytes outside a request's body")
        elif self._body > _MOST_BYTES:
            self._refuse(413, f"expected a body of at most {MOST_BODY_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Reset the limits for a new request."""
        super().on_message_begin()
        self._frame, self._body, self._has_head = 0, 0, False
        self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header; trailers are ignored."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the answer."""
        self._has_head = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Handle a part of a body."""
        self._frame -= len(body)
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer."""
        self._stop_waiting()
        self._frame = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP."""
        self._refuse(400, msg)

    def _wait(self) -> None:
        self._stop_waiting()
        self._before = self._body
        self._timer = self.loop.call_later(_ARRIVES_S, self._look)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._has_head and self._body - self._before >= _LEAST_BYTES:
            self._wait()
        else:
            self._refuse(408, f"expected a request's headers within {_ARRIVES_S:.0f} s, then "
                         f"{_LEAST_BYTES} bytes of its body in each such time")  # fmt: skip

    def _refuse(self, status: int, message: str, **more: Any) -> None:
        self._stop_waiting()
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()
            return
        if cycle is not None:  # the application waits for a body
            cycle.disconnected = True
            cycle.message_event.set()
        answer = ApiError(status, message, **more).response()
        headers = [
            *answer.raw_headers, (b"connection", b"close"),
            (b"x-request-id", b"req-" + uuid.uuid4().hex.encode()),
        ]  # fmt: skip
        lines = [b"HTTP/1.1 %d " % status, *(b"%s: %s" % pair for pair in headers), b"", b""]
        self.transport.write(b"\r\n".join(lines) + bytes(answer.body))
        # Read on for a while: an immediate reset could overtake the error.
        self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGERS_S, self.transport.close)
