"""A decode step of which some rows' attention is done on the device that has their cache.

The sender computes all rows; in each layer it hands queries, keys and values of the rows that are
away to `Tasks`, attends to its own rows, and takes the others' result. The receiver's thread, which
owns the arrays of its pool, does what is handed over when it polls. Rows stay whole, so the results
are joined in their order and are those of a step that is not woven.

Source: WEAVER, sections 3 and 4.1.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.draws import draw
from c2c.models import ModelSpec
from c2c.transformer.cache import Pooled, rows_of
from c2c.transformer.embedding import lookup
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.forward import end
from c2c.transformer.kv_pool import KvPool
from c2c.transformer.layer import (
    Layer,
    after_attention,
    attention,
    before_attention,
    needed,
    place_in,
    window_of,
)
from c2c.transformer.linear import Linear
from c2c.transformer.params import Params
from c2c.transformer.rope import angles
from c2c.transformer.weights.layout import feed_forward_places
from pallas_kernels.arguments import Choice

__all__ = ["Tasks", "is_away", "move_block", "woven_decode"]

_HOME = 0x40E  # what the draw of a home has in place of a layer

Heads = tuple[Any, Any, Any]  # queries, keys and values of some rows


def is_away(seed: int, request: int, ratio: float) -> bool:
    """Return whether a request's cache is on the receiver, from the end of its prompt to its end.

    Only the three say so, whatever else happens; a request that is away stays so at larger ratios.
    """
    return draw(seed, request, 0, _HOME, 0) < ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    number: int  # of the layer
    tables: np.ndarray
    positions: np.ndarray
    heads: Heads
    result: queue.SimpleQueue[Any]


class Tasks:
    """Tasks of a sender, for the thread that owns a pool; each is done once, in order."""

    def __init__(
        self,
        pool: KvPool,
        spec: ModelSpec,
        *,
        executables: Executables | None = None,
        backend: Choice = "auto",
    ) -> None:
        """Do nothing yet.

        Args:
          pool: of the receiver; has blocks of the sender's model.
          spec: the sender's model.
          executables: where compiled stages come from; by default jax compiles for this process.
          backend: of the attention kernels.
        """
        self.pool, self.spec = pool, spec
        self.sent = self.done = 0
        self._backend: Choice = backend
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        on = None if executables is None else executables.on(pool.device)
        self._attend = _bound(_ATTEND, on)

    def send(
        self, number: int, tables: np.ndarray, positions: np.ndarray, heads: Heads
    ) -> Callable[[], Any]:
        """Hand a layer's rows over; return what waits for their attention."""
        result: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sent += 1
        self._tasks.put(
            _Task(number=number, tables=tables, positions=positions, heads=heads, result=result)
        )

        def wait() -> Any:
            found = result.get()
            if isinstance(found, BaseException):
                raise found
            return found

        return wait

    def poll(self, limit_s: float = 0.0) -> bool:
        """Do the next task if there is one, or comes within so many seconds; say if so."""
        try:
            task = self._tasks.get(timeout=limit_s) if limit_s else self._tasks.get_nowait()
        except queue.Empty:
            return False
        try:
            here = jax.device_put((task.tables, task.positions, *task.heads), self.pool.device)
            mixed, self.pool.arrays = self._attend(
                _bare(self.pool), np.int32(task.number), *here,
                spec=self.spec, backend=self._backend,
            )  # fmt: skip
        except BaseException as error:
            task.result.put(error)  # else the sender waits for ever
            raise
        self.done += 1
        task.result.put(mixed)
        return True


