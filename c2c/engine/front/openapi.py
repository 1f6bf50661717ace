"""Responses of endpoints in the OpenAPI document (`/openapi.json`)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

__all__ = ["ERRORS", "STREAM"]


class Problem(BaseModel):
    """An error in OpenAI's form."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failed(BaseModel):
    """Body of every error."""

    error: Problem


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": Failed, "description": "the request cannot be served as it is"},
    "5XX": {"model": Failed, "description": "the engine cannot serve it now, or has a fault"},
}
"""Errors of every endpoint. FastAPI documents its status 422, which none has, without "4XX"."""

STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}}}
}
"""Response of JSON or, on demand, of a stream of events."""
