"""Simulation of a run: all models in this process, or shards in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c2c.config import RunSetup, build
from c2c.errors import DataError
from c2c.metrics import RECORD_SCHEMA
from c2c.runs import ParquetStream
from c2c.simulator import (
    RunStats,
    Simulation,
    build_machine,
    requests_table,
    run_blocks,
)
from c2c.simulator.shards import Shard, merged_stats, merged_timeline, only
from experiments.children import gather
from experiments.ray_cluster import cluster_is_named, started_ray
from experiments.simulation.freed_memory import keep_freed_memory
from experiments.simulation.measured import Measured, has_measured

__all__ = ["Served", "serve", "serve_in_shards"]

POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Totals of a run, the first phases, and the seconds of the slowest process."""

    stats: RunStats
    timeline: Any  # TIMELINE_DTYPE
    generate_s: float
    events_s: float
    records_s: float


class _Watch:
    """Stopwatch for an iterator's items and a function's calls."""

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
    """Simulate a run and stream its records to disk.

    Args:
      setup: setup of the run.
      files: file of the records, or one file for each of the shard's parts.
      compiled: True for machine code, False for the interpreter.
      on_progress: called with the number of requests of all models that have arrived so far.
      shard: models to serve; None for all.
    """
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
            for part, rows in _by_part(part_of[records["model"]], len(streams)):
                table = requests_table(prepared, records[rows])
                streams[part].append(table if measured is None else measured.added(table))

        mine = blocks if shard is None else only(blocks, shard.models)
        stats = run_blocks(
            simulation,
            generating.over(mine if measured is None else measured.over(mine)),
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


def serve_in_shards(
    setup: RunSetup,
    shards: Sequence[Shard],
    files: Sequence[Sequence[Path]],
    *,
    compiled: bool,
    on_progress: Callable[[float], None],
) -> Served:
    """Simulate each shard in a process of its own and merge the totals.

    If RAY_ADDRESS names a cluster, the processes are its tasks, on machines that see the files.
    """
    asked = [
        (dict(setup.settings), shard, tuple(path.resolve() for path in paths), compiled)
        for shard, paths in zip(shards, files, strict=True)
    ]
    if cluster_is_named():
        found = _on_ray(asked)
    else:
        if compiled:  # once, not in every process
            nothing = Simulation.start(setup.prepared, build_machine(setup.prepared), models=())
            run_blocks(nothing, [], _drop)
        found = gather(
            _serve_shard,
            asked,
            workers=len(asked),
            tell=lambda shares: on_progress(min(shares)),
            begin=keep_freed_memory,
            lost="that simulated a shard was ended (memory?); fewer shards need less",
        )
    slowest = max(found, key=lambda f: f.generate_s + f.events_s + f.records_s)
    return Served(
        stats=merged_stats([f.stats for f in found]),
        timeline=merged_timeline([f.timeline for f in found], setup.timeline_rows),
        generate_s=slowest.generate_s,
        events_s=slowest.events_s,
        records_s=slowest.records_s,
    )


def _on_ray(asked: Sequence[tuple[Any, ...]]) -> list[Served]:
    ray = started_ray()
    tasks = [ray.remote(_serve_shard).options(max_retries=0).remote(*one) for one in asked]
    try:
        result: list[Served] = ray.get(tasks)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DataError("RAY_ADDRESS", f"a task was lost: {error}") from error
    return result


def _drop(records: Any) -> None:
    """Discard records."""


def _serve_shard(
    settings: Mapping[str, Any],
    shard: Shard,
    files: Sequence[Path],
    compiled: bool,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Served:
    return serve(build(settings), files, compiled=compiled, on_progress=on_progress, shard=shard)


def _parts(models: int, shard: Shard | None) -> Any:
    result = np.zeros(models, np.int64)
    for k, part in enumerate(() if shard is None else shard.parts):
        result[part] = k
    return result


def _by_part(parts: Any, count: int) -> Iterator[tuple[int, Any]]:
    if count == 1:
        yield 0, slice(None)
        return
    order = np.argsort(parts, kind="stable")
    edges = np.searchsorted(parts[order], np.arange(count + 1))
    for k in range(count):
        if edges[k + 1] > edges[k]:
            yield k, order[edges[k] : edges[k + 1]]
