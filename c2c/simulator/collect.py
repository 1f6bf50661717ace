"""Simulation of a setup in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from c2c.metrics import summarise
from c2c.serving import RECORD_DTYPE, Prepared, ServingSetup, prepare
from c2c.simulator.machine import build_machine
from c2c.simulator.run import RunStats, Simulation, run_blocks
from c2c.simulator.tables import requests_table
from c2c.workloads import Workload

__all__ = ["Collected", "estimate", "simulate_in_memory"]


class Collected(NamedTuple):
    """Results of a run: records by id, totals, first phases."""

    records: Any  # recarray of RECORD_DTYPE, sorted by id
    stats: RunStats
    timeline: Any  # recarray of TIMELINE_DTYPE, in order of end


def simulate_in_memory(
    serving: ServingSetup | Prepared,
    workload: Workload,
    *,
    compiled: bool = True,
    timeline_rows: int = 0,
) -> Collected:
    """Simulate a workload; return all records.

    Args:
      serving: a `Prepared` saves cost tables in repeated runs.
      compiled: False: interpret, much slower.
    """
    prepared = prepare(serving) if isinstance(serving, ServingSetup) else serving
    simulation = Simulation.start(
        prepared,
        build_machine(prepared),
        loop=workload.loop,
        compiled=compiled,
        timeline_rows=timeline_rows,
    )
    parts: list[Any] = []
    stats = run_blocks(simulation, workload.blocks(), parts.append)
    records = np.concatenate(parts) if parts else np.zeros(0, RECORD_DTYPE)
    records = records[np.argsort(records["id"])].view(np.recarray)
    return Collected(records, stats, simulation.timeline())


def estimate(prepared: Prepared, workload: Workload, *, compiled: bool = True) -> Mapping[str, Any]:
    """Return a workload's summary, to rate a layout for `mig=planned`."""
    records = simulate_in_memory(prepared, workload, compiled=compiled).records
    return summarise(requests_table(prepared, records))
