"""Simulation of a run's shards."""

from __future__ import annotations

import pickle
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from c2c.atomic import atomic_file
from c2c.config import RunSetup
from c2c.errors import DataError
from c2c.runs import source_key
from c2c.simulator import Simulation, build_machine, run_blocks
from c2c.simulator.shards import Shard, dealt, merged_stats, merged_timeline
from c2c.workloads import RequestBlock
from experiments.children import gather
from experiments.ray_cluster import cluster_cores, cluster_is_named, cluster_with
from experiments.simulation.freed_memory import keep_freed_memory
from experiments.simulation.serving import Served, serve_shard

__all__ = ["serve_in_shards"]

POLL_S = 0.2


def serve_in_shards(
    setup: RunSetup,
    shards: Sequence[Shard],
    files: Sequence[Sequence[Path]],
    *,
    compiled: bool,
    on_progress: Callable[[float], None],
) -> Served:
    """Simulate each shard in its own process and merge totals."""
    total = float(setup.workload.description["requests"])

    def tell(shares: Sequence[float]) -> None:
        on_progress(total * sum(shares) / len(shares))

    started, code = time.perf_counter(), setup.settings["code"]
    # Names of unfinished files, which the next run of the folder removes if this one is killed.
    requests = [paths[0].with_name(f".{paths[0].name}.requests.partial") for paths in files]
    try:
        _deal(setup, shards, requests)
        dealt_s = time.perf_counter() - started
        work = list(zip(shards, requests, files, strict=True))
        plain = pickle.dumps(replace(setup, workload=replace(setup.workload, source=_nothing)))
        if cluster_is_named():
            served = _on_cluster(code, plain, work, compiled, tell)
        else:
            if compiled:  # once, not in every process
                nothing = Simulation.start(setup.prepared, build_machine(setup.prepared), models=())
                run_blocks(nothing, [], lambda _: None)
            served = gather(
                serve_shard,
                [(code, plain, *one, compiled) for one in work],
                workers=len(shards),
                tell=tell,
                begin=keep_freed_memory,
                lost="that simulated a shard was ended (memory?); fewer shards need less",
            )
    finally:
        for path in requests:
            path.unlink(missing_ok=True)
    slowest = max(served, key=lambda s: s.generate_s + s.events_s + s.records_s)
    return Served(
        stats=merged_stats([s.stats for s in served]),
        timeline=merged_timeline([s.timeline for s in served], setup.timeline_rows),
        generate_s=dealt_s + slowest.generate_s,
        events_s=slowest.events_s,
        records_s=slowest.records_s,
    )


def _on_cluster(
    code: Sequence[str],
    plain: bytes,
    work: Sequence[tuple[Shard, Path, Sequence[Path]]],
    compiled: bool,
    tell: Callable[[Sequence[float]], None],
) -> list[Served]:
    ray = cluster_with(code)
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    shares = ray.remote(_Shares).options(num_cpus=0, scheduling_strategy=here).remote(len(work))
    task = ray.remote(_away)
    setup, version = ray.put(plain), source_key("c2c")
    served: list[Any] = [None] * len(work)
    waiting: dict[Any, int] = {}
    shards = iter(enumerate(work))
    try:
        while True:
            # No more at once than can run: their requests take memory.
            for k, (shard, requests, files) in islice(
                shards, max(0, cluster_cores(code) - len(waiting))
            ):
                arguments = (setup, shard, requests.read_bytes(), len(files), compiled, shares, k)
                waiting[task.remote(version, *arguments)] = k
            if not waiting:
                return served
            for done in ray.wait(list(waiting), timeout=POLL_S)[0]:
                k = waiting.pop(done)
                served[k], contents = ray.get(done)
                for path, content in zip(work[k][2], contents, strict=True):
                    with atomic_file(path) as file:
                        file.write(content)
            tell(ray.get(shares.so_far.remote()))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DataError("RAY_ADDRESS", f"a task was lost: {error}") from error


class _Shares:
    def __init__(self, shards: int) -> None:
        self._shares = [0.0] * shards

    def tell(self, shard: int, share: float) -> None:
        self._shares[shard] = share

    def so_far(self) -> list[float]:
        return self._shares


def _away(
    version: str,
    setup: bytes,
    shard: Shard,
    requests: bytes,
    parts: int,
    compiled: bool,
    shares: Any,
    k: int,
) -> tuple[Served, list[bytes]]:
    if source_key("c2c") != version:
        raise DataError(f"c2c on {platform.node()}", "another version than this machine's")
    with TemporaryDirectory() as folder:
        request_file, *files = [Path(folder, str(n)) for n in range(parts + 1)]
        request_file.write_bytes(requests)
        served = serve_shard(
            (),
            setup,
            shard,
            request_file,
            files,
            compiled,
            lambda share: shares.tell.remote(k, share),
        )
        return served, [file.read_bytes() for file in files]


def _deal(setup: RunSetup, shards: Sequence[Shard], paths: Sequence[Path]) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(path.open("wb")) for path in paths]
        for k, block in dealt(setup.workload.blocks(), shards):
            pickle.dump(block, streams[k], protocol=5)


def _nothing() -> Iterator[RequestBlock]:
    return iter(())
