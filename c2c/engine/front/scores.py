"""How likely tokens were, in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TokenScore", "of_chat", "of_text", "writer"]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and how likely it was, and the likeliest tokens of its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def writer(decode: Callable[[list[int]], str] | None) -> Callable[[int], str]:
    """Return how tokens are written: as their text, or by number where `decode` is None."""
    if decode is None:
        return "token_id:{}".format
    return lambda token: decode([token])


def of_text(
    scores: Sequence[TokenScore], write: Callable[[int], str], offset: int
) -> tuple[dict[str, Any], int]:
    """Return the `logprobs` of a text's tokens, and where the text goes on.

    Args:
      scores: of the tokens.
      write: a token as text.
      offset: of the first one in the text.
    """
    tokens, offsets = [write(score.token) for score in scores], []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    found = {
        "tokens": tokens,
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [
            {write(token): logprob for token, logprob in reversed(score.top)} for score in scores
        ],
        "text_offset": offsets,
    }
    return found, offset


def of_chat(scores: Sequence[TokenScore], write: Callable[[int], str]) -> dict[str, Any]:
    """Return the `logprobs` of a chat's tokens."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = write(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            one(score.token, score.logprob) | {"top_logprobs": [one(*pair) for pair in score.top]}
            for score in scores
        ]
    }
