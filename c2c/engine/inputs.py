"""External inputs of the loop, which with step durations determine a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from c2c.serving.tables.port import (
    Arrival,
    BlocksLost,
    Cancelled,
    DeviceLost,
    DropWeights,
    Event,
    KeepWeights,
    ReleaseWeights,
    WeightsHere,
)

__all__ = ["INPUTS_SCHEMA", "event_of", "row_of"]

_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        Arrival, BlocksLost, Cancelled, DeviceLost, KeepWeights, WeightsHere, ReleaseWeights,
        DropWeights,
    )
}  # fmt: skip
_FIELDS = {
    "at_s": pa.float64(), "request_id": pa.int64(), "model": pa.string(), "device": pa.int64(),
    "prompt_tokens": pa.int64(), "max_output_tokens": pa.int64(), "priority": pa.int64(),
    "deadline_s": pa.float64(), "blocks": pa.list_(pa.int64()),
}  # fmt: skip
INPUTS_SCHEMA = pa.schema([("kind", pa.string()), *_FIELDS.items()])


def row_of(event: Event, names: Sequence[str]) -> dict[str, Any] | None:
    """Return an external event as a row, else None."""
    kind = type(event).__name__
    if kind not in _KINDS:
        return None
    row: dict[str, Any] = {"kind": kind}
    row |= {name: getattr(event, name, None) for name in _FIELDS}
    if row["model"] is not None:
        row["model"] = names[row["model"]]
    return row


def event_of(row: Mapping[str, Any], names: Sequence[str]) -> Event:
    """Return a row's event.

    Raises:
      KeyError: the kind is unknown.
      ValueError: the model is unknown.
    """
    kind = _KINDS[row["kind"]]
    attributes = kind.__dataclass_fields__
    values = {name: row[name] for name in _FIELDS if name in attributes and name in row}
    if "model" in values:
        values["model"] = list(names).index(values["model"])
    if "blocks" in values:
        values["blocks"] = tuple(values["blocks"] or ())
    event: Event = kind(**values)
    return event
