"""Request parsing: bodies as JSON in valid UTF-8, and the engine's own headers."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from c2c.engine.front.failures import ApiError

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
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 (at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if _MAY_BE_HALF.search(body) and (at := _half(value)) is not None:
        raise ApiError(
            400, f"{'.'.join(map(str, at))}: half of a surrogate pair, expected valid Unicode",
            param=str(at[0]) if at else None,
        )  # fmt: skip
    return value


def extra_headers(request: Request) -> dict[str, Any]:
    """Return deadline and priority from a request's headers `x-deadline-s` and `x-priority`."""
    found: dict[str, Any] = {}
    if (text := request.headers.get("x-deadline-s")) is not None:
        try:
            found["deadline_s"] = float(text)
        except ValueError:
            found["deadline_s"] = -1.0
        if not 0 < found["deadline_s"] < math.inf:
            raise ApiError(400, "x-deadline-s: expected seconds above 0", param="x-deadline-s")
    if (text := request.headers.get("x-priority")) is not None:
        if not re.fullmatch("-?[0-9]{1,10}", text) or abs(int(text)) >= 2**31:
            raise ApiError(400, "x-priority: expected a 32-bit whole number", param="x-priority")
        found["priority"] = int(text)
    return found


def _half(value: Any) -> tuple[str | int, ...] | None:
    """Return the position of half a surrogate pair in a text; None if there is none."""
    at: list[str | int] = []
    inner: list[Iterator[tuple[str | int, Any]]] = [iter([("", value)])]  # stack of nested values
    while inner:
        found = next(inner[-1], None)
        del at[max(0, len(inner) - 2) :]
        if found is None:
            inner.pop()
            continue
        if len(inner) > 1:
            at.append(found[0])
        for text in found:
            if isinstance(text, str) and not _is_whole(text):
                return tuple(at)
        if isinstance(found[1], dict):
            inner.append(iter(found[1].items()))
        elif isinstance(found[1], list):
            inner.append(enumerate(found[1]))
    return None


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
