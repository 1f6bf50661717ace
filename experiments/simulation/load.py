"""A workload's load as a share of the fleet's capacity: an estimate before a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from c2c.config import RunSetup
from c2c.serving import Failures
from c2c.serving.costs import held_places
from c2c.simulator import simulate_in_memory
from c2c.workloads import RequestBlock

__all__ = ["Load", "estimate_load"]

# Requests that arrive at once: enough to fill every batch of the fleet several times.
FILLS: Final = 4
FEWEST: Final = 100
MOST: Final = 20_000
MIDDLE: Final = (
    0.2,
    0.8,
)  # of them in the order of their ends, without starts and the last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a workload, and the load that its fleet can serve.

    Attributes:
      asked_rps: mean requests a second of the workload.
      served_rps: requests a second that the fleet serves while requests wait.
      tried: number of requests in the estimate.
    """

    asked_rps: float
    served_rps: float
    tried: int

    @property
    def times(self) -> float:
        """Load over capacity; above 1, queues grow until the workload ends."""
        return self.asked_rps / self.served_rps

    def line(self) -> str:
        """Return the load as a line for the console."""
        said = (
            f"load (estimate from {self.tried:,} requests at once): {self.asked_rps:.3g} "
            f"requests/s, the fleet serves {self.served_rps:.3g}: "
        )
        if self.times > 1.0:
            return said + f"{self.times:.3g} times its capacity; queues grow"
        return said + f"{self.times:.0%}"


def estimate_load(setup: RunSetup) -> Load | None:
    """Return the load of a run, from a short simulation of the same fleet in overload.

    The first requests of the workload arrive all at once, and the capacity is the rate at which the
    middle of them end. The simulation is compiled. Rates of runs in overload are within a factor of
    2 of the estimate.

    Returns:
      Load; None for a closed loop, a workload without a rate, or if too few requests are served.
    """
    asked_rps = setup.workload.description.get("mean_rate_rps")
    if setup.workload.loop is not None or not asked_rps:
        return None
    wanted = _wanted(setup)

    def at_once() -> Iterator[RequestBlock]:
        left = wanted
        for block in setup.workload.blocks():
            part = block.take(slice(left))
            yield replace(part, arrival_s=np.zeros(len(part)), think_s=None)
            left -= len(part)
            if left <= 0:
                return

    # A table of expert misses takes longer to make than to do without it here.
    walked = replace(
        setup.prepared,
        fleet=setup.prepared.fleet._replace(folds_experts=False),
        setup=replace(setup.serving, failures=Failures()),
    )
    got = simulate_in_memory(walked, replace(setup.workload, source=at_once))
    ended_s = np.sort(got.records.finished_s[got.records.failure == 0])
    first, last = (int(share * len(ended_s)) for share in MIDDLE)
    if len(ended_s) < FEWEST // 2 or ended_s[last] <= ended_s[first]:
        return None
    served_rps = float((last - first) / (ended_s[last] - ended_s[first]))
    return Load(asked_rps=float(asked_rps), served_rps=served_rps, tried=len(got.records))


def _wanted(setup: RunSetup) -> int:
    """Return the number of requests that fill all batches `FILLS` times, by mean lengths."""
    prepared = setup.prepared
    block = next(setup.workload.blocks(), None)
    if block is None:
        return 0
    tokens = float((block.prompt_tokens + block.output_tokens).mean())
    fleet, costs = prepared.fleet, prepared.fleet.costs
    pairs = range(len(costs.kv_bytes))
    need_bytes = [held_places(costs, pair, round(tokens)) for pair in pairs] * costs.kv_bytes
    room = fleet.kv_capacity_bytes / need_bytes.reshape(fleet.kv_capacity_bytes.shape)
    batches = np.clip(room[:, prepared.kind_of].max(axis=0), 1.0, fleet.max_batch).sum()
    return int(np.clip(FILLS * batches, FEWEST, MOST))
