"""Responses of endpoints in the OpenAPI document (`/openapi.json`)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

__all__ = ["STREAM", "Documented", "errors"]


class Problem(BaseModel):
    """An error in OpenAI's form."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failed(BaseModel):
    """Body of every error."""

    error: Problem


_SAID: Final = {
    400: "invalid request; `param` names the field",
    401: "missing or invalid API key",
    403: "adding and removing models is disabled",
    404: "no such model",
    408: "the deadline has passed",
    409: "conflict: open requests, a pin, or no room in memory",
    413: "the body is too large",
    429: "too many requests are open; `retry-after` has the seconds to wait",
    499: "the client disconnected",
    500: "internal error, logged under the answer's `x-request-id`",
    503: "unavailable: starting, draining, a lost worker, a failed model, no engine",
}

STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}}}
}
"""Response of JSON or, on demand, of a stream of events."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documented errors of an endpoint: JSON, even if it answers with other types."""
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Failed.__name__}"}}}
    found = sorted((*statuses, 500))
    return {status: {"description": _SAID[status], "content": body} for status in found}


class Documented(FastAPI):
    """Application that documents 400, rather than FastAPI's 422, for invalid requests."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document without status 422."""
        found = super().openapi()
        schemas = found["components"]["schemas"]
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        of_failed = models_json_schema(
            [(Failed, "serialization")], ref_template="#/components/schemas/{model}"
        )
        schemas.update(of_failed[1]["$defs"])
        return found
