"""Request parsing: JSON bodies and the engine's own headers."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from c2c.engine.front.failures import ApiError, invalid

__all__ = ["BodyRoute", "extra_headers", "parsed"]

_LARGE = 1 << 20  # bytes above which a thread parses a body, so that streams do not wait
_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # a JSON escape of a surrogate


class _BodyRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.to_thread(parsed, body) if len(body) > _LARGE else parsed(body)


class BodyRoute(APIRoute):
    """Route that parses bodies with `parsed`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler."""
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await answer(_BodyRequest(request.scope, request.receive))

        return handler


def parsed(body: bytes) -> Any:
    """Return the body parsed as JSON."""
    try:
        value = json.loads(body.decode("utf-8-sig"))
        half = _half(value) if _MAY_BE_HALF.search(body) else None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 (at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if half is not None:
        raise invalid(half, "half of a surrogate pair, expected valid Unicode")
    return value


def extra_headers(request: Request) -> dict[str, Any]:
    """Return deadline and priority from `x-deadline-s` and `x-priority`."""
    result: dict[str, Any] = {}
    if (text := request.headers.get("x-deadline-s")) is not None:
        try:
            result["deadline_s"] = float(text)
        except ValueError:
            result["deadline_s"] = -1.0
        if not 0 < result["deadline_s"] < math.inf:
            raise invalid("x-deadline-s", "expected seconds above 0")
    if (text := request.headers.get("x-priority")) is not None:
        if not re.fullmatch("-?[0-9]{1,10}", text) or abs(int(text)) >= 2**31:
            raise invalid("x-priority", "expected a 32-bit whole number")
        result["priority"] = int(text)
    return result


def _half(value: Any) -> str | None:
    for name, part in value.items() if isinstance(value, dict) else [("body", value)]:
        try:
            json.dumps((name, part), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return str(name)
    return None
