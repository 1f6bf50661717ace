"""Inputs of a live run, for a replay: arrivals, cancellations and lost devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.engine.inputs import event_of
from c2c.errors import DataError
from c2c.serving.port import Arrival, BlocksLost, Cancelled, DeviceLost, Weights
from c2c.workloads import RequestBlock

__all__ = ["Inputs", "inputs_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a run; a request's id is its index in the order of arrival.

    Attributes:
      arrivals: arrivals of all requests.
      lengths: output tokens of each request; of an unfinished one, its limit of output tokens.
      others: all other events, in order of time.
      served: records of the finished requests.
    """

    arrivals: tuple[Arrival, ...]
    lengths: tuple[int, ...]
    others: tuple[Cancelled | DeviceLost | BlocksLost | Weights, ...]
    served: pa.Table

    def block(self) -> RequestBlock:
        """Return the requests in the simulator's form."""
        return RequestBlock(
            arrival_s=np.array([a.at_s for a in self.arrivals]),
            model=np.array([a.model for a in self.arrivals], np.int32),
            prompt_tokens=np.array([a.prompt_tokens for a in self.arrivals], np.int32),
            output_tokens=np.array(self.lengths, np.int32),
        )

    def of_served(self, records: pa.Table) -> pa.Table:
        """Return the records of requests that the live run finished.

        Args:
          records: records of all requests, sorted by id.
        """
        return records.take(self.served["id"])


def inputs_from(events: pa.Table, requests: pa.Table, names: Sequence[str]) -> Inputs:
    """Return the inputs of a run.

    Args:
      events: recorded events from outside the engine.
      requests: records of the requests.
      names: names of the models, in the order of the fleet.

    Raises:
      DataError: no request was finished, or the tables contradict each other.
    """
    try:
        given: list[Any] = [event_of(row, names) for row in events.to_pylist()]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError("events", f"an event is invalid ({error})") from None
    asked = [event for event in given if isinstance(event, Arrival)]
    number = {event.request_id: k for k, event in enumerate(asked)}
    lengths = [event.max_output_tokens for event in asked]
    done = requests.filter(pa.array([status == "finished" for status in _list(requests, "status")]))
    if not len(done):
        raise DataError("requests", "none was finished")
    missing = set(_list(done, "id")) - number.keys()
    if missing:
        raise DataError("requests", f"{min(missing)} was finished, but has no arrival")
    where = pa.array([number[request] for request in _list(done, "id")])
    served = done.set_column(done.column_names.index("id"), "id", where).sort_by("id")
    for k, length in zip(_list(served, "id"), _list(served, "output_tokens"), strict=True):
        lengths[k] = length
    others = [
        replace(event, request_id=number[event.request_id])
        if isinstance(event, Cancelled)
        else event
        for event in given
        if not isinstance(event, Arrival)
    ]
    return Inputs(
        arrivals=tuple(replace(event, request_id=k) for k, event in enumerate(asked)),
        lengths=tuple(lengths),
        others=tuple(others),
        served=served,
    )


def _list(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist()
    return values
