"""Choices to OpenAI's JSON: whole answers, and chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from c2c.engine.front.choices import Choice

__all__ = ["Shape"]


class Shape:
    """How one answer looks, of a chat or of a text.

    Attributes:
      is_chat: which.
      has_tokens: whether choices show their token ids.
    """

    def __init__(self, model: str, *, is_chat: bool, has_tokens: bool) -> None:
        self.is_chat, self.has_tokens = is_chat, has_tokens
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[Choice], texts: Sequence[str], prompt: int) -> dict[str, Any]:
        """Return an answer that is complete."""
        found = []
        for choice, text in zip(choices, texts, strict=True):
            one: dict[str, Any] = {
                "index": choice.index,
                "finish_reason": choice.finish,
                "logprobs": None,
            }
            if self.is_chat:
                one["message"] = {"role": "assistant", "content": text}
            else:
                one["text"] = text
            if self.has_tokens:
                one["token_ids"] = choice.tokens
            found.append(one)
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": found, "usage": usage(choices, prompt)}

    def chunk(
        self, choice: Choice, text: str, tokens: Sequence[int], *, is_first: bool, is_last: bool
    ) -> dict[str, Any]:
        """Return a chunk of one choice."""
        one: dict[str, Any] = {
            "index": choice.index,
            "finish_reason": choice.finish if is_last else None,
            "logprobs": None,
        }
        if self.is_chat:
            role = {"role": "assistant"} if is_first else {}
            one["delta"] = role | ({} if is_last and not text else {"content": text})
        else:
            one["text"] = text
        if self.has_tokens:
            one["token_ids"] = list(tokens)
        return {**self._head, "object": self._chunk_kind, "choices": [one]}

    def last(self, choices: Sequence[Choice], prompt: int) -> dict[str, Any]:
        """Return the chunk that says what was used."""
        return {
            **self._head, "object": self._chunk_kind, "choices": [],
            "usage": usage(choices, prompt),
        }  # fmt: skip

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"


def usage(choices: Sequence[Choice], prompt: int) -> dict[str, int]:
    """Return the tokens of an answer."""
    drawn = sum(choice.drawn for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
    }
