"""Minimum cut: exact solution of the latency policy for two GPUs."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from c2c.systems.tessera.work import Gpus, Work

__all__ = ["minimum_cut"]

_LARGEST = 2**30  # capacities are 32-bit integers


def minimum_cut(work: Work, gpus: Gpus) -> tuple[tuple[int, ...], float]:
    """Return the placement of least latency over two GPUs, and a bound (seconds in 30 bits).

    Source: ours; the paper solves an integer program.
    """
    count = len(work.names)
    source, sink = count, count + 1
    rows, columns, seconds = [], [], []

    def edge(a: int, b: int, cost: float) -> None:
        rows.append(a)
        columns.append(b)
        seconds.append(cost)

    for k, (first, second) in enumerate(work.times_s):
        pin = work.pinned.get(k)
        edge(source, k, math.inf if pin == 0 else second)
        edge(k, sink, math.inf if pin == 1 else first)
    for transfer in work.transfers:
        if transfer.weight:
            edge(
                transfer.source,
                transfer.target,
                transfer.weight * gpus.seconds(transfer.nbytes, 0, 1),
            )
            edge(
                transfer.target,
                transfer.source,
                transfer.weight * gpus.seconds(transfer.nbytes, 1, 0),
            )
    costs = np.array(seconds)
    total = float(work.times.sum(0).max()) or 1.0
    if work.pinned:  # the best placement may cost more than either GPU alone
        total += float(costs[np.isfinite(costs)].sum())
    scale = _LARGEST / 2 / total
    capacity = np.minimum(np.where(np.isfinite(costs), costs * scale, _LARGEST - 1), _LARGEST - 1)
    graph = csr_matrix((capacity.astype(np.int64), (rows, columns)), shape=(count + 2, count + 2))
    graph.sum_duplicates()
    graph.data = np.minimum(graph.data, _LARGEST - 1)
    graph = graph.astype(np.int32)
    flow = maximum_flow(graph, source, sink)
    residual = (graph - flow.flow).tocsr()
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    gpu_of = np.ones(count + 2, np.int64)
    gpu_of[reached] = 0
    return tuple(int(g) for g in gpu_of[:count]), flow.flow_value / scale
