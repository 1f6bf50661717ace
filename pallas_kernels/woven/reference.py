"""Reference of `send`, `poll` and `receive` in jax.numpy, on any device.

All CTAs look at once here, so their states are equal: only the first one's is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention import reference as attention
from pallas_kernels.woven.exchange import (
    Exchange,
    Looked,
    Polling,
    Polls,
    Sends,
    Shared,
)
from pallas_kernels.woven.slot import Status


def send(
    shared: Shared, state: jax.Array, rows: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array,
    *, exchange: Exchange,
) -> tuple[Shared, jax.Array]:  # fmt: skip
    """Return the shared arrays with a task sent, if one may be, and the sender's state."""
    many, lanes, lane = q.shape[0], exchange.slot.outstanding, state[Sends.LANE]
    out = state[Sends.SENT] - state[Sends.COLLECTED]
    goes = (out >= 0) & (out < lanes)
    rows = jnp.clip(rows[0], 1, many)
    mine = (jnp.arange(many) < rows)[:, None, None] & goes

    def put(into: jax.Array, value: jax.Array) -> jax.Array:
        return into.at[lane, :many].set(jnp.where(mine, value, into[lane, :many]))

    asked = jnp.where(goes, jnp.stack([rows, shared.version[0]]), shared.asked[lane])
    sent = replace(
        shared,
        q=put(shared.q, q),
        k=put(shared.k, k),
        v=put(shared.v, v),
        asked=shared.asked.at[lane].set(asked),
        task=jnp.where(goes, state[Sends.SENT] + 1, shared.task),
    )
    step = goes.astype(jnp.int32)
    state = state.at[Sends.SENT].add(step).at[Sends.LANE].set((lane + step) % lanes)
    return sent, state.at[Sends.WENT].set(step)


def poll(
    shared: Shared, state: jax.Array, windows: jax.Array, k: jax.Array, v: jax.Array,
    *, polling: Polling,
) -> tuple[Shared, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Return the shared arrays, the state and the pools after one look, with the task done."""
    exchange, page = polling.exchange, polling.page
    slot = exchange.slot
    answered, lane, layer, _ = state[0]
    new = shared.task[0] - answered
    took = (new > 0) & (new <= slot.outstanding)
    behind, lengths = layer * polling.stride, shared.lengths
    position = jnp.maximum(lengths - 1, 0)
    newest = jnp.take_along_axis(shared.table, (position // page)[:, None], axis=1)[:, 0]
    lacks = (lengths > 0) & ((newest < 0) | (newest + behind >= polling.pages))
    code = jnp.where(lacks, Status.NO_BLOCKS, Status.DONE)
    code = jnp.where(shared.asked[lane, 1] != shared.version[0], Status.OTHER_TABLE, code)
    asked = jnp.arange(slot.rows) < shared.asked[lane, 0]
    code = jnp.where(asked, code, Status.DONE).astype(jnp.int32)
    attends = took & asked & (code == Status.DONE)
    lengths = jnp.where(attends, lengths, 0)

    # A row without a token is written nowhere: its page lies beyond the pool.
    at = jnp.where(lengths > 0, newest + behind, polling.pages), position % page
    k = k.at[at].set(shared.k[lane], mode="drop")
    v = v.at[at].set(shared.v[lane], mode="drop")
    bounds = jnp.stack([lengths - 1, lengths, jnp.broadcast_to(windows[layer], lengths.shape)], 1)
    part = attention.decode(
        shared.q[lane], k, v, shared.table + behind, bounds, scale=polling.scale
    )
    # All keys in the first split; the others have none.
    zero = jnp.zeros_like(shared.out[lane])
    out = zero.at[0].set(part.out.astype(zero.dtype))
    sums = part.lse.reshape(slot.rows * slot.kv_heads, exchange.group)
    lse = jnp.full_like(shared.lse[lane], -jnp.inf).at[: sums.shape[0], : exchange.group].set(sums)
    seen = jnp.broadcast_to(
        code[None, :, None], (exchange.splits, slot.rows, slot.kv_heads)
    ).reshape(-1)

    def lane_of(array: jax.Array, value: jax.Array, where: Any) -> jax.Array:
        return array.at[lane].set(jnp.where(where, value, array[lane]))

    written = attends[None, :, None, None]
    after = replace(
        shared,
        out=lane_of(shared.out, out, written),
        lse=lane_of(shared.lse, lse, took & (exchange.splits > 1)),
        status=lane_of(shared.status, seen, took),
        done=jnp.where(took, answered + 1, shared.done),
    )
    looked = jnp.where(took, Looked.TOOK, jnp.where(new == 0, Looked.NOTHING, Looked.JUMPED))
    state = state.at[:, Polls.ANSWERED].add(took.astype(jnp.int32))
    state = state.at[:, Polls.LANE].set(jnp.where(took, (lane + 1) % slot.outstanding, lane))
    state = state.at[:, Polls.LAYER].set(jnp.where(took, (layer + 1) % polling.layers, layer))
    return after, state.at[:, Polls.LOOKED].set(looked), k, v


def receive(
    shared: Shared, state: jax.Array, rows: jax.Array, *, exchange: Exchange
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return each CTA's rows, log-sum-exp and status of a task after one look, and the state."""
    lane, slot = state[Sends.COLLECT_LANE], exchange.slot
    ahead = shared.done - (state[Sends.COLLECTED] + 1)
    asked = jnp.arange(exchange.ctas) // slot.kv_heads % slot.rows < rows[0]
    there = asked & (ahead >= 0) & (ahead < slot.outstanding)
    late = jnp.where(asked, Status.TIME_OUT, Status.DONE).astype(jnp.int32)
    code = jnp.where(there, shared.status[lane], late)
    found = (there & (code == Status.DONE))[:, None]
    out = jnp.where(found, shared.out[lane].reshape(exchange.ctas, -1), 0)
    state = state.at[Sends.COLLECTED].add(1)
    return (
        out,
        shared.lse[lane],
        code,
        state.at[Sends.COLLECT_LANE].set((lane + 1) % slot.outstanding),
    )
