"""The next token of every row of a batch, each with settings and a seed of its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.errors import SettingError

__all__ = ["Sampling", "SamplingRows", "penalised", "sample", "sampling_rows"]


_ALL = 2**31 - 1  # more tokens than any vocabulary has
_REALS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's way of drawing tokens.

    Attributes:
      temperature: divides the logits; 0 takes the largest.
      top_k: only the k largest logits (and those equal to the k-th); 0 for all.
      top_p: only the fewest tokens whose probabilities reach p together.
      min_p: only tokens at least so likely as this share of the likeliest one's probability.
      repetition_penalty: divides positive and multiplies negative logits of tokens that the
        sequence holds already, prompt included.
      presence_penalty: is taken from the logits of tokens that the answer holds.
      frequency_penalty: likewise, for each time that it does.
      logit_bias: is added to the logits of these tokens.
      seed: equal seeds give equal draws, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        finite = "a finite number"
        for name, fine, allowed in (
            ("temperature", 0 <= self.temperature < math.inf, "a number from 0"),
            ("top_k", self.top_k >= 0 and self.top_k == int(self.top_k), "a whole number from 0"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0, up to 1"),
            ("min_p", 0 <= self.min_p <= 1, "a number from 0 to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
            ("presence_penalty", math.isfinite(self.presence_penalty), finite),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), finite),
            ("logit_bias", all(map(math.isfinite, self.logit_bias.values())), "finite numbers"),
            ("seed", 0 <= self.seed < 2**64, "a whole number from 0 to 2**64 - 1"),
        ):
            if not fine:
                raise SettingError(f"sampling.{name}", getattr(self, name), allowed)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The settings of a batch, in as few arrays as there are kinds: each goes to the device.

    Attributes:
      reals: float32 [rows, 6].
      words: uint32 [rows, 3], top_k and both halves of the seed.
    """

    reals: Any
    words: Any

    def real(self, name: str) -> Any:
        """Return one of the settings that are no whole numbers: float32 [rows]."""
        return self.reals[..., _REALS.index(name)]

    @property
    def top_k(self) -> Any:
        """Of all rows."""
        return self.words[..., 0]

    @property
    def changes(self) -> Any:
        """True if a row's logits depend on tokens that its sequence holds."""
        return (
            (self.real("repetition_penalty") != 1)
            | (self.real("presence_penalty") != 0)
            | (self.real("frequency_penalty") != 0)
        )


def sampling_rows(rows: Sequence[Sampling]) -> SamplingRows:
    """Return the settings of a batch as arrays."""
    return SamplingRows(
        reals=np.array([[getattr(r, name) for name in _REALS] for r in rows], np.float32),
        words=np.array(
            [(min(r.top_k, _ALL), r.seed >> 32, r.seed & 0xFFFFFFFF) for r in rows], np.uint32
        ),
    )


def penalised(logits: jax.Array, settings: SamplingRows, held: jax.Array) -> jax.Array:
    """Return the logits of each row, less what its penalties take.

    Args:
      logits: float32 [rows, vocab].
      settings: of the rows.
      held: int16 [rows, vocab], 2 for each time that the row's answer holds a token, and 1 more
        where its prompt does.
    """
    repetition, presence, frequency = (
        settings.real(f"{name}_penalty")[:, None]
        for name in ("repetition", "presence", "frequency")
    )
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    count = held >> 1
    taken = frequency * count + jnp.where(count > 0, presence, 0)
    return jnp.subtract(jnp.where(held > 0, repeated, logits), taken)


@functools.partial(jax.jit, static_argnames=("hot",))
def sample(
    logits: jax.Array, settings: SamplingRows, step: jax.Array, *, hot: bool = True
) -> jax.Array:
    """Draw the next token of each row.

    Temperature comes first, then top_k, top_p and min_p, in the order of the reference library.
    Ties of the largest logit go to the lowest token.

    Args:
      logits: float32 [rows, vocab], penalties included.
      settings: of the rows.
      step: int32 [rows], how many tokens the row has drawn; makes the draw unique.
      hot: whether any temperature is above 0; False spares the sorting.

    Returns:
      int32 [rows].
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if not hot:
        return greedy
    temperature = settings.real("temperature")
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)[:, None]
    # Sorting a vocabulary takes a CPU as long as a small model's step.
    limited = jnp.any((temperature > 0) & ((settings.top_k > 0) | (settings.real("top_p") < 1)))
    keep = lax.cond(
        limited, jax.vmap(_kept), lambda scaled, _: jnp.ones(scaled.shape, bool), scaled, settings
    )
    least = jnp.max(scaled, axis=-1) + jnp.log(settings.real("min_p"))
    keep &= scaled >= least[:, None]
    drawn = jax.vmap(_draw)(jnp.where(keep, scaled, -jnp.inf), settings.words[:, 1:], step)
    return jnp.where(temperature > 0, drawn, greedy)


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
    top_p = settings.real("top_p")
    keep = (falling > -jnp.inf) & ((before < top_p) | (top_p >= 1))
    return jnp.zeros(vocab, bool).at[order].set(keep, unique_indices=True)


def _draw(scaled: jax.Array, seed: jax.Array, step: jax.Array) -> jax.Array:
    """Draw the next token of one row; its noise is by token, whatever else may be drawn.

    Both halves of a seed are the key: of seeds below 2**32 it is what `jax.random.key` makes.
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), step)
    return jax.random.categorical(key, scaled).astype(jnp.int32)
