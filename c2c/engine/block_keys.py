"""Keys of prompt blocks, by model and all tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from c2c.transformer.layers.pages import PAGE_TOKENS

__all__ = ["block_keys"]

_BYTES = 4 * PAGE_TOKENS  # of a block's tokens


def block_keys(model: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the keys of a prompt's whole blocks of 64 tokens before its last token.

    A key is signed, the first 8 bytes of the block's chained hash.
    """
    tokens = np.asarray(ids, "<i4").tobytes()
    link = blake2b(model.encode(), digest_size=16).digest()
    keys = []
    for first in range(0, (len(ids) - 1) // PAGE_TOKENS * _BYTES, _BYTES):
        link = blake2b(tokens[first : first + _BYTES], key=link, digest_size=16).digest()
        keys.append(int.from_bytes(link[:8], "little", signed=True))
    return tuple(keys)
