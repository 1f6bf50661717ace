"""Turns of a trace that wait for the previous answer and then for the time to think."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.workloads.blocks import RequestBlock, concatenate
from c2c.workloads.shaping import Source

__all__ = ["after_answers"]


def after_answers(source: Source, path: str, *, has_parents: bool) -> Source:
    """Return the requests of a trace, each turn but a session's first with its time to think.

    The time to think is the time in the file from the end of the previous answer to the turn, at
    least 0. If the file has no measured latencies, it starts at the previous turn's arrival and so
    includes the answer. Turns of a session are ordered by arrival.
    """
    block = concatenate(source())
    if block.session is None or block.turn is None or not (block.session >= 0).any():
        raise DataError(path, "no request has a session", "workload.turns_wait=false needs none.")
    if (lost := np.flatnonzero((block.session < 0) & (block.turn > 1))).size:
        raise DataError(path, _row(block, lost[0], "belongs to no session"))
    order = np.argsort(block.session, kind="stable")
    session = block.session[order]
    same = (session[1:] == session[:-1]) & (session[1:] >= 0)
    before, after = order[:-1][same], order[1:][same]
    if not has_parents and (wrong := block.turn[after] <= block.turn[before]).any():
        k = int(np.flatnonzero(wrong)[0])
        raise DataError(path, _row(block, after[k], f"comes after turn {block.turn[before[k]]}"))
    think_s = np.full(len(block), np.nan)
    gap_s = block.arrival_s[after] - block.arrival_s[before] - _answer_s(block)[before]
    think_s[after] = np.maximum(gap_s, 0.0)
    made = replace(block, think_s=think_s)

    def start() -> Iterator[RequestBlock]:
        yield made

    return start


def _row(block: RequestBlock, k: Any, what: str) -> str:
    return f"turn {block.turn[k]} at {block.arrival_s[k]:g} s {what}"  # type: ignore[index]


def _answer_s(block: RequestBlock) -> NDArray[np.float64]:
    """Return the measured seconds of each answer; 0 if unknown."""
    if block.measured_ttft_s is None or block.measured_tpot_s is None:
        return np.zeros(len(block))
    rest = np.where(block.output_tokens > 1, block.measured_tpot_s, 0.0)
    return np.nan_to_num(block.measured_ttft_s + rest * (block.output_tokens - 1))
