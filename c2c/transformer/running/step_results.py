"""Results of a step, and their transfer to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.transformer.running.sampling_stages import Score
from c2c.transformer.running.stays import Stay

__all__ = ["Drawn", "Prompt", "prompt_scores", "score_of", "tokens_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Tokens drawn by a call, on the device."""

    rows: tuple[tuple[Stay, int], ...]  # who draws, and in which row
    tokens: Any  # where nobody draws: what is there once the call is over
    scores: tuple[Any, Any, Any] | None
    prompt: Prompt | None = None
    hidden: tuple[Any, int] | None = None  # output of the last layer, and whose row is returned


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Scores of a chunk on the device, in equal parts."""

    stay: Stay
    first: int  # prompt position of the first scored token
    counts: tuple[int, ...]
    parts: tuple[tuple[Any, Any, Any], ...]


def tokens_of(drawn: Drawn) -> np.ndarray:
    """Wait for a call's tokens and return them."""
    if drawn.rows:
        return np.asarray(drawn.tokens)
    drawn.tokens.block_until_ready()
    return np.zeros(0, np.int32)


def prompt_scores(prompt: Prompt) -> tuple[int, int, tuple[Score, ...]]:
    """Return a request, first scored position, and scores."""
    count = prompt.stay.prompt_scores
    assert count is not None
    scores = [
        score_of(arrays, row, count)
        for rows, part in zip(prompt.counts, prompt.parts, strict=True)
        for arrays in (tuple(map(np.asarray, part)),)
        for row in range(rows)
    ]
    return prompt.stay.request, prompt.first, tuple(scores)


def score_of(scores: Sequence[np.ndarray], row: int, count: int) -> Score:
    """Return a row's score and the most likely ones."""
    logprob, which, top = scores
    pairs = zip(which[row, :count].tolist(), top[row, :count].tolist(), strict=True)
    return Score(logprob=float(logprob[row]), top=tuple(pairs))
