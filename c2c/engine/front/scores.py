"""Log-probabilities in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["TokenScore", "Written", "of_chat", "of_text"]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token, its log-probability (None: a prompt's first), likeliest ones, and offset."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Written:
    """Form of single tokens: text, or number without a tokenizer."""

    tokenizer: Tokenizer | None
    by_number: bool

    def text(self, token: int) -> str:
        """Return a token's text; partial characters become U+FFFD."""
        if self.by_number or self.tokenizer is None:
            return f"token_id:{token}"
        return self.tokenizer.spelling.text(token)

    def data(self, token: int) -> list[int] | None:
        """Return a token's bytes; None without a tokenizer."""
        return None if self.tokenizer is None else list(self.tokenizer.spelling.data(token))


def of_text(scores: Sequence[TokenScore], written: Written) -> dict[str, Any]:
    """Return `logprobs` of a text completion."""
    return {
        "tokens": [written.text(score.token) for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [
            None if score.logprob is None else _by_text(score, written) for score in scores
        ],
        "text_offset": [score.offset for score in scores],
    }


def _by_text(score: TokenScore, written: Written) -> dict[str, float | None]:
    """Return log-probabilities by text; of equal texts the drawn's, else the likeliest's."""
    names = {written.text(score.token): score.token}
    likeliest: dict[int, float | None] = {**dict(score.top), score.token: score.logprob}
    for token in likeliest:
        if names.setdefault(written.text(token), token) != token:
            names[f"token_id:{token}"] = token
    numbers = {token: name for name, token in names.items()}
    return {numbers[token]: logprob for token, logprob in likeliest.items()}


def of_chat(scores: Sequence[TokenScore], written: Written) -> dict[str, Any]:
    """Return `logprobs` of a chat completion."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": written.text(token), "logprob": logprob, "bytes": written.data(token)}

    return {
        "content": [
            one(score.token, score.logprob) | {"top_logprobs": [one(*pair) for pair in score.top]}
            for score in scores
        ]
    }
