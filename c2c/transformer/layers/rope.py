"""Rotary position embedding."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import ModelSpec, RopeScaling

__all__ = [
    "KINDS",
    "angles",
    "context_tokens",
    "depends_on_length",
    "frequencies",
    "rotate",
    "turned",
]

KINDS = ("linear", "llama3", "yarn", "longrope", "dynamic")
_BY_LENGTH = ("longrope", "dynamic")

_one = np.float32(1.0)


def depends_on_length(spec: ModelSpec) -> bool:
    """Return whether frequencies depend on length: a prompt is then one call."""
    return spec.rope_scaling is not None and spec.rope_scaling.kind in _BY_LENGTH


def context_tokens(spec: ModelSpec) -> int:
    """Return the longest supported sequence."""
    scaling, most = spec.rope_scaling, spec.max_position
    if scaling is not None:
        most = max(most, int(scaling.factor * scaling.original_max_position))
    return min(most, spec.plain_tokens or most)


def turned(spec: ModelSpec) -> int:
    """Return the first, rotated values of a head."""
    return spec.latent.rope_dim if spec.latent else int(spec.head_dim * spec.rotary_fraction)


def frequencies(spec: ModelSpec) -> np.ndarray:
    """Return each pair's angle per position, float32 [turned / 2], unscaled.

    Steps are rounded to float32, as in the reference.
    """
    powers = np.power(float(spec.rope_theta), _exponents(spec).astype(np.float64))
    powers = powers.astype(np.float32)
    turns = _one / powers
    scaling = spec.rope_scaling
    if scaling is None or scaling.kind == "dynamic":
        return turns
    if scaling.kind == "longrope":
        return _one / (np.asarray(scaling.short_factor, np.float32) * powers)
    if scaling.kind == "yarn":
        share = _kept(spec, scaling)
        slow = _one / (np.float32(scaling.factor) * powers)
        return np.asarray(slow * (_one - share) + turns * share, np.float32)
    slow = turns / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return slow
    # llama3: long wavelengths are slowed down, short ones kept, others interpolated
    wavelength = np.float32(2 * math.pi) / turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_max_position
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * slow + smooth * turns
    chosen = np.where(wavelength > original / low, slow, between)
    return np.where(wavelength < original / high, turns, chosen).astype(np.float32)


def angles(
    positions: jax.Array, lengths: jax.Array, spec: ModelSpec
) -> tuple[jax.Array, jax.Array]:
    """Return cosine and sine of every pair: float32 [N, turned / 2].

    If windowed layers have other frequencies: [2, N, turned / 2], windowed layers last.

    Source: "yarn": YaRN (arXiv:2309.00071) section 3.4, "dynamic": section 3.3, "longrope":
    LongRoPE (arXiv:2402.13753); parameters as in Hugging Face transformers.
    """
    if spec.local_rope_theta:
        local = replace(spec, rope_theta=spec.local_rope_theta, rope_scaling=None)
        kinds = (replace(spec, local_rope_theta=0.0), replace(local, local_rope_theta=0.0))
        tables = [angles(positions, lengths, kind) for kind in kinds]
        return jnp.stack([pair[0] for pair in tables]), jnp.stack([pair[1] for pair in tables])
    turns = jnp.asarray(frequencies(spec))
    if depends_on_length(spec):
        turns = _of_length(turns, lengths, spec)
    angle = positions.astype(jnp.float32)[:, None] * turns
    scale = 1.0 if spec.rope_scaling is None else spec.rope_scaling.attention_factor
    if scale == 1.0:
        return jnp.cos(angle), jnp.sin(angle)
    return jnp.cos(angle) * jnp.float32(scale), jnp.sin(angle) * jnp.float32(scale)


def rotate(
    x: jax.Array, cosine: jax.Array, sine: jax.Array, *, interleaved: bool = False
) -> jax.Array:
    """Rotate the first values of heads [N, heads, head_dim], paired by halves or neighbours."""
    pairs = cosine.shape[-1]
    wide, rest = x[..., : 2 * pairs].astype(jnp.float32), x[..., 2 * pairs :]
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = jnp.split(wide, 2, axis=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    both = first * cosine - second * sine, second * cosine + first * sine
    if interleaved:
        done = jnp.stack(both, axis=-1).reshape(wide.shape)
    else:
        done = jnp.concatenate(both, axis=-1)
    done = done.astype(x.dtype)
    return jnp.concatenate([done, rest], axis=-1) if rest.shape[-1] else done


def _exponents(spec: ModelSpec) -> np.ndarray:
    return np.arange(0, turned(spec), 2, dtype=np.float32) / np.float32(turned(spec))


def _kept(spec: ModelSpec, scaling: RopeScaling) -> np.ndarray:
    def pair(turns: float) -> float:
        wavelength = scaling.original_max_position / (turns * 2 * math.pi)
        return turned(spec) * math.log(wavelength) / (2 * math.log(spec.rope_theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned(spec) - 1)
    if low == high:
        high += 0.001
    pairs = np.arange(turned(spec) // 2, dtype=np.float32)
    ramp = (pairs - np.float32(low)) / np.float32(high - low)
    return np.asarray(_one - np.clip(ramp, 0, 1), np.float32)


def _of_length(turns: jax.Array, lengths: jax.Array, spec: ModelSpec) -> jax.Array:
    scaling = spec.rope_scaling
    assert scaling is not None
    original = scaling.original_max_position
    beyond = (lengths > original)[:, None]
    exponents = _exponents(spec)
    if scaling.kind == "longrope":
        powers = np.power(float(spec.rope_theta), exponents.astype(np.float64)).astype(np.float32)
        slow = _one / (np.asarray(scaling.long_factor, np.float32) * powers)
        return jnp.where(beyond, slow, turns)
    # dynamic: the base grows with the length
    times = scaling.factor * lengths.astype(jnp.float32) / original - (scaling.factor - 1.0)
    grown = jnp.maximum(times, 1.0) ** np.float32(turned(spec) / (turned(spec) - 2))
    base = jnp.float32(spec.rope_theta) * grown
    return jnp.where(beyond, 1.0 / base[:, None] ** exponents, turns)
