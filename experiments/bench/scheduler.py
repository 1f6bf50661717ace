"""Time of one event in the serving loop of a live engine. Takes half a minute.

    python -m experiments.bench.scheduler requests=300 system=engine

The same requests run through the loop interpreted and compiled, with a simulated engine behind the
port; both take the same decisions. Compiling takes half a minute more if the machine code is not on
disk. Writes JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import build, load
from c2c.ranges import AboveZero, Count, Index
from c2c.runs import RunDir
from c2c.serving import Prepared, prepare
from c2c.serving.compiled_step import CompiledStep
from c2c.serving.loop import step
from c2c.serving.port import Action, Event
from c2c.serving.state import Serving
from c2c.simulator import build_machine
from c2c.simulator.port import SimulatorBackend
from c2c.workloads import RequestBlock
from experiments.benchmark import MeasurementSettings, benchmark

__all__ = ["WAYS", "SchedulerSettings", "main", "measure"]

type Step = Callable[[Serving, Event], tuple[Serving, tuple[Action, ...]]]

TARGET_MS = 0.25
"""Planned median time of a step outside its worker, the loop included."""


@dataclass
class SchedulerSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      system: name of a system of `conf/system`.
      requests: number of requests.
      rate_rps: rate of their arrivals.
      seed: seed of arrivals and lengths.
    """

    system: str = "engine"
    requests: Count = 200
    rate_rps: AboveZero = 4.0
    seed: Index = 0


def _block(settings: SchedulerSettings, models: int) -> RequestBlock:
    g = np.random.default_rng(settings.seed)
    n = settings.requests
    return RequestBlock(
        arrival_s=np.cumsum(g.exponential(1.0 / settings.rate_rps, n)),
        model=g.integers(0, models, n).astype(np.int32),
        prompt_tokens=g.integers(1, 600, n).astype(np.int32),
        output_tokens=g.integers(1, 200, n).astype(np.int32),
    )


def _interpreted(prepared: Prepared) -> tuple[Serving, Step]:
    fleet, rules = prepared.fleet, prepared.new_rules()
    state = prepared.new_serving(buffer=1, rules=rules)
    return state, lambda s, event: step(fleet, rules, s, event, donate=True)


def _compiled(prepared: Prepared) -> tuple[Serving, Step]:
    rules = prepared.new_rules()
    state = prepared.new_serving(buffer=1, rules=rules)
    return state, CompiledStep(prepared.fleet, rules, state).step


# Execution of the step -> function that returns its first state.
WAYS: Final[dict[str, Callable[[Prepared], tuple[Serving, Step]]]] = {
    "interpreted": _interpreted,
    "compiled": _compiled,
}


def measure(
    prepared: Prepared, block: RequestBlock, begin: Callable[[Prepared], tuple[Serving, Step]]
) -> tuple[dict[str, list[float]], bytes]:
    """Serve the requests; return the seconds of each event, by its type, and the records.

    Args:
      prepared: the setup.
      block: the requests.
      begin: function that returns the state before the first event, and the step, which may reuse
        the state's arrays.
    """
    world = SimulatorBackend(prepared, build_machine(prepared), block)
    state, take = begin(prepared)
    seconds: dict[str, list[float]] = {}
    while (event := world.next_event()) is not None:
        start = time.perf_counter()
        state, actions = take(state, event)
        seconds.setdefault(type(event).__name__, []).append(time.perf_counter() - start)
        world.submit(float(state.count[0].now_s), actions)
    return seconds, np.asarray(state.records)[: state.count[0].out].tobytes()


def _run(settings: SchedulerSettings, folder: RunDir, out: Console) -> None:
    prepared = prepare(build(load([f"system={settings.system}", "workload=poisson"])).serving)
    block = _block(settings, len(prepared.setup.deployments))
    rows: list[dict[str, Any]] = []
    decided = set()
    for name, begin in WAYS.items():
        seconds, records = measure(prepared, block, begin)
        decided.add(records)
        for event, each in sorted(seconds.items()):
            rows.append(
                {
                    "way": name, "event": event, "events": len(each),
                    "p50_ms": 1e3 * statistics.median(each),
                    "p99_ms": 1e3 * float(np.percentile(each, 99)),
                    "mean_ms": 1e3 * statistics.fmean(each),
                }
            )  # fmt: skip
    if len(decided) > 1:
        raise RuntimeError("interpreted and compiled loops decided differently")
    table = Table(
        title=f"{settings.requests} requests, {settings.system}: milliseconds an event",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for head in ("loop", "event", "events", "p50", "p99", "mean"):
        table.add_column(head, justify="left" if head in ("loop", "event") else "right")
    for row in rows:
        figures = (f"{row[k]:.3f}" for k in ("p50_ms", "p99_ms", "mean_ms"))
        table.add_row(row["way"], row["event"], str(row["events"]), *figures)
    out.print(table)
    folder.write_json("scheduler", {"target_ms": TARGET_MS, "rows": rows})


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    return benchmark(
        SchedulerSettings,
        arguments,
        _run,
        packages=("c2c",),
        name="scheduler",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
