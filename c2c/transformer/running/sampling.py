"""Token sampling, with settings and a seed per row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.ranges import AboveZero, Finite, FromZero, In, Index, Share, SomeShare, check_fields

__all__ = ["Sampling", "SamplingRows", "penalised", "sample", "sampling_rows"]


_ALL = 2**31 - 1  # more tokens than any vocabulary has
# Beyond these float32 overflows. A colder row takes the largest logit anyway, and a stronger
# penalty orders tokens alike.
_COLDEST = 1e-25
_REPETITION = (1e-6, 1e6)
_REALS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of one request.

    Attributes:
      temperature: divisor of the logits; 0 selects the largest.
      top_k: limit to the k largest logits (and ties); 0 for all.
      top_p: limit to the fewest tokens whose probabilities sum to p.
      min_p: lowest probability, as a share of the largest.
      repetition_penalty: divisor of positive, factor of negative logits of the sequence's tokens,
        prompt included.
      presence_penalty: subtracted from logits of the answer's tokens.
      frequency_penalty: likewise, for each occurrence.
      logit_bias: added to logits of these tokens.
      seed: equal seeds give equal draws in any batch.
    """

    temperature: FromZero = 0.0
    top_k: Index = 0
    top_p: SomeShare = 1.0
    min_p: Share = 0.0
    repetition_penalty: AboveZero = 1.0
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    logit_bias: Mapping[int, Finite] = field(default_factory=dict)
    seed: Annotated[int, In("[0, 2**64)")] = 0

    def __post_init__(self) -> None:
        check_fields(self, "sampling")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Sampling settings of a batch.

    Attributes:
      reals: float32 [rows, 6].
      words: uint32 [rows, 3], top_k and both halves of the seed.
    """

    reals: Any
    words: Any

    def real(self, name: str) -> Any:
        """Return one of the float settings: float32 [rows]."""
        return self.reals[..., _REALS.index(name)]

    @property
    def top_k(self) -> Any:
        """Value of top_k of all rows."""
        return self.words[..., 0]

    @property
    def changes(self) -> Any:
        """True if logits depend on earlier tokens."""
        return (
            (self.real("repetition_penalty") != 1)
            | (self.real("presence_penalty") != 0)
            | (self.real("frequency_penalty") != 0)
        )


def sampling_rows(rows: Sequence[Sampling]) -> SamplingRows:
    """Return the settings of a batch as arrays."""
    reals = np.array([[getattr(r, name) for name in _REALS] for r in rows], np.float64)
    temperature, repetition = (_REALS.index(n) for n in ("temperature", "repetition_penalty"))
    reals[:, temperature] *= reals[:, temperature] >= _COLDEST
    reals[:, repetition] = reals[:, repetition].clip(*_REPETITION)
    return SamplingRows(
        reals=reals.astype(np.float32),
        words=np.array(
            [(min(r.top_k, _ALL), r.seed >> 32, r.seed & 0xFFFFFFFF) for r in rows], np.uint32
        ),
    )


def penalised(logits: jax.Array, settings: SamplingRows, occurrences: jax.Array) -> jax.Array:
    """Return the logits with penalties."""
    repetition, presence, frequency = (
        settings.real(f"{name}_penalty")[:, None]
        for name in ("repetition", "presence", "frequency")
    )
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    count = occurrences >> 1
    taken = frequency * count + jnp.where(count > 0, presence, 0)
    return jnp.subtract(jnp.where(occurrences > 0, repeated, logits), taken)


@functools.partial(jax.jit, static_argnames=("hot",))
def sample(
    logits: jax.Array, settings: SamplingRows, step: jax.Array, *, hot: bool = True
) -> jax.Array:
    """Draw each row's next token: int32 [rows].

    The order is temperature, top_k, top_p, min_p. Ties of the largest go to the lowest token. A row
    with NaN or infinity gets -1.

    Args:
      logits: float32 [rows, vocab], penalties included.
      step: int32 [rows], tokens drawn.
      hot: False: no temperature above 0, no sorting.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    largest = jnp.take_along_axis(logits, greedy[:, None], axis=-1)[:, 0]
    greedy = jnp.where(largest < jnp.inf, greedy, -1)
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
    return jnp.where((temperature > 0) & (greedy >= 0), drawn, greedy)


def _kept(scaled: jax.Array, settings: SamplingRows) -> jax.Array:
    vocab = scaled.shape[0]
    order = jnp.argsort(-scaled, stable=True)
    falling = scaled[order]
    count = jnp.where(settings.top_k > 0, jnp.minimum(settings.top_k, vocab), vocab)
    falling = jnp.where(falling >= falling[count - 1], falling, -jnp.inf)
    chances = jax.nn.softmax(falling)
    before = jnp.cumsum(chances) - chances
    # The first token always stays: float32 takes a small top_p for 0. At 1 all do: rounding must
    # not cut the tail off.
    top_p = settings.real("top_p")
    keep = (falling > -jnp.inf) & ((before < top_p) | (top_p >= 1) | (jnp.arange(vocab) == 0))
    return jnp.zeros(vocab, bool).at[order].set(keep, unique_indices=True)


def _draw(scaled: jax.Array, seed: jax.Array, step: jax.Array) -> jax.Array:
    """Draw a row's token with noise per token; a seed below 2**32 equals `jax.random.key`."""
    key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), step)
    return jax.random.categorical(key, scaled).astype(jnp.int32)
