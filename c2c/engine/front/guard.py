"""Middleware: checks of requests and headers of answers."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from c2c.engine.front.failures import ApiError, overloaded

__all__ = ["MOST_BODY_BYTES", "Guard"]

MOST_BODY_BYTES = 1 << 25
"""Most bytes of a request's body."""

_log = logging.getLogger("c2c.engine.front")
_MOST_HELD_BYTES = 1 << 27  # bytes of all bodies whose answers have not begun
_MOST_DIGITS = 16  # of content-length
_READS_AWAY_S = 2.0  # reading of a body that is too large
_ID = re.compile(rb"[\w.:/@+=-]{1,128}")  # valid x-request-id of a client
_OPEN = ("/health", "/ready")  # paths without a key, for probes
_ALWAYS = ("/health", "/", "/openapi.json")  # paths that need no engine
_START_S = 5.0  # retry-after during the start


class Guard:
    """ASGI middleware; internal errors are logged with an answer's `x-request-id`."""

    def __init__(self, app: Any, key: str | None, starting: Callable[[], str] = lambda: "") -> None:
        """Create the middleware."""
        self._app, self._key, self._starting = app, key, starting
        self._held_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request or pass it on; HEAD is a GET without body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        headers = dict(scope["headers"])
        answer = _Answer(send, headers.get(b"x-request-id", b""), self._free, is_head=is_head)
        if is_head:
            scope = {**scope, "method": "GET"}
        try:
            self._check_key(scope["path"], headers)
            if scope["path"] not in _ALWAYS and (phase := self._starting()):
                why = f"the server is starting: {phase}"
                raise ApiError(503, why, code="starting", retry_s=_START_S)
            if scope["method"] == "POST":
                receive = self._counted(receive, answer, headers)
            await self._app(scope, receive, answer.send)
        except _HeadIsOver:
            pass
        except ApiError as error:
            await error.response()(scope, receive, answer.send)
        except Exception as error:
            _log.exception("%s: %s %.200s failed", answer.id, scope["method"], scope["path"])
            problem = ApiError(500, f"internal error; see {answer.id} in the server's log")
            if not answer.has_begun:
                await problem.response()(scope, receive, answer.send)
            elif answer.is_stream:
                await answer.end_stream(problem)
            else:
                raise ConnectionError("an answer ended early") from error
        finally:
            answer.free()

    def _counted(self, receive: Any, answer: _Answer, headers: Mapping[bytes, bytes]) -> Any:
        length = headers.get(b"content-length", b"0")
        is_long = len(length) > _MOST_DIGITS or (length.isdigit() and int(length) > MOST_BODY_BYTES)

        async def counted() -> Any:
            if is_long and b"expect" in headers:  # the client waits for leave to send it
                raise _too_large()
            part = await receive()
            if not answer.has_begun:
                size = len(part.get("body", b""))
                answer.held_bytes += size
                self._held_bytes += size
                if is_long or answer.held_bytes > MOST_BODY_BYTES:
                    await _read_away(receive)
                    raise _too_large()
                if self._held_bytes > _MOST_HELD_BYTES:
                    raise overloaded("too many large requests at once")
            return part

        return counted

    def _free(self, held_bytes: int) -> None:
        self._held_bytes -= held_bytes

    def _check_key(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self._key is None or path in _OPEN:
            return
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        key = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(key, self._key.encode()):
            raise ApiError(401, "missing or invalid API key", code="invalid_api_key")


class _HeadIsOver(Exception):
    pass


class _Answer:
    def __init__(
        self, send: Any, header: bytes, free: Callable[[int], None], *, is_head: bool
    ) -> None:
        self.id = header.decode() if _ID.fullmatch(header) else f"req-{uuid.uuid4().hex}"
        self.has_begun, self.is_stream, self.held_bytes = False, False, 0
        self._send, self._free, self._is_head = send, free, is_head

    def free(self) -> None:
        self._free(self.held_bytes)
        self.held_bytes = 0

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.free()
            headers = [*message["headers"], (b"x-request-id", self.id.encode())]
            kind = dict(headers).get(b"content-type", b"")
            self.is_stream = kind.startswith(b"text/event-stream")
            message = {**message, "headers": headers}
        elif self._is_head:
            await self._send({"type": "http.response.body"})
            if message.get("more_body", False):
                raise _HeadIsOver
            return
        await self._send(message)

    async def end_stream(self, problem: ApiError) -> None:
        event = b"data: " + msgspec.json.encode(problem.body()) + b"\n\n"
        await self._send({"type": "http.response.body", "body": event})


def _too_large() -> ApiError:
    return ApiError(413, f"expected a body of at most {MOST_BODY_BYTES} bytes")


async def _read_away(receive: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READS_AWAY_S):
            more = True
            while more:
                part = await receive()
                more = part["type"] == "http.request" and part.get("more_body", False)
