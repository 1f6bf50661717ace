"""The next token of every row of a batch, each with settings and a seed of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.errors import SettingError

__all__ = ["Sampling", "SamplingRows", "sample", "sampling_rows"]


_ALL = 2**31 - 1  # more tokens than any vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one request draws its tokens.

    Attributes:
      temperature: divides the logits; 0 takes the largest.
      top_k: only the k largest logits (and those equal to the k-th); 0 for all.
      top_p: only the fewest tokens whose probabilities reach p together.
      repetition_penalty: divides positive and multiplies negative logits of tokens that the
        sequence holds already, prompt included.
      seed: equal seeds give equal draws, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, fine, allowed in (
            ("temperature", 0 <= self.temperature < float("inf"), "a number from 0"),
            ("top_k", self.top_k >= 0 and self.top_k == int(self.top_k), "a whole number from 0"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0, up to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0"),
            ("seed", 0 <= self.seed < 2**32, "a whole number from 0 to 2**32 - 1"),
        ):
            if not fine:
                raise SettingError(f"sampling.{name}", getattr(self, name), allowed)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The settings of a batch: arrays [rows] of what `Sampling` names."""

    temperature: Any
    top_k: Any
    top_p: Any
    repetition_penalty: Any
    seed: Any


def sampling_rows(rows: Sequence[Sampling]) -> SamplingRows:
    """Return the settings of a batch as arrays."""
    kinds = {"top_k": np.int32, "seed": np.uint32}
    values = {f.name: [getattr(r, f.name) for r in rows] for f in fields(Sampling)}
    values["top_k"] = [min(k, _ALL) for k in values["top_k"]]
    return SamplingRows(
        **{name: np.array(row, kinds.get(name, np.float32)) for name, row in values.items()}
    )


@functools.partial(jax.jit, static_argnames=("hot",))
def sample(
    logits: jax.Array,
    settings: SamplingRows,
    step: jax.Array,
    seen: jax.Array,
    *,
    hot: bool = True,
) -> jax.Array:
    """Draw the next token of each row.

    The penalty comes first, then temperature, top_k and top_p, in the order of the reference
    library. Ties of the largest logit go to the lowest token.

    Args:
      logits: float32 [rows, vocab].
      settings: of the rows.
      step: int32 [rows], how many tokens the row has drawn; makes the draw unique.
      seen: bool [rows, vocab], tokens that the row's sequence holds.
      hot: whether any temperature is above 0; False spares the sorting.

    Returns:
      int32 [rows].
    """
    penalty = settings.repetition_penalty[:, None]
    penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(seen, penalised, logits)
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if not hot:
        return greedy
    hotness = jnp.where(settings.temperature > 0, settings.temperature, 1.0)
    scaled = logits / hotness[:, None]
    # Sorting a vocabulary takes a CPU as long as a small model's step.
    limited = jnp.any((settings.temperature > 0) & ((settings.top_k > 0) | (settings.top_p < 1)))
    keep = lax.cond(
        limited, jax.vmap(_kept), lambda scaled, _: jnp.ones(scaled.shape, bool), scaled, settings
    )
    drawn = jax.vmap(_draw)(jnp.where(keep, scaled, -jnp.inf), settings.seed, step)
    return jnp.where(settings.temperature > 0, drawn, greedy)


def _kept(scaled: jax.Array, settings: SamplingRows) -> jax.Array:
    """Return which tokens of one row top_k and top_p leave: bool [vocab]."""
    vocab = scaled.shape[0]
    order = jnp.argsort(-scaled, stable=True)
    falling = scaled[order]
    count = jnp.where(settings.top_k > 0, jnp.minimum(settings.top_k, vocab), vocab)
    falling = jnp.where(falling >= falling[count - 1], falling, -jnp.inf)
    chances = jax.nn.softmax(falling)
    before = jnp.cumsum(chances) - chances
    # The first token always stays. At 1 all do: rounding must not cut the tail off.
    keep = (falling > -jnp.inf) & ((before < settings.top_p) | (settings.top_p >= 1))
    return jnp.zeros(vocab, bool).at[order].set(keep, unique_indices=True)


def _draw(scaled: jax.Array, seed: jax.Array, step: jax.Array) -> jax.Array:
    """Draw the next token of one row; its noise is by token, whatever else may be drawn."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.categorical(key, scaled).astype(jnp.int32)
