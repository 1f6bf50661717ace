"""Turns that wait for earlier answers, then for a time to think."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.workloads.blocks import RequestBlock, concatenate
from c2c.workloads.transformations import Source

__all__ = ["after_answers", "at_times", "edges_of"]


def at_times(source: Source) -> Source:
    """Return the requests, each at its own time."""

    def start() -> Iterator[RequestBlock]:
        for block in source():
            yield replace(block, think_s=None, parent_first=None, parent_turns=None)

    return start


def after_answers(source: Source, path: str, *, has_parents: bool, may_lack: bool) -> Source:
    """Return a trace's requests, waiting ones with times to think.

    A request waits for those in the file, else for the session's previous turn. The time to think
    is the file's, else from their last end, or without measured latencies from their last arrival,
    at least 0.

    Args:
      has_parents: whether sessions are from parents' ids, unordered.
      may_lack: whether named turns may be missing.
    """
    block = concatenate(source())
    if block.session is None or block.turn is None or not (block.session >= 0).any():
        raise DataError(path, "no request has a session", "workload.turns_wait=false needs none.")
    if (lost := np.flatnonzero((block.session < 0) & (block.turn > 1))).size:
        raise DataError(path, _row(block, lost[0], "belongs to no session"))
    before, after = edges_of(block)
    if (parents := block.parents()) is None:
        if not has_parents and (wrong := block.turn[after] <= block.turn[before]).any():
            k = int(np.flatnonzero(wrong)[0])
            raise DataError(
                path, _row(block, after[k], f"comes after turn {block.turn[before[k]]}")
            )
    else:
        counts = np.bincount(after, minlength=len(block))
        if not may_lack and (lost := np.flatnonzero(counts < np.diff(parents.first))).size:
            named = parents.values[slice(*parents.first[lost[0] :][:2])]
            raise DataError(
                path,
                _row(block, lost[0], f"waits for turns {named.tolist()}, which are not all there"),
            )
    last_s = np.full(len(block), -np.inf)
    np.maximum.at(last_s, after, (block.arrival_s + _answer_s(block))[before])
    think_s = np.where(np.isinf(last_s), np.nan, np.maximum(block.arrival_s - last_s, 0.0))
    if block.think_s is not None:
        think_s = np.where(np.isnan(block.think_s) | np.isinf(last_s), think_s, block.think_s)
    new_block = replace(block, think_s=think_s)

    def start() -> Iterator[RequestBlock]:
        yield new_block

    return start


def edges_of(block: RequestBlock) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return parent and child rows of edges within the block."""
    assert block.session is not None
    parents = block.parents()
    if parents is None:
        order = np.argsort(block.session, kind="stable")
        same = np.diff(block.session[order]) == 0
        same &= block.session[order][1:] >= 0
        return order[:-1][same], order[1:][same]
    assert block.turn is not None
    child = np.repeat(np.arange(len(block)), np.diff(parents.first))
    order = np.lexsort((block.turn, block.session))
    pair = np.dtype([("session", "i8"), ("turn", "i8")])

    def pairs(session: NDArray[Any], turn: NDArray[Any]) -> NDArray[Any]:
        result = np.empty(len(session), pair)
        result["session"], result["turn"] = session, turn
        return result

    rows = pairs(block.session[order], block.turn[order])
    keys = pairs(block.session[child], parents.values)
    places = np.minimum(np.searchsorted(rows, keys), len(rows) - 1)
    there = (rows[places] == keys) & (block.session[child] >= 0)
    return order[places[there]], child[there]


def _row(block: RequestBlock, k: Any, note: str) -> str:
    return f"turn {block.turn[k]} at {block.arrival_s[k]:g} s {note}"  # type: ignore[index]


def _answer_s(block: RequestBlock) -> NDArray[np.float64]:
    if block.measured_ttft_s is None or block.measured_tpot_s is None:
        return np.zeros(len(block))
    rest = np.where(block.output_tokens > 1, block.measured_tpot_s, 0.0)
    return np.nan_to_num(block.measured_ttft_s + rest * (block.output_tokens - 1))
