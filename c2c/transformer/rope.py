"""Rotary position embedding."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import ModelSpec

__all__ = ["angles", "frequencies", "rotate"]


def frequencies(spec: ModelSpec) -> np.ndarray:
    """Return the angle per position of each pair, float32 [head_dim / 2].

    Every step is rounded to float32, as in the reference implementation: at position 8000 an ulp
    of a frequency is 5e-4 of an angle.
    """
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float32) / np.float32(spec.head_dim)
    powers = np.power(float(spec.rope_theta), exponents.astype(np.float64)).astype(np.float32)
    turns = np.float32(1.0) / powers
    scaling = spec.rope_scaling
    if scaling is None:
        return turns
    slow = turns / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return slow
    # llama3: long wavelengths are slowed down, short ones kept, those between interpolated
    wavelength = np.float32(2 * math.pi) / turns
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_max_position
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * slow + smooth * turns
    chosen = np.where(wavelength > original / low, slow, between)
    return np.where(wavelength < original / high, turns, chosen).astype(np.float32)


def angles(positions: jax.Array, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    """Return cosine and sine of every pair at positions [N]: float32 [N, head_dim / 2]."""
    angle = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies(spec))
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Turn heads [N, heads, head_dim]; element i is paired with element i + head_dim / 2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    turned = jnp.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine], axis=-1
    )
    return turned.astype(x.dtype)
