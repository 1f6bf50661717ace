"""OpenAI's JSON of choices: complete answers, and chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from fastapi.responses import StreamingResponse

from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.scores import TokenScore, Written, of_chat, of_text

__all__ = ["Shape", "Stream", "usage"]


class Shape:
    """Form of an answer to a chat or a text completion.

    Attributes:
      is_chat: True for a chat.
      has_tokens: whether choices include their token ids.
      has_scores: whether choices include log-probabilities.
      used: returns the usage so far for each chunk; None: chunks have no usage.
    """

    def __init__(
        self,
        model: str,
        *,
        is_chat: bool,
        has_tokens: bool,
        has_scores: bool,
        written: Written,
    ) -> None:
        self.is_chat, self.has_tokens, self.has_scores = is_chat, has_tokens, has_scores
        self._written = written
        self.used: Callable[[], dict[str, Any]] | None = None
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[Choice], prompt: int) -> dict[str, Any]:
        """Return a complete answer."""
        found = []
        for choice in choices:
            one: dict[str, Any] = {
                "index": choice.index,
                "finish_reason": choice.finish,
                "logprobs": self._logprobs(choice.scores),
            }
            if self.is_chat:
                one["message"] = {"role": "assistant", "content": choice.text}
                if choice.thought:
                    one["message"]["reasoning_content"] = choice.thought
                if choice.calls:
                    own = {"content": choice.text or None, "tool_calls": choice.calls}
                    one["message"] |= own
            else:
                one["text"] = choice.text
            if self.has_tokens:
                one["token_ids"] = choice.tokens
            found.append(one)
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": found, "usage": usage(choices, prompt)}

    def chunk(
        self, choice: Choice, piece: Piece, *, is_first: bool, is_last: bool
    ) -> dict[str, Any]:
        """Return a chunk of one choice."""
        one: dict[str, Any] = {
            "index": choice.index,
            "finish_reason": choice.finish if is_last else None,
            "logprobs": None if is_last else self._logprobs(piece.scores),
        }
        if self.is_chat:
            role = {"role": "assistant"} if is_first else {}
            one["delta"] = role
            if piece.thought:
                one["delta"]["reasoning_content"] = piece.thought
            if piece.text or not (is_last or piece.calls or piece.thought):
                one["delta"]["content"] = piece.text
            if piece.calls:
                one["delta"]["tool_calls"] = [call.shown() for call in piece.calls]
        else:
            one["text"] = piece.text
        if self.has_tokens:
            one["token_ids"] = piece.tokens
        used = {} if self.used is None else {"usage": self.used()}
        return {**self._head, "object": self._chunk_kind, "choices": [one], **used}

    def last(self, choices: Sequence[Choice], prompt: int) -> dict[str, Any]:
        """Return the last chunk, with the usage."""
        return {
            **self._head, "object": self._chunk_kind, "choices": [],
            "usage": usage(choices, prompt),
        }  # fmt: skip

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        if not self.has_scores:
            return None
        return (of_chat if self.is_chat else of_text)(scores, self._written)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"


def usage(choices: Sequence[Choice], prompt: int) -> dict[str, Any]:
    """Return the token counts of an answer."""
    drawn = sum(choice.drawn for choice in choices)
    found: dict[int, int] = {}  # by prompt: tokens that none of its choices computed
    for choice in choices:
        found[choice.prompt] = min(choice.found, found.get(choice.prompt, choice.found))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": sum(found.values())},
    }


class Stream(StreamingResponse):
    """Stream of events, closed as soon as its client disconnects."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        """Create a stream from its first event and a generator of the others."""
        super().__init__(_after(first, events), media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events, then close their generator without waiting for garbage collection."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


async def _after(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event
