"""This project's step costs as the tables that a profile for vllm-sr-sim looks its own up in.

That simulator asks a GPU's profile for an iteration's time with so many requests of so many tokens
each on average, and for that of one chunk of a prompt. It knows nothing finer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from c2c.cost import StepTable
from experiments.bench.peers.vidur_costs import GRANULARITY, prefill_s

__all__ = ["COSTS", "write_costs"]

COSTS: Final = "fleet_sim.npz"


def write_costs(
    folder: Path, table: StepTable, *, chunk: int, max_batch: int, context: int
) -> None:
    """Write seconds into `folder`.

    `decode[n, i]` is a step of n decodes with i x GRANULARITY cached tokens each, `attention[n, i]`
    what of it is attention, and `prefill[i]` a step of one whole chunk after so many tokens.
    """
    n = np.arange(max_batch + 1)
    cached = np.arange(0, context + GRANULARITY + 1, GRANULARITY)
    attention = (
        table.decode_attention_s[n][:, None]
        + table.kv_read_s_per_token * n[:, None] * cached[None, :]
    )
    rest = table.step_overhead_s + table.body_s[n, 0] + table.head_s[n, 0]
    whole = table.step_overhead_s + float(table.body_s[chunk, 0] + table.head_s[1, 0])
    prefill = [whole + prefill_s(table, int(c) + chunk, chunk) for c in cached]
    np.savez(
        folder / COSTS, decode=rest[:, None] + attention, attention=attention,
        prefill=np.array(prefill),
    )  # fmt: skip
