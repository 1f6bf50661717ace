"""What a runner draws with, as stages: all of it stays on the device and feeds the next step."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from c2c.transformer.executables import Stage
from c2c.transformer.sampling import SamplingRows, sample

__all__ = ["BARRED", "DRAW", "FEED", "SCORE", "SEAT", "Score"]

BARRED = 8  # tokens at most that a request can bar from its first draws
SCORED = 20  # most likely tokens that are told, beside the drawn one


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How likely a token was, before temperature and limits, and which were the likeliest."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # tokens and theirs, falling


def _feed(given: jax.Array, drawn: jax.Array, source: jax.Array) -> jax.Array:
    """Return the tokens of a step: those given, or what a seat drew last."""
    return jnp.where(source >= 0, jnp.take(drawn, jnp.maximum(source, 0)), given)


def _seat(seen: jax.Array, seat: jax.Array, row: jax.Array) -> jax.Array:
    """Return which tokens each seat's sequence holds, with those of a new one."""
    return seen.at[seat].set(row)


def _draw(
    logits: jax.Array,
    seen: jax.Array,
    drawn: jax.Array,
    rows: SamplingRows,
    step: jax.Array,
    seats: jax.Array,
    barred: jax.Array,
    *,
    hot: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next token of each row, which tokens each seat holds, and what each drew last.

    Args:
      logits: float32 [R, vocab].
      seen: bool [seats, vocab].
      drawn: int32 [seats].
      rows: settings [R].
      step: int32 [R], how many tokens each row has drawn.
      seats: int32 [R]; of a row that draws nothing, one that there is not.
      barred: int32 [R, BARRED], tokens that are not drawn now; those that there are not bar none.
      hot: whether any temperature is above 0.
    """
    where = jnp.arange(logits.shape[0])[:, None]
    logits = lax.cond(
        jnp.any(barred < logits.shape[1]),
        lambda given: given.at[where, barred].set(-jnp.inf, mode="drop"),
        lambda given: given,
        logits,
    )
    token = sample(logits, rows, step, jnp.take(seen, seats, axis=0, mode="clip"), hot=hot)
    seen = seen.at[seats, token].set(True, mode="drop")
    return token, seen, drawn.at[seats].set(token, mode="drop")


def _score(logits: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the log-probability of each row's token, and the likeliest tokens with theirs."""
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    own = jnp.take_along_axis(logits, token[:, None], axis=-1) - total
    top, which = lax.top_k(logits, min(SCORED, logits.shape[1]))
    return own[:, 0], which, top - total


FEED = Stage(name="feed", function=_feed)
SEAT = Stage(name="seat", function=_seat, donated=(0,))
DRAW = Stage(name="draw", function=_draw, donated=(1, 2), static=("hot",))
SCORE = Stage(name="score", function=_score)
