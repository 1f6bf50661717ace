"""Requests of random tokens and lengths."""

from __future__ import annotations

import numpy as np

from c2c.transformer import Request

__all__ = ["random_requests"]


def random_requests(count: int, *, prompt: int, new: int, vocab: int, seed: int) -> list[Request]:
    """Return `count` requests of random tokens and lengths."""
    g = np.random.default_rng(seed)
    return [
        Request(
            ids=tuple(g.integers(0, vocab, int(g.integers(1, prompt + 1))).tolist()),
            max_new_tokens=int(g.integers(1, new + 1)),
        )
        for _ in range(count)
    ]
