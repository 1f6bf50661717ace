"""OpenAI's JSON of choices, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse

from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.failures import ApiError
from c2c.engine.front.protocol import StreamOptions
from c2c.engine.front.scores import Written, of_chat, of_text

__all__ = ["Shape", "Stream", "event", "usage"]


@dataclass(slots=True, kw_only=True)
class Shape:
    """Form of an answer; `options` are its `stream_options`."""

    model: str
    is_chat: bool
    has_tokens: bool
    has_scores: bool
    written: Written
    options: StreamOptions
    _choices: Sequence[Choice] = ()
    _prompt: int = 0
    _number: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(default_factory=lambda: int(time.time()))

    def begin(self, choices: Sequence[Choice], prompt: int) -> None:
        """Set the choices and the prompt's tokens."""
        self._choices, self._prompt = choices, prompt

    def whole(self) -> dict[str, Any]:
        """Return a complete answer."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._around(kind, [self._one(choice) for choice in self._choices])

    def _one(self, choice: Choice) -> dict[str, Any]:
        text, calls = choice.parts.joined("text"), choice.calls
        if not self.is_chat:
            return self._shown(choice.index, choice, choice.finish, {"text": text})
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought := choice.parts.joined("thought"):
            message["reasoning_content"] = thought
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return self._shown(choice.index, choice, choice.finish, {"message": message})

    def chunk(self, choice: Choice, piece: Piece, *, is_first: bool, is_last: bool) -> bytes:
        """Return the event of a choice's chunk."""
        text, finish = piece.parts.joined("text"), choice.finish if is_last else None
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if thought := piece.parts.joined("thought"):
            delta["reasoning_content"] = thought
        if text or not (is_last or piece.parts.found):
            delta["content"] = text
        if calls := piece.parts.calls:
            delta["tool_calls"] = [call.shown() for call in calls]
        content = {"delta": delta} if self.is_chat else {"text": text}
        one = self._shown(choice.index, None if is_last else piece, finish, content)
        return self._chunk([one], has_usage=self.options.continuous_usage_stats)

    def _shown(
        self, index: int, piece: Choice | Piece | None, finish: str | None, content: dict[str, Any]
    ) -> dict[str, Any]:
        scores = None
        if self.has_scores and piece is not None:
            scores = (of_chat if self.is_chat else of_text)(piece.scores, self.written)
        tokens = {"token_ids": piece.tokens if piece else []} if self.has_tokens else {}
        return {"index": index, "finish_reason": finish, "logprobs": scores} | content | tokens

    def last(self) -> bytes:
        """Return the last events, with the usage if asked for."""
        end = b"data: [DONE]\n\n"
        return self._chunk([], has_usage=True) + end if self.options.include_usage else end

    def failed(self, error: ApiError) -> bytes:
        """Return a failure's event."""
        return event(error.body())

    def _chunk(self, choices: list[Any], *, has_usage: bool) -> bytes:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return event(self._around(kind, choices, has_usage=has_usage))

    def _around(self, kind: str, choices: list[Any], *, has_usage: bool = True) -> dict[str, Any]:
        number = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self._number}"
        head = {"id": number, "created": self._created, "model": self.model, "object": kind}
        used = {"usage": usage(self._choices, self._prompt)} if has_usage else {}
        return head | {"choices": choices} | used


def event(value: Any) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def usage(choices: Sequence[Choice], prompt: int) -> dict[str, Any]:
    """Return an answer's token counts."""
    drawn = sum(choice.drawn for choice in choices)
    hits: dict[int, int] = {}  # by prompt: tokens that none of its choices computed
    for choice in choices:
        hits[choice.prompt] = min(choice.found, hits.get(choice.prompt, choice.found))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": sum(hits.values())},
    }


class Stream(StreamingResponse):
    """Stream that ends with its client's connection."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        """Create a stream from its events."""
        super().__init__(_after(first, events), media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events, then close their generator."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


async def _after(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event
