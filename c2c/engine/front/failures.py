"""Errors in OpenAI's form."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from fastapi import Response
from starlette.exceptions import HTTPException

__all__ = ["ApiError", "after_end", "invalid", "overloaded", "without_paths"]

_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\",;()]+/)*(?=[^\s/:'\",;()])")


class ApiError(HTTPException):
    """HTTP error in OpenAI's form, with headers for retries."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        again = {"x-should-retry": "false"}
        if retry_s is not None:
            again = {"retry-after": str(math.ceil(retry_s))}
        scheme = {"www-authenticate": "Bearer"} if status == 401 else {}
        super().__init__(status, message, again | scheme)
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """Return the error as JSON types."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        problem = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        return {"type": "error", "error": problem}  # Anthropic's form, too

    def response(self) -> Response:
        """Return the response; lone surrogates become question marks."""
        body = json.dumps(self.body(), ensure_ascii=False).encode(errors="replace")
        return Response(body, self.status_code, self.headers, "application/json")


def invalid(field: str, why: object, *, code: str | None = None) -> ApiError:
    """Return the error of a field's value."""
    return ApiError(400, f"{field}: {why}", param=field, code=code)


def overloaded(why: str) -> ApiError:
    """Return an error that a retry may avoid."""
    return ApiError(503, why, code="overloaded", retry_s=1.0)


_AFTER = {
    "cancelled": (499, "the request was cancelled", None),
    "deadline": (408, "the deadline has passed", None),
    "overloaded": (429, "too many requests are open", "overloaded"),
    "draining": (503, "the server accepts no new requests", "draining"),
    "worker_lost": (503, "the worker was lost too often, retries included", "worker_lost"),
    "model_gone": (404, "the model was removed", "model_not_found"),
    "model_failed": (503, "the model's weights could not be loaded", "model_failed"),
    "grammar": (400, "the grammar is invalid or too complex", "grammar_failed"),
    "not_simulated": (
        400, "a simulated endpoint has no embeddings, log-probabilities, grammars or forced calls",
        None,
    ),
    "not_finite": (
        503, "the model's logits are NaN or infinite, expected another dtype", "model_failed",
    ),
    "gone": (503, "the engine has ended", "engine_gone"),
    "context_length_exceeded": (
        400, "prompt and answer exceed the context", "context_length_exceeded",
    ),
}  # fmt: skip
_PASSING = ("overloaded", "draining", "worker_lost", "gone")  # a later retry may succeed


def after_end(why: str, retry_s: float = 0.0) -> ApiError:
    """Return a failed outcome's error."""
    status, message, code = _AFTER[why]
    retry = max(1.0, retry_s) if why in _PASSING else None
    return ApiError(status, message, code=code, retry_s=retry)


def without_paths(reason: str, path: str) -> str:
    """Return a failure's reason with file names, not paths.

    >>> without_paths("/data/my models/a/config.json: no 'x' (of /srv/b)", "/data/my models/a")
    "a/config.json: no 'x' (of b)"
    """
    for folder in (Path(path).parent, Path(os.path.realpath(path)).parent):
        reason = reason.replace(f"{folder}/", "")
    return _FOLDERS.sub("", reason)
