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
    400: "the request is not one that can be served: `param` names the field",
    401: "a key is asked for, and this is none",
    403: "models are neither added nor removed here",
    404: "no such model",
    408: "the deadline has passed",
    409: "something is in the way: requests under way, a pin, no room",
    413: "the body is too large",
    429: "too many requests are open: `retry-after` says when to come again",
    499: "the client went away",
    500: "nobody foresaw it: the server's log has it under the answer's `x-request-id`",
    503: "not served now: draining, a lost worker, a model that cannot be loaded, no engine",
}

STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}}}
}
"""An answer that is JSON or, where that is asked for, a stream of events."""


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
