"""Shards of a run that never interact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.serving import Prepared
from c2c.simulator.arrivals.groups import groups_of
from c2c.simulator.run import RunStats
from c2c.workloads import RequestBlock, Workload

__all__ = ["Shard", "by_part", "dealt", "merged_stats", "merged_timeline", "split"]

_SAMPLE = 500_000  # requests that tell how much of the load each model has


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part of a fleet that one process simulates.

    Attributes:
      models: indices in the catalog, ascending.
      parts: these in groups, a file each.
    """

    models: NDArray[np.int64]
    parts: tuple[NDArray[np.int64], ...]


# Chips that share no model never affect each other: each group of them can be simulated alone, with
# the same ids and records.
def split(
    prepared: Prepared, workload: Workload, *, shards: int, requests: int, part_rows: int
) -> tuple[Shard, ...]:
    """Divide the models into at most `shards` shards of about equal load.

    Args:
      part_rows: about the most requests of a part.
    """
    load = _load(workload, len(prepared.fleet.deployment))
    group = groups_of(prepared)
    of_group = np.bincount(group, weights=load)
    parts = []
    for mine in _dealt(of_group, min(shards, len(of_group))):
        models = np.flatnonzero(np.isin(group, mine))
        estimate = -(-round(requests * load[models].sum() / load.sum()) // part_rows)
        count = min(max(1, estimate), len(models))
        parts.append(
            Shard(models=models, parts=tuple(models[p] for p in _dealt(load[models], count)))
        )
    return tuple(parts)


def dealt(
    blocks: Iterable[RequestBlock], shards: Sequence[Shard]
) -> Iterator[tuple[int, RequestBlock]]:
    """Yield blocks' requests by shard, with ids in the run."""
    shard_of = np.zeros(sum(len(shard.models) for shard in shards), np.int64)
    for k, shard in enumerate(shards):
        shard_of[shard.models] = k
    first = 0
    for block in blocks:
        ids = np.arange(first, first + len(block)) if block.ids is None else block.ids
        first += len(block)
        for k, rows in by_part(shard_of[block.model], len(shards)):
            yield k, replace(block.take(rows), ids=ids[rows])


def by_part(part_of: NDArray[np.int64], count: int) -> Iterator[tuple[int, Any]]:
    """Yield the parts that have rows, with their ascending index."""
    if count == 1:
        yield 0, slice(None)
        return
    order = np.argsort(part_of, kind="stable")
    edges = np.searchsorted(part_of[order], np.arange(count + 1))
    for k in range(count):
        if edges[k + 1] > edges[k]:
            yield k, order[edges[k] : edges[k + 1]]


def merged_stats(stats: Sequence[RunStats]) -> RunStats:
    """Return a run's totals from its shards'."""
    values = {}
    for field in fields(RunStats):
        column = [getattr(s, field.name) for s in stats]
        if field.name in ("end_s", "link_capacity_gbps"):
            values[field.name] = max(column)
        elif field.name == "until_s":
            values[field.name] = np.minimum.reduce(column)
        else:
            values[field.name] = sum(column[1:], start=column[0])
    return RunStats(**values)


def merged_timeline(timelines: Sequence[NDArray[np.void]], rows: int) -> NDArray[np.void]:
    """Return all shards' first phases, by their end."""
    joined = np.concatenate(list(timelines))
    order = np.lexsort((joined["instance"], joined["end_s"]))
    return joined[order[:rows]]


def _load(workload: Workload, models: int) -> NDArray[np.float64]:
    count = np.full(models, 0.5)  # a model without requests so far may still get some
    rest = _SAMPLE
    for block in workload.blocks():
        count += np.bincount(block.model, minlength=models)
        rest -= len(block)
        if rest <= 0:
            break
    return count


def _dealt(weights: NDArray[np.float64], count: int) -> list[NDArray[np.int64]]:
    hands: list[list[int]] = [[] for _ in range(count)]
    loads = np.zeros(count)
    for k in np.argsort(-weights, kind="stable"):
        lightest = int(loads.argmin())
        hands[lightest].append(int(k))
        loads[lightest] += weights[k]
    return [np.array(sorted(hand), np.int64) for hand in hands]
