"""Keys of the blocks of a prompt: each stands for its model and for all tokens up to its end."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from c2c.transformer.pages import PAGE_TOKENS

__all__ = ["block_keys"]

_BYTES = 4 * PAGE_TOKENS  # of a block's tokens


def block_keys(model: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the keys of a prompt's whole blocks that end before its last token.

    That token's step draws the first one of the answer, so it is always computed; nothing is ever
    written to a block that has a key.

    Args:
      model: its name; models share no blocks.
      ids: the prompt.

    Returns:
      A signed number of 64 bits for each block of 64 tokens, the first of its chained hash's.
    """
    tokens = np.asarray(ids, "<i4").tobytes()
    link = blake2b(model.encode(), digest_size=16).digest()
    keys = []
    for first in range(0, (len(ids) - 1) // PAGE_TOKENS * _BYTES, _BYTES):
        link = blake2b(tokens[first : first + _BYTES], key=link, digest_size=16).digest()
        keys.append(int.from_bytes(link[:8], "little", signed=True))
    return tuple(keys)
