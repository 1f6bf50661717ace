"""What goes wrong, in OpenAI's form."""

from __future__ import annotations

from typing import Any

__all__ = ["ApiError", "after_end"]


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_s = retry_s

    def body(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


_AFTER = {
    "cancelled": (499, "the request was cancelled", None),
    "deadline": (408, "the deadline has passed", None),
    "overloaded": (429, "too many requests are open", "overloaded"),
    "draining": (503, "the server takes no new requests", "draining"),
    "worker_lost": (503, "the worker was lost more often than is retried", "worker_lost"),
    "model_failed": (503, "the model's weights could not be loaded", "model_failed"),
    "gone": (503, "the engine is gone", "engine_gone"),
    "context_length_exceeded": (
        400, "prompt and answer are longer than the context", "context_length_exceeded",
    ),
}  # fmt: skip


def after_end(why: str, retry_s: float = 0.0) -> ApiError:
    """Return the error of a request that ended otherwise than by its text."""
    status, message, code = _AFTER[why]
    return ApiError(
        status, message, code=code, retry_s=max(1.0, retry_s) if status in (429, 503) else None
    )
