"""What was done, a row a step: what calibrates the cost model, and what explains a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

__all__ = ["StepRow", "steps_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a worker.

    Attributes:
      plan: number of the plan that it is a step of.
      number: of the step in its plan, from 0.
      device: the worker's place.
      model: name.
      chunk: prompt tokens with padding, of all its calls.
      rows: rows of one token with padding, of all its calls.
      calls: how many.
      prompt_tokens: without padding.
      decodes: rows without padding.
      kv_tokens: positions that those attend to.
      seconds: of the device.
      host_s: of the worker beside that.
      sent_s: when the plan was sent.
      heard_s: when the step was heard of.
      outside_s: from the event that the plan follows from, or the step before, to the end of this
        step, beside the worker's seconds: the loop, the frames, waiting for a core.
      is_turn: another model than the step before.
      again: prompt tokens that were computed anew, after a worker was lost.
    """

    plan: int
    number: int
    device: int
    model: str
    chunk: int
    rows: int
    calls: int
    prompt_tokens: int
    decodes: int
    kv_tokens: int
    seconds: float
    host_s: float
    sent_s: float
    heard_s: float
    outside_s: float
    is_turn: bool
    again: int


def steps_table(rows: list[StepRow]) -> pa.Table:
    """Return steps as a table, in the order in which they were heard of."""
    names = StepRow.__dataclass_fields__
    types: dict[str, Any] = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(),
                             "bool": pa.bool_()}  # fmt: skip
    schema = pa.schema([(name, types[str(field.type)]) for name, field in names.items()])
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
