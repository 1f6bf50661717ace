"""Faults that a client of a simulated endpoint requests."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, fields
from typing import Any

from c2c.engine.front.failures import ApiError

__all__ = ["HEADER", "Fault", "Faults", "fault_of"]

HEADER = "x-simulated-fault"
_MOST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one answer.

    Attributes:
      status: HTTP status; 0: none.
      delay_s: before the request is processed.
      stall_s: after the first piece of the body.
      cut_after: pieces before the connection ends; -1: all.
    """

    status: int = 0
    delay_s: float = 0.0
    stall_s: float = 0.0
    cut_after: int = -1


def fault_of(text: str) -> Fault:
    """Return the fault that a header names.

    >>> fault_of("delay_s=0.5, cut_after=3")
    Fault(status=0, delay_s=0.5, stall_s=0.0, cut_after=3)
    """
    names = [field.name for field in fields(Fault)]
    values: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        try:
            values[name] = float(value) if name.endswith("_s") else int(value)
        except ValueError:
            values[name] = math.nan
        most = _MOST_S if name.endswith("_s") else 599 if name == "status" else 1_000_000
        least = 400 if name == "status" else 0
        if name not in names or not least <= values[name] <= most:
            raise ApiError(
                400,
                f"{HEADER}: expected a list such as status=503 (400 to 599), delay_s=1, stall_s=1 "
                f"(at most {_MOST_S:.0f}) and cut_after=3, not {part[:64]!r}",
                param=HEADER,
            )
    return Fault(**values)


class Faults:
    """ASGI middleware of faults by requests' header."""

    def __init__(self, app: Any) -> None:
        """Wrap the application."""
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, with its header's fault."""
        text = dict(scope.get("headers", ())).get(HEADER.encode(), b"").decode("latin-1")
        if scope["type"] != "http" or not text:
            await self._app(scope, receive, send)
            return
        try:
            fault = fault_of(text)
            await asyncio.sleep(fault.delay_s)
            if fault.status:
                raise ApiError(fault.status, "a simulated fault", code="simulated_fault")
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        pieces = 0

        async def faulty(message: Any) -> None:
            nonlocal pieces
            if message["type"] == "http.response.body":
                if 0 <= fault.cut_after <= pieces:
                    raise _Cut
                pieces += 1
                await send({**message, "more_body": True} if pieces == fault.cut_after else message)
                if pieces == 1:
                    await asyncio.sleep(fault.stall_s)
                return
            await send(message)

        try:
            await self._app(scope, receive, faulty)
        except _Cut:
            return  # without the end of the answer, so that the server ends the connection


class _Cut(BaseException):
    """An answer's rest must not be sent; no handler catches this."""
