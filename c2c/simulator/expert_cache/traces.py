"""Stored expert matrices of past sequences or steps."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.workloads import EMBEDDING, RouterTables, embed

__all__ = [
    "Traces",
    "add_tokens",
    "begin_compare",
    "compare_layer",
    "embedded_row",
    "forget_tokens",
    "new_traces",
    "predict",
    "renew_dot",
    "store",
]

_NONE: Final = -1


class Traces(NamedTuple):
    """R rows of [layer, expert] for each of M models, transposed, with K products."""

    count: Any  # i8[M] rows in use
    rows: Any  # f4[M, L, E, R]
    length: Any  # f8[M, L, R] of a row's layer as a vector
    embedding: Any  # f8[M, R, EMBEDDING]
    dots: Any  # f8[K, L, R] of a matrix with each row of its model
    square: Any  # f8[K, L] of a matrix with itself
    seen: Any  # scratch f8[R] sum of the cosines of the layers that have run
    own: Any  # f8[EMBEDDING] of the request in `whose`
    alike: Any  # f8[R] of `own` with the rows of the model in `whose`
    whose: Any  # i8[2] a model and a request


def new_traces(rows: int, layers: int, experts: int, models: int = 1, matrices: int = 1) -> Traces:
    """Return empty stores, and matrices to compare."""
    return Traces(
        count=np.zeros(models, np.int64),
        rows=np.zeros((models, layers, experts, rows), np.float32),
        length=np.zeros((models, layers, rows)),
        embedding=np.zeros((models, rows, EMBEDDING)),
        dots=np.zeros((matrices, layers, rows)),
        square=np.zeros((matrices, layers)),
        seen=np.zeros(rows),
        own=np.zeros(EMBEDDING),
        alike=np.zeros(rows),
        whose=np.full(2, _NONE),
    )


@jitable
def forget_tokens(traces: Traces, k: int, layer: int, model: int) -> None:
    """Clear a layer's counts in matrix `k`."""
    traces.square[k, layer] = 0.0
    for row in range(traces.count[model]):
        traces.dots[k, layer, row] = 0.0


@jitable
def add_tokens(
    traces: Traces, k: int, layer: int, e: int, before: float, tokens: float, model: int
) -> None:
    """Add `tokens` to the `before` of expert `e` in a layer of matrix `k`."""
    traces.square[k, layer] += tokens * (2.0 * before + tokens)
    for row in range(traces.count[model]):
        traces.dots[k, layer, row] += tokens * float(traces.rows[model, layer, e, row])


@jitable
def renew_dot(
    traces: Traces, matrix: Any, k: int, layers: int, experts: int, model: int, row: int
) -> None:
    """Recompute the products of `matrix[k]` with a changed row."""
    for layer in range(layers):
        total = 0.0
        for e in range(experts):
            total += matrix[k, layer, e] * float(traces.rows[model, layer, e, row])
        traces.dots[k, layer, row] = total


@jitable
def begin_compare(traces: Traces, model: int) -> None:
    """Begin a comparison with the first layer."""
    for row in range(traces.count[model]):
        traces.seen[row] = 0.0


# Similarity is the cosine of a layer's counts, averaged over the layers that have run.
@jitable
def _compare(traces: Traces, k: int, layer: int, model: int) -> None:
    # Adds the cosine of a layer to what each row of the model has.
    norm = traces.square[k, layer] ** 0.5
    for row in range(traces.count[model]):
        both = norm * traces.length[model, layer, row]
        if both > 0.0:
            traces.seen[row] += traces.dots[k, layer, row] / both


@jitable
def compare_layer(traces: Traces, k: int, layer: int, model: int) -> tuple[int, float]:
    """Return the row most similar to matrix `k` up to a layer, and the similarity."""
    _compare(traces, k, layer, model)
    # No cosine is below 0, and the bits of such numbers have their order: the machine compares
    # several whole numbers at once, not several floating ones.
    bits = traces.seen.view(np.int64)
    most = 0
    for row in range(traces.count[model]):
        most = max(most, bits[row])
    for row in range(traces.count[model]):
        if bits[row] == most:
            return row, traces.seen[row] / (layer + 1)
    return _NONE, 0.0


@jitable
def _alike(traces: Traces, model: int, row: int) -> float:
    total = 0.0
    for k in range(len(traces.own)):
        total += traces.own[k] * traces.embedding[model, row, k]
    return total


@jitable
def _embed(traces: Traces, router: RouterTables, model: int, request: int) -> None:
    # Compare the request's embedding with those of the model's rows, unless that is done.
    if traces.whose[0] == model and traces.whose[1] == request:
        return
    traces.whose[0], traces.whose[1] = model, request
    embed(router, request, traces.own)
    for row in range(traces.count[model]):
        traces.alike[row] = _alike(traces, model, row)


@jitable
def embedded_row(
    traces: Traces, router: RouterTables, model: int, request: int
) -> tuple[int, float]:
    """Return the row with the most similar request embedding, or -1."""
    _embed(traces, router, model, request)
    best, most = _NONE, 0.0
    for row in range(traces.count[model]):
        if best < 0 or traces.alike[row] >= most:
            best, most = row, traces.alike[row]
    return best, min(1.0, max(0.0, most))


@jitable
def predict(
    traces: Traces, model: int, row: int, layer: int, mass: float, least: int, experts: int,
    chance: Any, want: Any,
) -> None:  # fmt: skip
    """Write a stored layer's probabilities, and those to fetch.

    Args:
      mass: probability to fetch, likeliest experts first; 1: all.
      least: fewest experts fetched.
      chance: f8[layers, experts] output, probabilities.
      want: f8[layers, experts] output, 0: not to fetch.
    """
    total = 0.0
    for e in range(experts):
        total += float(traces.rows[model, layer, e, row])
    for e in range(experts):
        share = float(traces.rows[model, layer, e, row]) / total if total > 0.0 else 0.0
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
def _redundant(traces: Traces, model: int, layers: int, share: float) -> int:
    # The stored row of the model that is most like the new one.
    best, most = 0, -1.0
    for row in range(traces.count[model]):
        alike = share * traces.alike[row] + (1.0 - share) * traces.seen[row] / layers
        if alike > most:
            best, most = row, alike
    return best


@jitable
def store(
    traces: Traces, router: RouterTables, arch: int, model: int, request: int, matrix: Any, k: int,
    share: float, is_compared: bool,
) -> int:  # fmt: skip
    """Store `matrix[k]`, if full over the row most similar to it; return the row.

    Args:
      matrix: counts [.., layer, expert].
      k: index on its first axis.
      share: weight of embeddings.
      is_compared: whether all layers were compared.
    """
    _embed(traces, router, model, request)
    layers = router.layers[arch]
    row = traces.count[model]
    if traces.count[model] < len(traces.seen):
        traces.count[model] += 1
    else:
        if not is_compared:
            begin_compare(traces, model)
            for layer in range(layers):
                _compare(traces, k, layer, model)
        row = _redundant(traces, model, layers, share)
    for j in range(len(traces.own)):
        traces.embedding[model, row, j] = traces.own[j]
    traces.alike[row] = _alike(traces, model, row)
    for layer in range(layers):
        traces.length[model, layer, row] = traces.square[k, layer] ** 0.5
        for e in range(router.experts[arch]):
            traces.rows[model, layer, e, row] = matrix[k, layer, e]
    return int(row)
