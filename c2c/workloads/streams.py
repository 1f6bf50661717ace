"""Named random streams, one per cause: draws for one purpose never change another's."""

from __future__ import annotations

import zlib

import numpy as np

__all__ = ["stream_of"]


def stream_of(seed: int, cause: str, *keys: int) -> np.random.Generator:
    """Return the generator for a cause, e.g. `stream_of(seed, "arrivals", model, day)`.

    Equal arguments give equal streams; any difference gives an independent one.
    """
    return np.random.default_rng(
        np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(cause.encode()), *keys))
    )
