"""OpenAI's JSON of choices: complete answers, and chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse

from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.failures import ApiError
from c2c.engine.front.protocol import StreamOptions
from c2c.engine.front.scores import TokenScore, Written, of_chat, of_text

__all__ = ["Shape", "Stream", "event", "usage"]


class Shape:
    """Form of an answer to a chat or a text completion.

    Attributes:
      is_chat: True for a chat.
      has_tokens: whether choices include their token ids.
      has_scores: whether choices include log-probabilities.
      options: `stream_options` of the request.
    """

    def __init__(
        self,
        model: str,
        *,
        is_chat: bool,
        has_tokens: bool,
        has_scores: bool,
        written: Written,
        options: StreamOptions | None,
    ) -> None:
        self.is_chat, self.has_tokens, self.has_scores = is_chat, has_tokens, has_scores
        self._written, self._options = written, options or StreamOptions()
        self._choices: Sequence[Choice] = ()
        self._prompt = 0
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def begin(self, choices: Sequence[Choice], prompt: int) -> None:
        """Set the choices and the number of prompt tokens."""
        self._choices, self._prompt = choices, prompt

    def whole(self) -> dict[str, Any]:
        """Return a complete answer."""
        found = []
        for choice in self._choices:
            text = choice.parts.joined("text")
            one: dict[str, Any] = {
                "index": choice.index,
                "finish_reason": choice.finish,
                "logprobs": self._logprobs(choice.scores),
            }
            if self.is_chat:
                one["message"] = {"role": "assistant", "content": text}
                if thought := choice.parts.joined("thought"):
                    one["message"]["reasoning_content"] = thought
                if choice.calls:
                    own = {"content": text or None, "tool_calls": choice.calls}
                    one["message"] |= own
            else:
                one["text"] = text
            if self.has_tokens:
                one["token_ids"] = choice.tokens
            found.append(one)
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": found, "usage": self._usage()}

    def chunk(self, choice: Choice, piece: Piece, *, is_first: bool, is_last: bool) -> bytes:
        """Return the event of a chunk of one choice."""
        text = piece.parts.joined("text")
        one: dict[str, Any] = {
            "index": choice.index,
            "finish_reason": choice.finish if is_last else None,
            "logprobs": None if is_last else self._logprobs(piece.scores),
        }
        if self.is_chat:
            role = {"role": "assistant"} if is_first else {}
            one["delta"] = role
            if thought := piece.parts.joined("thought"):
                one["delta"]["reasoning_content"] = thought
            if text or not (is_last or piece.parts.found):
                one["delta"]["content"] = text
            if calls := piece.parts.calls:
                one["delta"]["tool_calls"] = [call.shown() for call in calls]
        else:
            one["text"] = text
        if self.has_tokens:
            one["token_ids"] = piece.tokens
        used = {"usage": self._usage()} if self._options.continuous_usage_stats else {}
        return event({**self._head, "object": self._chunk_kind, "choices": [one], **used})

    def last(self) -> bytes:
        """Return the last events, with the usage if it was asked for."""
        chunk = {**self._head, "object": self._chunk_kind, "choices": [], "usage": self._usage()}
        return (event(chunk) if self._options.include_usage else b"") + b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        """Return the event of a failure."""
        return event(error.body())

    def _usage(self) -> dict[str, Any]:
        return usage(self._choices, self._prompt)

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        if not self.has_scores:
            return None
        return (of_chat if self.is_chat else of_text)(scores, self._written)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"


def event(value: Any) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


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