def woven_decode(
    params: Params,
    tokens: Any,
    positions: Sequence[np.ndarray],
    tables: Sequence[np.ndarray],
    pool: KvPool,
    spec: ModelSpec,
    *,
    linear: Linear,
    tasks: Tasks,
    executables: Executables | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Return the logits of rows of one token each; their keys and values are in both pools then.

    Args:
      params: of the model, each layer with arrays of its own.
      tokens: int32 [N], those of the sender's own rows, then of those away.
      positions: int32, of the own rows and of those away; -1 for padding. Either may have no row.
      tables: blocks of the own rows in `pool` and of those away in the receiver's, [rows, width].
      pool: of the sender.
      spec: the model.
      linear: how projections are multiplied.
      tasks: where rows that are away are handed over; a task a layer, none without such rows.
      executables: where compiled stages come from; by default jax compiles for this process.
      backend: of the attention kernels.

    Raises:
      ValueError: layers share arrays.
    """
    if not linear.placement.by_layer:
        raise ValueError("layers share arrays: expected an array a layer")
    on = None if executables is None else executables.on(pool.device)
    begin, before, attend, after = (_bound(s, on) for s in (_BEGIN, _BEFORE, _ATTEND, _AFTER))
    own, away = map(len, positions)
    every = np.concatenate(positions).astype(np.int32)
    x, turns = begin(params.embed, tokens, every, linear, spec=spec, dtype=str(params.dtype))
    own_tables = jax.device_put(tables[0], pool.device)
    for number, (sparse, place) in enumerate(feed_forward_places(spec)):
        weights = {
            name: stack[place_in(name, number, place)]
            for name, stack in params.projections.items()
            if name != "head" and needed(name, sparse)
        }
        at = np.int32(number), np.int32(place) if spec.dense_layers else None
        held, gone = before(x, turns, params.layers, weights, *at, linear, spec=spec, own=own)
        wait = tasks.send(number, tables[1], positions[1], gone) if away else None
        mixed = []
        if own:
            found, pool.arrays = attend(
                _bare(pool), np.int32(number), own_tables, positions[0], *held,
                spec=spec, backend=backend,
            )  # fmt: skip
            mixed.append(found)
        if wait is not None:
            mixed.append(jax.device_put(wait(), pool.device))
        x = after(
            x, tuple(mixed), params.layers, weights, *at, every, linear, spec=spec, sparse=sparse
        )
    wanted = np.arange(own + away, dtype=np.int32)
    return end(params, x, wanted, spec, linear=linear, executables=on)


def move_block(source: KvPool, target: KvPool, spec: ModelSpec, first: int, to: int) -> None:
    """Copy a block's keys and values; whoever owns the arrays of both pools may call it.

    Args:
      source: where the block is.
      target: where it is to be.
      spec: the model whose block it is.
      first: its first page there.
      to: its first page in the target.
    """
    taken = _TAKE.jitted(_bare(source), np.int32(first), spec=spec)
    here = jax.device_put(taken, target.device)
    target.arrays = _PUT.jitted(_bare(target), *here, np.int32(to), spec=spec)


def _begin(
    embed: Any, tokens: Any, positions: Any, linear: Linear, spec: ModelSpec, dtype: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    rows = rows_of(positions, positions.shape[0], positions.shape[0])
    x = lookup(embed, tokens, linear.rows, dtype=dtype)
    return x, angles(jnp.maximum(positions, 0), rows.lengths, spec)


def _before(
    x: Any, turns: Any, small: Any, weights: Any, number: Any, place: Any, linear: Linear,
    spec: ModelSpec, own: int,
) -> tuple[Heads, Heads]:  # fmt: skip
    q, k, v = before_attention(_layer(small, weights, linear, number, place), x, turns, spec)
    return (q[:own], k[:own], v[:own]), (q[own:], k[own:], v[own:])


def _bare(pool: KvPool) -> Pooled:
    """Return the arrays without tables, as these are given away with them."""
    return replace(pool.arrays, tables=None)


def _attend(
    pool: Pooled, number: Any, tables: Any, positions: Any, q: Any, k: Any, v: Any,
    spec: ModelSpec, backend: Choice,
) -> tuple[jax.Array, Pooled]:  # fmt: skip
    rows = rows_of(positions, positions.shape[0], positions.shape[0])
    seen = replace(pool, tables=tables).seen_by(spec)
    window = window_of(spec, number)
    mixed, pages = attention(seen, rows, number, window, q, k, v, backend=backend)
    return mixed, pool.with_pages(pages)


def _after(
    x: Any, mixed: tuple[Any, ...], small: Any, weights: Any, number: Any, place: Any,
    positions: Any, linear: Linear, spec: ModelSpec, sparse: bool,
) -> jax.Array:  # fmt: skip
    rows = rows_of(positions, positions.shape[0], positions.shape[0])
    layer = _layer(small, weights, linear, number, place)
    return after_attention(layer, x, jnp.concatenate(mixed), rows, spec, sparse=sparse)


def _layer(small: Any, weights: Any, linear: Linear, number: Any, place: Any) -> Layer:
    return Layer(
        small=small, projections=weights, linear=linear, at=number, which=None, place=place
    )


def _take(pool: Pooled, first: Any, spec: ModelSpec) -> tuple[jax.Array, jax.Array]:
    pages, which = pool.seen_by(spec), first + np.arange(spec.layers)
    return pages.k[which], pages.v[which]


def _put(pool: Pooled, k: Any, v: Any, to: Any, spec: ModelSpec) -> Pooled:
    pages, which = pool.seen_by(spec), to + np.arange(spec.layers)
    return pool.with_pages(replace(pages, k=pages.k.at[which].set(k), v=pages.v.at[which].set(v)))


def _bound(stage: Stage, executables: Executables | None) -> Callable[..., Any]:
    return stage.jitted if executables is None else executables.bind(stage)


_BEGIN = Stage(name="woven_begin", function=_begin, static=("spec", "dtype"))
_BEFORE = Stage(name="woven_before", function=_before, static=("spec", "own"))
_ATTEND = Stage(name="woven_attend", function=_attend, donated=(0,), static=("spec", "backend"))
_AFTER = Stage(name="woven_after", function=_after, donated=(0,), static=("spec", "sparse"))
_TAKE = Stage(name="woven_take", function=_take, static=("spec",))
_PUT = Stage(name="woven_put", function=_put, donated=(0,), static=("spec",))
