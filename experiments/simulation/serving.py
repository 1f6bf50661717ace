"""Simulation of a run's models."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from c2c.config import RunSetup, load_code
from c2c.metrics import RECORD_SCHEMA
from c2c.runs import ParquetStream
from c2c.simulator import (
    RunStats,
    Simulation,
    build_machine,
    requests_table,
    run_blocks,
)
from c2c.simulator.shards import Shard, by_part
from c2c.workloads import RequestBlock
from experiments.simulation.trace_latencies import Measured, has_measured

__all__ = ["Served", "serve", "serve_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Totals of a run, first phases, the slowest process's seconds."""

    stats: RunStats
    timeline: Any  # TIMELINE_DTYPE
    generate_s: float
    events_s: float
    records_s: float


class _Watch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def over[T](self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            started = time.perf_counter()
            item = next(iterator, None)
            self.seconds += time.perf_counter() - started
            if item is None:
                return
            yield item

    def around(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(value: Any) -> None:
            started = time.perf_counter()
            function(value)
            self.seconds += time.perf_counter() - started

        return timed


def serve(
    setup: RunSetup,
    files: Sequence[Path],
    *,
    compiled: bool,
    on_progress: Callable[[float], None],
    shard: Shard | None = None,
) -> Served:
    """Simulate a run and stream its records to disk."""
    prepared = setup.prepared
    simulation = Simulation.start(
        prepared,
        build_machine(prepared),
        loop=setup.workload.loop,
        compiled=compiled,
        timeline_rows=setup.timeline_rows,
        models=None if shard is None else shard.models.tolist(),
    )
    blocks = setup.workload.blocks()
    generating, recording = _Watch(), _Watch()
    started = time.perf_counter()
    with ExitStack() as open_files:
        measured = Measured() if has_measured(setup) else None
        schema = RECORD_SCHEMA if measured is None else measured.schema
        streams = [open_files.enter_context(ParquetStream(f, schema)) for f in files]
        part_of = _parts(len(prepared.setup.deployments), shard)

        def keep(records: Any) -> None:
            for part, rows in by_part(part_of[records["model"]], len(streams)):
                table = requests_table(prepared, records[rows])
                streams[part].append(table if measured is None else measured.added(table))

        stats = run_blocks(
            simulation,
            generating.over(blocks if measured is None else measured.over(blocks)),
            recording.around(keep),
            lambda done, _: on_progress(float(done)),
        )
        events_until = time.perf_counter()
    ended = time.perf_counter()
    records_s = recording.seconds + (ended - events_until)  # includes the flush of the files
    return Served(
        stats=stats,
        timeline=simulation.timeline(),
        generate_s=generating.seconds,
        events_s=ended - started - generating.seconds - records_s,
        records_s=records_s,
    )


def serve_shard(
    code: Sequence[str],
    setup: bytes,
    shard: Shard,
    requests: Path,
    files: Sequence[Path],
    compiled: bool,
    on_progress: Callable[[float], None],
) -> Served:
    """Simulate a shard in a process of its own."""
    load_code(code)
    whole: RunSetup = pickle.loads(setup)  # noqa: S301 (ours, as are the blocks)
    total = max(1, int(whole.workload.description["requests"]))
    part = replace(whole, workload=replace(whole.workload, source=partial(_blocks_of, requests)))
    return serve(
        part, files, compiled=compiled, shard=shard, on_progress=lambda n: on_progress(n / total)
    )


def _blocks_of(path: Path) -> Iterator[RequestBlock]:
    with path.open("rb") as stream:
        while stream.peek(1):
            yield pickle.load(stream)  # noqa: S301


def _parts(models: int, shard: Shard | None) -> Any:
    result = np.zeros(models, np.int64)
    for k, part in enumerate(() if shard is None else shard.parts):
        result[part] = k
    return result
