"""Stored matrices of which experts past sequences or steps took, and the one most similar to now.

Similarity is the cosine of the counts of a layer, averaged over the layers that have run.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.workloads import EMBEDDING, RouterTables, embed

__all__ = [
    "Traces",
    "begin_compare",
    "compare_layer",
    "embedded_row",
    "new_traces",
    "predict",
    "store",
]

_NONE: Final = -1


class Traces(NamedTuple):
    """R rows of [layer, expert] a model, a row's numbers apart: all rows are compared at once.

    A model's rows are its own, one range for each of M models: its engine is a process.
    """

    count: Any  # i8[M] rows in use
    rows: Any  # f4[L, E, M * R]
    length: Any  # f8[L, M * R] of a row's layer as a vector
    embedding: Any  # f8[M * R, EMBEDDING]
    seen: Any  # scratch f8[R] sum of the cosines of the layers that have run
    own: Any  # scratch f8[EMBEDDING]
    dots: Any  # scratch f8[R]


def new_traces(rows: int, layers: int, experts: int, models: int = 1) -> Traces:
    """Return empty stores."""
    return Traces(
        count=np.zeros(models, np.int64),
        rows=np.zeros((layers, experts, models * rows), np.float32),
        length=np.zeros((layers, models * rows)),
        embedding=np.zeros((models * rows, EMBEDDING)),
        seen=np.zeros(rows),
        own=np.zeros(EMBEDDING),
        dots=np.zeros(rows),
    )


@jitable
def _length(matrix: Any, k: int, layer: int) -> float:
    total = 0.0
    for e in range(matrix.shape[2]):
        total += float(matrix[k, layer, e]) * float(matrix[k, layer, e])
    return float(total**0.5)


@jitable
def _compare(traces: Traces, matrix: Any, k: int, layer: int, model: int) -> None:
    # Adds the cosine of a layer to what each row of the model has. All rows in one go for each
    # expert that tokens took: few did, and what is read lies side by side.
    n, length, first = traces.count[model], _length(matrix, k, layer), model * len(traces.seen)
    for row in range(n):
        traces.dots[row] = 0.0
    for e in range(matrix.shape[2]):
        tokens = float(matrix[k, layer, e])
        if tokens != 0.0:
            for row in range(n):
                traces.dots[row] += tokens * float(traces.rows[layer, e, first + row])
    for row in range(n):
        both = length * traces.length[layer, first + row]
        if both > 0.0:
            traces.seen[row] += traces.dots[row] / both


@jitable
def begin_compare(traces: Traces, model: int) -> None:
    """Begin with the first layer."""
    for row in range(traces.count[model]):
        traces.seen[row] = 0.0


@jitable
def compare_layer(
    traces: Traces, matrix: Any, k: int, layer: int, model: int, compares_seen: bool
) -> tuple[int, float]:
    """Return the row most similar to `matrix[k]` in the layers up to this one, and how similar.

    Of equals the first.

    Args:
      traces: the store.
      matrix: counts [.., layer, expert].
      k: position on its first axis.
      layer: the next one; the ones before have been compared.
      model: whose rows.
      compares_seen: False compares nothing: all rows are equally far.

    Returns:
      The row, -1 without any, and the mean cosine.
    """
    best, most = _NONE, 0.0
    if compares_seen:
        _compare(traces, matrix, k, layer, model)
    first = model * len(traces.seen)
    for row in range(traces.count[model]):
        if best < 0 or traces.seen[row] > most:
            best, most = first + row, traces.seen[row]
    return best, most / (layer + 1)


@jitable
def _alike(traces: Traces, row: int) -> float:
    total = 0.0
    for k in range(len(traces.own)):
        total += traces.own[k] * traces.embedding[row, k]
    return total


@jitable
def embedded_row(
    traces: Traces, router: RouterTables, model: int, request: int
) -> tuple[int, float]:
    """Return the row whose request's embedding is most similar, of equals the last, or -1."""
    embed(router, request, traces.own)
    best, most = _NONE, 0.0
    first = model * len(traces.seen)
    for row in range(first, first + traces.count[model]):
        alike = _alike(traces, row)
        if best < 0 or alike >= most:
            best, most = row, alike
    return best, min(1.0, max(0.0, most))


@jitable
def predict(
    traces: Traces, row: int, layer: int, mass: float, least: int, chance: Any, want: Any
) -> None:
    """Write the probabilities of a stored layer, and those of the experts that are to be fetched.

    Args:
      traces: the store.
      row: of it.
      layer: of the row.
      mass: of probability that is fetched, the likeliest experts first; 1: all.
      least: experts that are fetched at least.
      chance: f8[layers, experts] of all.
      want: likewise, 0 where an expert is not to be fetched.
    """
    experts = chance.shape[1]
    total = 0.0
    for e in range(experts):
        total += float(traces.rows[layer, e, row])
    for e in range(experts):
        share = float(traces.rows[layer, e, row]) / total if total > 0.0 else 0.0
        chance[layer, e] = share
        want[layer, e] = share if mass >= 1.0 else 0.0
    if mass >= 1.0:
        return
    got, n = 0.0, 0
    while n < least or got < mass:
        best, most = _NONE, 0.0
        for e in range(experts):
            if want[layer, e] == 0.0 and chance[layer, e] > most:
                best, most = e, chance[layer, e]
        if best < 0:
            return
        want[layer, best] = most
        got += most
        n += 1


@jitable
def _redundant(
    traces: Traces, matrix: Any, k: int, model: int, layers: int, share: float, is_compared: bool
) -> int:
    # The stored row of the model that is most like the new one.
    if not is_compared:
        begin_compare(traces, model)
        for layer in range(layers):
            _compare(traces, matrix, k, layer, model)
    first = model * len(traces.seen)
    best, most = first, -1.0
    for row in range(traces.count[model]):
        alike = share * _alike(traces, first + row) + (1.0 - share) * traces.seen[row] / layers
        if alike > most:
            best, most = first + row, alike
    return best


@jitable
def store(
    traces: Traces, router: RouterTables, arch: int, model: int, request: int, matrix: Any, k: int,
    share: float, is_compared: bool,
) -> None:  # fmt: skip
    """Keep `matrix[k]`; in a full store it takes the place of the row most like it.

    Args:
      traces: the store.
      router: which knows the requests' embeddings.
      arch: the model's row in it.
      model: whose matrix it is.
      request: likewise.
      matrix: counts [.., layer, expert].
      k: position on its first axis.
      share: of the embeddings in what counts as alike.
      is_compared: whether all layers of `matrix[k]` are what has been compared last.
    """
    embed(router, request, traces.own)
    layers = router.layers[arch]
    row = model * len(traces.seen) + traces.count[model]
    if traces.count[model] < len(traces.seen):
        traces.count[model] += 1
    else:
        row = _redundant(traces, matrix, k, model, layers, share, is_compared)
    for j in range(len(traces.own)):
        traces.embedding[row, j] = traces.own[j]
    for layer in range(layers):
        traces.length[layer, row] = _length(matrix, k, layer)
        for e in range(matrix.shape[2]):
            traces.rows[layer, e, row] = matrix[k, layer, e]
