"""This project's step costs as the lookup tables of a GPU profile for vllm-sr-sim.

That simulator asks a GPU's profile for the time of an iteration, given the number of requests and
their mean length, and for the time of one chunk of a prompt. It has no finer costs.
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
    """Write the tables, in seconds, into `folder`.

    `decode[n, i]` is a step of n decodes with i x GRANULARITY cached tokens each, and
    `attention[n, i]` its attention. `prefill[i]` is a step of one whole chunk after
    i x GRANULARITY cached tokens.
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
