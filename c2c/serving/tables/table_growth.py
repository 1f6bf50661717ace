"""Growth of the state's tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.serving.tables.state import ABSENT, NOBODY, Fleet, Serving

__all__ = ["grow_models", "grow_records", "grow_requests"]


def _grown(table: Any, extra: int) -> Any:
    old = len(table)
    result = np.zeros(old + extra, table.dtype).view(np.recarray)
    result[:old] = table
    return result


def grow_requests(state: Serving, extra: int) -> Serving:
    """Return the state with `extra` more free request slots."""
    old = len(state.request)
    request = _grown(state.request, extra)
    request.id[old:] = NOBODY
    free = np.zeros(old + extra, np.int64)
    n_free = int(state.count[0].free_slots)
    # New slots go below the old free ones: the order in which slots are used stays the same.
    free[:extra] = np.arange(old + extra - 1, old - 1, -1)
    free[extra : extra + n_free] = state.free_slots[:n_free]
    state.count[0].free_slots = n_free + extra
    actions = np.zeros((len(state.actions) + extra, 2), np.int64)
    actions[: len(state.actions)] = state.actions
    blocks = state.blocks
    if blocks.table[0].block_tokens > 0:
        blocks = blocks.grown(old + extra, 0)
    return state._replace(request=request, free_slots=free, actions=actions, blocks=blocks)


def grow_records(state: Serving, extra: int) -> Serving:
    """Return the state with room for `extra` more records."""
    return state._replace(records=_grown(state.records, extra))


def grow_models(state: Serving, fleet: Fleet) -> Serving:
    """Return the state of a larger one-chip fleet with the same first models."""
    extra = len(fleet.deployment) - len(state.model)
    model, hold = _grown(state.model, extra), _grown(state.hold, extra)
    for field in ("active", "wait_head", "wait_tail", "claim_chip"):
        model[field][len(state.model) :] = -1
    hold.state[len(state.hold) :] = ABSENT
    waiting = np.concatenate([state.waiting, np.zeros(extra, np.int64)])
    counted = np.zeros(len(fleet.adapters.nbytes), np.int64)
    adapters = state.adapters._replace(counted_at=counted)
    return state._replace(model=model, hold=hold, waiting=waiting, adapters=adapters)
