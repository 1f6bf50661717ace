"""Inputs of a live run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.engine.inputs import event_of
from c2c.errors import DataError
from c2c.serving.tables.port import Arrival, BlocksLost, Cancelled, DeviceLost, Weights
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.workloads import OF_MODEL, RequestBlock

__all__ = ["Inputs", "inputs_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a run; a request's id is its index by arrival.

    Attributes:
      lengths: output tokens; unfinished: the limit.
      cancel_s: from each arrival; inf: none.
      others: all other events, by time.
      served: records of the finished requests.
    """

    arrivals: tuple[Arrival, ...]
    lengths: tuple[int, ...]
    cancel_s: tuple[float, ...]
    others: tuple[DeviceLost | BlocksLost | Weights, ...]
    served: pa.Table

    def block(self) -> RequestBlock:
        """Return the requests in the simulator's form."""
        arrivals = self.arrivals
        block = RequestBlock(
            arrival_s=np.array([a.at_s for a in arrivals]),
            model=np.array([a.model for a in arrivals], np.int32),
            prompt_tokens=np.array([a.prompt_tokens for a in arrivals], np.int32),
            output_tokens=np.array(self.lengths, np.int32),
            max_output_tokens=np.array([a.max_output_tokens for a in arrivals]),
            priority=np.array([OF_MODEL if a.priority is None else a.priority for a in arrivals]),
            deadline_s=np.array([a.deadline_s for a in arrivals]),
            cancel_s=np.array(self.cancel_s),
        )
        if not any(a.blocks for a in arrivals):
            return block
        first = np.cumsum([0, *(len(a.blocks) for a in arrivals)])
        keys = np.array([key for a in arrivals for key in a.blocks], np.int64).view(np.uint64)
        return replace(block, block_tokens=PAGE_TOKENS, block_first=first, block_keys=keys)

    def of_served(self, records: pa.Table) -> pa.Table:
        """Return the records of requests finished live."""
        return records.take(self.served["id"])


def inputs_from(events: pa.Table, requests: pa.Table, names: Sequence[str]) -> Inputs:
    """Return a run's inputs."""
    try:
        entries: list[Any] = [event_of(row, names) for row in events.to_pylist()]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError("events", f"an event is invalid ({error})") from None
    arrivals = [event for event in entries if isinstance(event, Arrival)]
    number = {event.request_id: k for k, event in enumerate(arrivals)}
    lengths = [event.max_output_tokens for event in arrivals]
    done = requests.filter(pa.array([status == "finished" for status in _list(requests, "status")]))
    if not len(done):
        raise DataError("requests", "none was finished")
    missing = set(_list(done, "id")) - number.keys()
    if missing:
        raise DataError("requests", f"{min(missing)} was finished, but has no arrival")
    where = np.array([number[request] for request in _list(done, "id")])
    served = done.set_column(done.column_names.index("id"), "id", pa.array(where))
    served = served.take(np.argsort(where, kind="stable"))
    for k, length in zip(_list(served, "id"), _list(served, "output_tokens"), strict=True):
        lengths[k] = length
    cancel_s = [math.inf] * len(arrivals)
    for event in entries:
        if isinstance(event, Cancelled):
            k = number[event.request_id]
            cancel_s[k] = min(cancel_s[k], max(0.0, event.at_s - arrivals[k].at_s))
    return Inputs(
        arrivals=tuple(replace(event, request_id=k) for k, event in enumerate(arrivals)),
        lengths=tuple(lengths),
        cancel_s=tuple(cancel_s),
        others=tuple(event for event in entries if not isinstance(event, Arrival | Cancelled)),
        served=served,
    )


def _list(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist()
    return values
