"""Independent random streams by cause."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["stream_of"]


def stream_of(seed: int, cause: str, *keys: int) -> np.random.Generator:
    """Return a cause's independent generator: `stream_of(seed, "arrivals", model, day)`."""
    return np.random.default_rng(
        np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(cause.encode()), *keys))
    )
