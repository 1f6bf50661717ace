"""Requests in a runner, and a call's arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from c2c.transformer.running.sampling import Sampling
from c2c.transformer.running.sampling_stages import MOST_HELD

__all__ = ["Constraint", "Ended", "Laid", "Stay", "Step"]

Ended = Literal["stop", "length", "grammar", "not_finite"]  # the grammar or the logits failed


class Constraint(Protocol):
    """Grammar state of one request's answer."""

    @property
    def has_failed(self) -> bool:
        """True if it cannot restrict tokens any more."""

    def mask(self, ends: Collection[int]) -> np.ndarray:
        """Return allowed tokens as bits, uint32 [vocab // 32 + 1]; `ends` end the answer."""

    def take(self, token: int) -> bool:
        """Take a drawn token; return whether the answer is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Input of one call.

    Attributes:
      fill: request and number of its next prompt tokens.
      decode: requests that decode one token.
    """

    fill: tuple[int, int] | None = None
    decode: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Stay:
    """A request from `submit` to its end; results are its own, not its id's."""

    request: int
    ids: Sequence[int]
    new: int  # maximum further tokens
    before: int  # earlier draws
    sampling: Sampling
    stop: Collection[int]
    seat: int
    least: int = 0  # draws before which stop tokens are barred
    scores: int | None = None  # number of most likely tokens to return; None: no scores
    prompt_scores: int | None = None  # the same for each prompt position
    embeds: bool = False  # whether the hidden state of the prompt's last token is returned
    constraint: Constraint | None = None  # grammar of the answer
    keys: Sequence[int] = ()  # keys of the prompt's first blocks, for prefix sharing
    shared: int = 0  # of these, those that others find
    filled: int = 0  # prompt tokens computed or reused
    started: int = 0  # started draws
    got: list[int] = field(default_factory=list)

    def ends_with(self, tokens: int) -> bool:
        """Return whether these tokens end an embedded prompt."""
        return self.embeds and self.filled + tokens == len(self.ids)

    def stored(self, step: Step) -> int:
        """Return the stored positions after a step."""
        if step.fill is not None and step.fill[0] == self.request:
            return self.filled + step.fill[1]
        return len(self.ids) + self.started

    @property
    def written(self) -> int:
        """Stored positions after all started steps."""
        past = self.filled == len(self.ids)
        return len(self.ids) + self.started - 1 if past else self.filled

    def held(self, vocab: int) -> np.ndarray:
        """Return tokens' first occurrence, see `penalised`: int16 [vocab]."""
        prompt = len(self.ids) - self.before
        counts = 2 * np.bincount(self.ids[prompt:], minlength=vocab)
        counts[np.asarray(self.ids[:prompt])] += 1
        return np.minimum(counts, MOST_HELD).astype(np.int16)

    def biases(self) -> list[tuple[int, float]]:
        """Return the logit biases; -inf bars a token at first."""
        return [*self.sampling.logit_bias.items(), *((token, -np.inf) for token in self.barred)]

    @property
    def barred(self) -> Collection[int]:
        """Tokens that the next draw may not return."""
        return self.stop if self.before + self.started < self.least else ()

    @property
    def stands(self) -> tuple[int, int, int, int]:
        """State for the next draw, see `DRAW`."""
        biased = len(self.sampling.logit_bias) + len(self.barred)
        return self.before + self.started, self.seat, self.least, biased


class Laid:
    """Arrays of a call: a chunk, then rows of one token; padding is -1."""

    def __init__(self, *, chunk: int, decode_rows: int, width: int, draws: int) -> None:
        count, self._first = chunk + decode_rows, int(chunk > 0)
        self.chunk, self.decode_rows, self.width = chunk, decode_rows, width
        self.given = np.zeros(count, np.int32)
        self.source = np.full(count, -1, np.int32)  # seats whose last token it is
        self.positions = np.full(count, -1, np.int32)
        self.rows: list[Stay | None] = [None] * (self._first + decode_rows)  # of block tables
        self.wanted = np.zeros(draws, np.int32)
        self.drawing: list[Stay | None] = [None] * draws

    def fill(self, stay: Stay, tokens: int) -> None:
        """Add a prompt's next tokens."""
        first, past = stay.filled, stay.filled + tokens
        if past > len(stay.ids):
            raise ValueError(f"request {stay.request}: {past} prompt tokens, it has fewer")
        self.given[:tokens] = stay.ids[first:past]
        self.positions[:tokens] = np.arange(first, past)
        self.rows[0] = stay
        if past == len(stay.ids):
            self.wanted[0], self.drawing[0] = tokens - 1, stay

    def decode(self, stay: Stay, row: int) -> None:
        """Add a request's decode of its last token."""
        if not stay.started or stay.filled < len(stay.ids):
            raise ValueError(f"request {stay.request}: its prompt is not computed yet")
        index, row = self.chunk + row, self._first + row
        self.source[index] = stay.seat
        self.positions[index] = len(stay.ids) + stay.started - 1
        self.rows[row] = stay
        self.wanted[row], self.drawing[row] = index, stay
