"""Tokens and ends for the front, sent while no worker waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from c2c.engine import messages as say
from c2c.engine.between import Between
from c2c.serving import (
    FAIL_CANCELLED,
    FAIL_CONTEXT,
    FAIL_DEADLINE,
    FAIL_DEVICE,
    FAIL_KV,
    FAIL_MEMORY,
)

__all__ = ["FAILED", "Answers"]

FAILED: Final = {  # failure code of a loop record: outcome for the front
    FAIL_CONTEXT: "context_length_exceeded",
    FAIL_KV: "context_length_exceeded",
    FAIL_CANCELLED: "cancelled",
    FAIL_DEADLINE: "deadline",
    FAIL_DEVICE: "worker_lost",
    FAIL_MEMORY: "model_failed",
}


class Answers:
    """Queue of tokens and ends, sent after the current event."""

    def __init__(self, between: Between, send: Callable[..., None]) -> None:
        """Create a queue; `between` schedules its sending by `send`."""
        self._between, self._send = between, send
        self._held: list[tuple[Any, ...]] = []

    def token(self, request: int, token: int, score: say.Scored | None) -> None:
        """Queue a new token of a request."""
        self._hold(request, token, score)

    def prompt(self, request: int, scores: tuple[say.Scored, ...]) -> None:
        """Queue log-probabilities of a request's next prompt tokens."""
        self._hold(request, None, scores)

    def found(self, request: int, tokens: int) -> None:
        """Queue the number of cached prompt tokens."""
        self._hold(request, None, tokens)

    def end(self, request: int, why: str, retry_s: float = 0.0) -> None:
        """Queue a request's end: reason, and seconds until a retry."""
        self._hold(request, why, retry_s)

    def _hold(self, *answer: Any) -> None:
        if not self._held:
            self._between.later(self._tell)
        self._held.append(answer)

    def _tell(self) -> None:
        answers, self._held = self._held, []
        self._send(*(_frame(*answer) for answer in answers))


def _frame(request: int, event: int | str | None, more: Any) -> say.Answered:
    if event is None and isinstance(more, int):
        return say.Tokens(request=request, tokens=(), found=more)
    if event is None:
        return say.Tokens(request=request, tokens=(), prompt=more)
    if isinstance(event, str):
        return say.Ended(request=request, why=event, retry_s=more)
    return say.Tokens(request=request, tokens=(event,), scores=() if more is None else (more,))
