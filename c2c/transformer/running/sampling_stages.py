"""Sampling stages on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.transformer.executables import Stage
from c2c.transformer.running.sampling import SamplingRows, penalised, sample

__all__ = [
    "BIASED", "DRAW", "FEED", "MASK", "MOST_HELD", "SCORE", "SCORED", "SEAT", "Score", "Seats",
    "new_seats", "words",
]  # fmt: skip

BIASED = 1024  # maximum tokens that a request can bias, or bar from its first draws
MOST_HELD = 2**15 - 1  # 16,383 occurrences in an answer; more are not distinguished
SCORED = 20  # maximum most likely tokens returned beside the drawn one


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Log-probabilities before temperature and limits."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # tokens and theirs, falling


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Sampling state of each sequence, on the device.

    Attributes:
      held: int16 [seats, vocab], see `penalised`.
      drawn: int32 [seats], last drawn token.
      biased: int32 [seats, BIASED], tokens; ids outside the vocabulary are unused.
      bias: float32 [seats, BIASED], of their logits; -inf bars a token.
    """

    held: Any
    drawn: Any
    biased: Any
    bias: Any


def words(vocab: int) -> int:
    """Return a `MASK` row's words: a bit per token and one for the end."""
    return vocab // 32 + 1


def new_seats(seats: int, vocab: int) -> Seats:
    """Return unoccupied seats."""
    return Seats(
        held=np.zeros((seats, vocab), np.int16),
        drawn=np.zeros(seats, np.int32),
        biased=np.zeros((seats, BIASED), np.int32),
        bias=np.zeros((seats, BIASED), np.float32),
    )


def _feed(tokens: jax.Array, drawn: jax.Array, source: jax.Array) -> jax.Array:
    return jnp.where(source >= 0, jnp.take(drawn, jnp.maximum(source, 0)), tokens)


def _seat(
    seats: Seats,
    seat: jax.Array,
    occurrences: jax.Array,
    biased: jax.Array,
    bias: jax.Array,
) -> Seats:
    return Seats(
        held=seats.held.at[seat].set(occurrences),
        drawn=seats.drawn,
        biased=seats.biased.at[seat].set(biased),
        bias=seats.bias.at[seat].set(bias),
    )


def _draw(
    logits: jax.Array, seats: Seats, rows: SamplingRows, stands: jax.Array, *, hot: bool
) -> tuple[jax.Array, Seats]:
    step, seat, least, biased = stands.T

    def changed(logits: jax.Array) -> jax.Array:
        logits = lax.cond(jnp.any(biased > 0), with_bias, lambda logits: logits, logits)
        return penalised(logits, rows, jnp.take(seats.held, seat, axis=0, mode="clip"))

    def with_bias(logits: jax.Array) -> jax.Array:
        tokens, bias = (jnp.take(x, seat, axis=0, mode="clip") for x in (seats.biased, seats.bias))
        bias = jnp.where(jnp.isneginf(bias) & (step >= least)[:, None], 0, bias)
        row = jnp.arange(logits.shape[0])[:, None]
        return logits.at[row, tokens].add(bias, mode="drop")

    logits = lax.cond(jnp.any(rows.changes | (biased > 0)), changed, lambda logits: logits, logits)
    token = sample(logits, rows, step, hot=hot)
    count = seats.held.at[seat, token].get(mode="clip")
    counts = seats.held.at[seat, token].set(jnp.minimum(count, MOST_HELD - 2) + 2, mode="drop")
    drawn = seats.drawn.at[seat].set(jnp.maximum(token, 0), mode="drop")
    return token, replace(seats, held=counts, drawn=drawn)


def _mask(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    bits = (allowed[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return jnp.where(bits.reshape(len(logits), -1)[:, : logits.shape[1]] > 0, logits, -jnp.inf)


def _score(logits: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_prob = jnp.take_along_axis(logits, token[:, None], axis=-1) - total
    top, which = lax.top_k(logits, min(SCORED, logits.shape[1]))
    return log_prob[:, 0], which, top - total


FEED = Stage(name="feed", function=_feed)
SEAT = Stage(name="seat", function=_seat, donated=(0,))
DRAW = Stage(name="draw", function=_draw, donated=(1,), static=("hot",))
MASK = Stage(name="mask", function=_mask)
SCORE = Stage(name="score", function=_score)
