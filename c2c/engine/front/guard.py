"""What every request passes first: the key, and how large a body may be."""

from __future__ import annotations

import hmac
from typing import Any

from fastapi.responses import JSONResponse

from c2c.engine.front.failures import ApiError

__all__ = ["Guard"]

_MOST_BODY_BYTES = 1 << 25
_OPEN = ("/health", "/ready")  # who asks whether this lives has no key


class Guard:
    """Around the application, in ASGI's form: streams pass through it untouched."""

    def __init__(self, app: Any, key: str | None) -> None:
        """Take the application and the key; None: none is asked for."""
        self._app, self._key = app, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check_key(scope["path"], headers.get(b"authorization", b""))
            if scope["method"] == "POST":
                receive = await _limited(headers.get(b"content-length", b""), receive)
        except ApiError as error:
            await JSONResponse(error.body(), error.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_key(self, path: str, given: bytes) -> None:
        if self._key is None or path in _OPEN:
            return
        if not hmac.compare_digest(given.removeprefix(b"Bearer "), self._key.encode()):
            raise ApiError(401, "no such key", code="invalid_api_key")


async def _limited(length: bytes, receive: Any) -> Any:
    """Return where the body comes from, once it is known to be within its limit."""
    too_large = ApiError(413, f"expected a body of at most {_MOST_BODY_BYTES} bytes")
    if length.isdigit():
        if int(length) > _MOST_BODY_BYTES:
            raise too_large
        return receive  # the server holds the client to what it said
    body, more = bytearray(), True
    while more:
        part = await receive()
        body += part.get("body", b"")
        if len(body) > _MOST_BODY_BYTES:
            raise too_large
        more = part["type"] == "http.request" and part.get("more_body", False)
    waiting: list[Any] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again
