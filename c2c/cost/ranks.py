"""Step costs of several equal GPUs as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from c2c.cost.step import StepTable
from c2c.hardware import Ranks
from c2c.models import ModelSpec

__all__ = ["all_reduce_s", "ranks_table"]

Values = npt.NDArray[np.float64]
ACTIVATION_BYTES = 2  # bytes of a summed value, also if GEMMs use narrower ones


def all_reduce_s(nbytes: npt.ArrayLike, ranks: Ranks) -> Values:
    """Return the seconds of an all-reduce of bytes, any shape."""
    sizes = np.asarray(nbytes, np.float64)
    return np.where(
        sizes > 0, ranks.latency_s + _wire_bytes(sizes, ranks) / (ranks.gbps * 1e9), 0.0
    )


def ranks_table(table: StepTable, spec: ModelSpec, ranks: Ranks) -> StepTable:
    """Return all ranks' step costs, with collectives that overlap nothing.

    Seconds are per rank; bytes and the link's rate are sums over the ranks.

    Args:
      table: of one rank, alone on its link.
    """
    n, width = ranks.count, max(spec.dtype_bytes, ACTIVATION_BYTES)
    tokens, rows = np.arange(table.max_tokens + 1.0), np.arange(table.max_rows + 1.0)
    sums, one = 2 * spec.layers + 1, tokens * spec.hidden * width
    logits = rows * spec.vocab * width / 2  # an all-gather sends half the bytes of an all-reduce
    wire = wire_of_head = np.zeros(1)
    if ranks.over_link:
        wire, wire_of_head = n * sums * _wire_bytes(one, ranks), n * _wire_bytes(logits, ranks)
    return replace(
        table,
        body_s=table.body_s + (sums * all_reduce_s(one, ranks))[:, None],
        body_link_bytes=n * table.body_link_bytes + wire[:, None],
        body_hbm_bytes=n * table.body_hbm_bytes,
        head_s=table.head_s + all_reduce_s(logits, ranks)[:, None],
        head_link_bytes=n * table.head_link_bytes + wire_of_head[:, None],
        head_hbm_bytes=n * table.head_hbm_bytes,
        kv_bytes_per_token=n * table.kv_bytes_per_token,
        link_cap_gbps=n * table.link_cap_gbps,
    )


def _wire_bytes(nbytes: Values, ranks: Ranks) -> Values:
    """Return the bytes sent, and received, by a rank in an all-reduce."""
    return 2.0 * (ranks.count - 1) / ranks.count * nbytes
