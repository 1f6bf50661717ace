"""Block table of a run's prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from c2c.errors import SettingError
from c2c.serving.tables.block_table import new_blocks
from c2c.serving.tables.costs import FULL
from c2c.serving.tables.state import Serving

if TYPE_CHECKING:
    from c2c.serving.prepare import Prepared

__all__ = ["with_blocks"]

# Entries at most: of 72 bytes each, and only those that are used take memory.
_MOST_ROWS: Final = 1 << 26


def with_blocks(
    prepared: Prepared, state: Serving, block_tokens: int, most: int, *, tells: bool = False
) -> Serving:
    """Return the state with a table of blocks, and `most` columns a prompt.

    Args:
      most: most blocks of a prompt.
      tells: whether the backend hears of dropped blocks.

    Raises:
      SettingError: another block size.
    """
    blocks, slots = state.blocks, len(state.request)
    size = int(blocks.table[0].block_tokens)
    if size == block_tokens:
        return state._replace(blocks=blocks.grown(slots, most))
    if size > 0:
        raise SettingError("workload", f"blocks of {block_tokens} tokens", f"of {size}, as before")
    fleet, cache = prepared.fleet, prepared.setup.system.prefix_cache
    token_bytes = fleet.costs.kv_bytes * fleet.costs.holds[:, FULL]
    chips = len(state.chip)
    largest = fleet.kv_capacity_bytes.max(0)[prepared.kind_of].sum()
    total = float(largest) + chips * cache.host_bytes
    rows = int(total / (block_tokens * float(token_bytes.min()))) + 4096
    return state._replace(
        blocks=new_blocks(
            len(state.device) + chips,
            np.full(chips, cache.host_bytes),
            rows=min(rows, _MOST_ROWS),
            slots=slots,
            most=most,
            block_tokens=block_tokens,
            keeps_hbm=cache.hbm,
            tells=tells,
        )
    )
