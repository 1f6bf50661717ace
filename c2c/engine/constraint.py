"""Grammar constraints on drawn tokens, by llguidance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.transformer.running.sampling_stages import words
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Constraint", "Grammars"]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    eos_token_id: int
    encode: Any
    bos_token_id: None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids: list[int] = self.encode(plain, add_special_tokens=False)
        return ids


class Grammars:
    """Grammars over a model's tokens; large vocabularies take a second."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Read every token's text."""
        from llguidance import LLTokenizer

        spelling = tokenizer.spelling
        tokens = [spelling.data(token) for token in range(vocab)]
        # The grammar has its own end token; `mask` adds the request's end tokens.
        special = [*(token for token in spelling.special if token < vocab), vocab]
        for token in special[:-1]:
            tokens[token] = (spelling.name(token) or "").encode()
        wrapped: Any = _Vocabulary([*tokens, b"<|end|>"], special, vocab, tokenizer.encode)
        self.vocab = vocab
        self._tokens = LLTokenizer(wrapped, n_vocab=vocab + 1, eos_token=vocab)

    def begin(self, grammar: str, tokens: Sequence[int]) -> Constraint:
        """Return a text's constraint."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        for token in tokens:
            matcher.consume_token(token)
        return Constraint(matcher, self.vocab)


class Constraint:
    """State of a text in its grammar, a `c2c.transformer.running.stays.Constraint`."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    @property
    def has_failed(self) -> bool:
        """True if the grammar is invalid or too large."""
        return bool(self._matcher.is_error())

    def mask(self, ends: Collection[int]) -> np.ndarray:
        """Return the allowed tokens: uint32 [words], a bit a token."""
        if self.has_failed:  # reported with the next token
            return np.full(words(self._vocab), 2**32 - 1, np.uint32)
        result = np.zeros(words(self._vocab), np.uint32)
        result[:] = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(result)]
        if self._matcher.is_accepting():
            for token in ends:
                result[token // 32] |= np.uint32(1 << token % 32)
        return result

    def take(self, token: int) -> bool:
        """Take a token; return whether the text must end."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
