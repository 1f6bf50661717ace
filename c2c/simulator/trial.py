"""Short interpreted trial of policies from outside the package."""

from __future__ import annotations

from collections.abc import Iterator

from c2c.policies import outside_policies
from c2c.serving import Prepared
from c2c.simulator.machine import build_machine
from c2c.simulator.run import Simulation, run_blocks
from c2c.workloads import RequestBlock, Workload

__all__ = ["try_policies"]

_REQUESTS = 60


def try_policies(prepared: Prepared, workload: Workload, requests: int = _REQUESTS) -> None:
    """Interpret the first requests if a policy is from outside.

    Raises:
      PolicyError: a policy failed; with name, file, line and reason.
    """
    if outside_policies(prepared.rules.system):
        simulation = Simulation.start(
            prepared, build_machine(prepared), loop=workload.loop, compiled=False
        )
        run_blocks(simulation, _first(workload.blocks(), requests), lambda _: None)


def _first(blocks: Iterator[RequestBlock], requests: int) -> Iterator[RequestBlock]:
    for block in blocks:
        yield block.take(slice(requests))
        requests -= len(block)
        if requests <= 0:
            return
