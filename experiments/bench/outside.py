"""Time of a step outside its worker: loop, frames, processes. Takes a quarter of a minute.

    python -m experiments.bench.outside workers=[1,2] models=12 seconds=5

The engine's own scheduler process drives workers that wait in place of computing, so that the cores
are free for everything else. A fixed number of requests is open; a new one follows each that ends.
Prints the seconds between a worker's steps (`outside_s` of the engine's `steps.parquet`), of all
steps and of those after a new plan, and the scheduler's CPU time a plan. Writes JSON with
provenance to a folder in runs/bench.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import build, load
from c2c.engine import Engine, run_in_loop, settle_memory
from c2c.engine.catalog import Entry
from c2c.engine.fleet import Options
from c2c.engine.messages import Ask
from c2c.engine.others import cpu_seconds, share_of_others
from c2c.engine.settings import EngineSettings
from c2c.errors import SettingError
from c2c.models import ModelSpec, load_spec
from c2c.runs import RunDir
from experiments.bench.waiting_worker import CORES, WAIT_S
from experiments.benchmark import MeasurementSettings, benchmark

__all__ = ["OutsideSettings", "main", "measure"]

TARGET_MS = 0.25
"""Planned median time of a step outside its worker."""


@dataclass
class OutsideSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      workers: numbers of workers to measure with.
      models: number of served models.
      open: requests at the same time, of all models together.
      tokens: most tokens of an answer; the least is one.
      prompt: tokens of each prompt.
      step_s: seconds that a worker waits a step.
      seconds: length of each measurement.
      repeats: measurements of each number of workers, which take turns.
      system: name of a system of `conf/system`.
      compiled: whether the loop's step runs as machine code, compiled before the measurement.
      busy_poll: whether the scheduler polls for reports in place of sleeping.
      pinned: whether the scheduler has the first core to itself; workers then have the others.
      seed: seed of lengths and models.
    """

    workers: list[int] = field(default_factory=lambda: [1, 2])
    models: int = 12
    open: int = 16
    tokens: int = 40
    prompt: int = 32
    step_s: float = 0.001
    seconds: float = 5.0
    repeats: int = 3
    system: str = "engine"
    compiled: bool = True
    busy_poll: bool = True
    pinned: bool = False
    seed: int = 0


def _entries(models: int) -> tuple[Entry, ...]:
    # Small enough that the KV cache of all requests always fits.
    spec: ModelSpec = replace(load_spec("qwen1.5-0.5b"), layers=2)
    return tuple(
        Entry(name=f"model{n}", path=Path("none"), spec=spec, context=2048) for n in range(models)
    )


async def measure(settings: OutsideSettings, workers: int) -> dict[str, Any]:
    """Serve for `settings.seconds`; return the milliseconds of steps outside their worker."""
    config = build(load([f"system={settings.system}", "workload=poisson"]))
    engine = Engine(
        _entries(settings.models),
        EngineSettings(
            options=Options(workers=workers, linear="reference", pool_bytes=1 << 30),
            system=config.serving.system,
            constants=config.serving.constants,
            executables=None,
            has_spare=False,
            is_recorded=True,
            compiled=settings.compiled,
            busy_poll=settings.busy_poll,
            worker="experiments.bench.waiting_worker",
        ),
    )
    rng, numbers = np.random.default_rng(settings.seed), itertools.count()

    def ask() -> None:
        engine.ask(
            Ask(
                request=next(numbers), model=f"model{rng.integers(settings.models)}",
                ids=(1,) * settings.prompt, new=int(rng.integers(1, settings.tokens + 1)),
                temperature=0.0, seed=0, stop=(),
            )
        )  # fmt: skip

    try:
        await engine.start()
        assert engine.stepping is not None
        if settings.compiled and not engine.stepping.is_compiled:
            await engine.stepping.compile()
        settle_memory()
        end_s = time.monotonic() + settings.seconds
        before, cpu_s = cpu_seconds(), time.process_time()
        while time.monotonic() < end_s:
            for _ in range(settings.open - len(engine.ledger)):
                ask()
            await asyncio.sleep(0.002)
        cpu_s = time.process_time() - cpu_s
        after = cpu_seconds()
    finally:
        await engine.close()
        gc.unfreeze()
    if engine.failure is not None:
        raise engine.failure
    steps = engine.tape.steps()
    outside = 1e3 * steps["outside_s"].to_numpy()
    number = steps["number"].to_numpy()
    planned = outside[number == 0]
    return {
        "workers": workers,
        "steps": int((number >= 0).sum()),
        "plans": len(planned),
        "p5_ms": float(np.percentile(planned, 5)),
        "p50_ms": float(np.median(planned)),
        "p99_ms": float(np.percentile(planned, 99)),
        "all_p50_ms": float(np.median(outside[number >= 0])),
        "cpu_ms": 1e3 * cpu_s / max(1, len(planned)),
        "others": None if before is None or after is None else share_of_others(before, after),
    }


def _run(settings: OutsideSettings, folder: RunDir, out: Console) -> None:
    os.environ[WAIT_S] = str(settings.step_s)
    cores = sorted(os.sched_getaffinity(0))
    if settings.pinned:
        os.environ[CORES] = ",".join(map(str, cores[1:]))
        os.sched_setaffinity(0, set(cores[:1]))
    rows = []
    for _ in range(settings.repeats):
        for workers in settings.workers:
            found = run_in_loop(measure(settings, workers))
            rows.append(found | {"load": os.getloadavg()[0]})
    table = Table(
        title=f"{settings.models} models: ms outside the worker before steps of a new plan "
        f"(goal: {TARGET_MS} at p50)",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    heads = ("workers", "steps", "plans", "p5", "p50", "p99", "p50 of all steps", "CPU a plan")
    for head in (*heads, "others", "load"):
        table.add_column(head, justify="right")
    for row in sorted(rows, key=lambda r: r["workers"]):
        figures = [row[k] for k in ("p5_ms", "p50_ms", "p99_ms", "all_p50_ms", "cpu_ms")]
        table.add_row(
            *(str(row[k]) for k in ("workers", "steps", "plans")),
            *(f"{figure:.3f}" for figure in figures),
            "" if row["others"] is None else f"{row['others']:.0%}",
            f"{row['load']:.1f}",
        )
    out.print(table)
    folder.write_json("outside", {"settings": asdict(settings), "rows": rows})


def _check(settings: OutsideSettings) -> None:
    for name in ("models", "open", "tokens", "prompt", "repeats"):
        if getattr(settings, name) < 1:
            raise SettingError(name, getattr(settings, name), "a whole number above 0")
    if not settings.workers or min(settings.workers) < 1:
        raise SettingError("workers", settings.workers, "whole numbers above 0")
    for name in ("step_s", "seconds"):
        if not 0 < getattr(settings, name) < float("inf"):
            raise SettingError(name, getattr(settings, name), "seconds above 0")
    if settings.pinned and len(os.sched_getaffinity(0)) < 2:
        raise SettingError("pinned", True, "false, as this process has one core")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    return benchmark(
        OutsideSettings, arguments, _run, check=_check, packages=("c2c",), name="outside"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
