"""Grammars that tokens are drawn by: the library llguidance says which may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.transformer.drawing import words
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Constraint", "Grammars"]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A tokenizer as llguidance asks for one."""

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
    """Grammars over one model's tokens; making it takes a second of a large vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Take what tokens stand for.

        Args:
          tokenizer: of the model.
          vocab: rows of its logits, which may be more than it has tokens.
        """
        from llguidance import LLTokenizer

        spelling = tokenizer.spelling
        tokens = [spelling.data(token) for token in range(vocab)]
        # An end of its own: the model's, which differ by request, are added to each mask.
        special = [*(token for token in spelling.special if token < vocab), vocab]
        for token in special[:-1]:
            tokens[token] = (spelling.name(token) or "").encode()
        wrapped: Any = _Vocabulary([*tokens, b"<|end|>"], special, vocab, tokenizer.encode)
        self.vocab = vocab
        self._tokens = LLTokenizer(wrapped, n_vocab=vocab + 1, eos_token=vocab)

    def begin(self, grammar: str, drawn: Sequence[int]) -> Constraint:
        """Return a text's constraint.

        Args:
          grammar: in llguidance's form; one with faults fails at the first token.
          drawn: the text's tokens so far.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        for token in drawn:
            matcher.consume_token(token)
        return Constraint(matcher, self.vocab)


class Constraint:
    """State of one text in its grammar, a `c2c.transformer.stays.Constraint`."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    @property
    def has_failed(self) -> bool:
        """True if the grammar has faults, or was too much to follow."""
        return bool(self._matcher.is_error())

    def mask(self, ends: Collection[int]) -> np.ndarray:
        """Return the mask of allowed next tokens: uint32 [words], one bit a token.

        Args:
          ends: tokens that end the text, allowed wherever the grammar is satisfied.
        """
        if self.has_failed:  # which is told with the next token
            return np.full(words(self._vocab), 2**32 - 1, np.uint32)
        found = np.zeros(words(self._vocab), np.uint32)
        found[:] = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(found)]
        if self._matcher.is_accepting():
            for token in ends:
                found[token // 32] |= np.uint32(1 << token % 32)
        return found

    def take(self, token: int) -> bool:
        """Go on by a token that was drawn; return whether nothing more can follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
