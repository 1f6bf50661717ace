"""Measured latencies of a trace's requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.config import RunSetup
from c2c.metrics import RECORD_SCHEMA, Records, percentiles, tpot_s, ttft_s
from c2c.workloads import MEASURED, RequestBlock

__all__ = ["Measured", "beside_simulated", "has_measured"]


def has_measured(setup: RunSetup) -> bool:
    """Return whether a run's requests have measured latencies."""
    description = setup.workload.description
    return bool(description.get("measured")) and description["lengths"]["name"] == "the trace's own"


class Measured:
    """Measured latencies of requests, added to records by id."""

    schema = pa.schema([*RECORD_SCHEMA, *(pa.field(name, pa.float64()) for name in MEASURED)])

    def __init__(self) -> None:
        self._next = 0
        self._ids: list[npt.NDArray[np.int64]] = []
        self._values: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in MEASURED}

    def over(self, blocks: Iterable[RequestBlock]) -> Iterator[RequestBlock]:
        """Yield the blocks and keep their latencies."""
        for block in blocks:
            count = np.arange(self._next, self._next + len(block))
            self._ids.append(count if block.ids is None else block.ids)
            self._next += len(block)
            for name, parts in self._values.items():
                column = getattr(block, name)
                parts.append(np.full(len(block), np.nan) if column is None else column)
            yield block

    def added(self, records: pa.Table) -> pa.Table:
        """Return records with columns of `MEASURED`, null if unknown."""
        indexes = np.searchsorted(np.concatenate(self._ids), records.column("id").to_numpy())
        for name, parts in self._values.items():
            values = np.concatenate(parts)[indexes]
            records = records.append_column(name, pa.array(values, from_pandas=True))
        return records


def beside_simulated(records: Records) -> dict[str, Any]:
    """Return percentiles of measured and simulated latencies over requests with both."""
    names = ("arrival_s", "first_token_s", "finished_s", "output_tokens", *MEASURED)
    parts = [records.read(part, names) for part in range(len(records.parts))]
    column_of = {name: np.concatenate([part[name].to_numpy() for part in parts]) for name in names}
    simulated: Mapping[str, npt.NDArray[np.float64]] = {
        "ttft_s": ttft_s(column_of["arrival_s"], column_of["first_token_s"]),
        "tpot_s": tpot_s(
            column_of["first_token_s"], column_of["finished_s"], column_of["output_tokens"]
        ),
    }
    result = {}
    for name, values in simulated.items():
        measured = column_of[f"measured_{name}"]
        both = ~np.isnan(values) & ~np.isnan(measured)
        if both.any():
            result[name] = {
                "requests": int(np.count_nonzero(both)),
                "measured": percentiles(measured[both]),
                "simulated": percentiles(values[both]),
            }
    return result
