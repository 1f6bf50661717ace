"""Records of steps, for calibration and analysis."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.engine.inputs import INPUTS_SCHEMA, row_of
from c2c.serving.tables.port import Event
from c2c.serving.tables.state import RECORD_DTYPE

__all__ = ["StepRow", "Tape", "Totals"]

_PACKED = 10_000  # rows kept as Python objects before they are packed into columns
_RECENT = 1_000  # steps that the live page shows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step of a worker.

    Attributes:
      plan: number of the plan.
      number: step in the plan, from 0; -1: a load.
      device: the worker's slot.
      chunk: padded prompt tokens of all calls.
      rows: padded rows of one token, likewise.
      calls: `chunk` of each call; 0: decodes alone.
      prompt_tokens: without padding.
      decodes: without padding.
      kv_tokens: positions attended to by decodes.
      seconds: time on the device; `host_s`: further time on the host.
      begun_s: when the plan was caused.
      outside_s: from the plan's event or the previous report to this one, without the worker's
        time; negative after a late report.
      is_turn: whether the model changed.
      is_cold: whether weights were waited for.
    """

    plan: int
    number: int
    device: int
    model: str
    chunk: int
    rows: int
    calls: list[int]
    prompt_tokens: int
    decodes: int
    kv_tokens: int
    seconds: float
    host_s: float
    begun_s: float
    sent_s: float
    heard_s: float
    outside_s: float
    is_turn: bool
    is_cold: bool
    again: int
    found: int


@dataclass(slots=True)
class Totals:
    """Totals of a model since the start."""

    steps: int = 0
    device_s: float = 0.0
    prompt_tokens: int = 0
    decode_tokens: int = 0
    padded_tokens: int = 0
    again_tokens: int = 0
    found_tokens: int = 0
    turns: int = 0
    loads: int = 0
    load_s: float = 0.0

    def add(self, row: StepRow) -> None:
        """Count a step or a load."""
        if row.number < 0:
            self.loads += 1
            self.load_s += row.heard_s - row.begun_s
            return
        self.steps += 1
        self.device_s += row.seconds
        self.prompt_tokens += row.prompt_tokens
        self.decode_tokens += row.decodes
        self.padded_tokens += max(
            0, row.chunk + row.rows - row.prompt_tokens - row.again - row.decodes
        )
        self.again_tokens += row.again
        self.found_tokens += row.found
        self.turns += row.is_turn


_TYPES: dict[str, Any] = {
    "int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_(),
    "list[int]": pa.list_(pa.int64()),
}  # fmt: skip
_SCHEMA = pa.schema(
    [(name, _TYPES[str(field.type)]) for name, field in StepRow.__dataclass_fields__.items()]
)


class Tape:
    """A run's totals and last steps; all steps, requests and inputs on demand."""

    def __init__(self, *, is_kept: bool) -> None:
        """Create a tape; `is_kept`: with steps, requests and inputs."""
        self._is_kept = is_kept
        self._steps: list[StepRow] = []
        self._step_tables: list[pa.Table] = []
        self._records: list[tuple[Any, ...]] = []
        self._record_tables: list[np.ndarray] = []
        self._inputs: list[dict[str, Any]] = []
        self._input_tables: list[pa.Table] = []
        self.recent: deque[StepRow] = deque(maxlen=_RECENT)
        self.totals: dict[str, Totals] = {}

    def step(self, row: StepRow) -> None:
        """Record a step."""
        self.totals.setdefault(row.model, Totals()).add(row)
        if row.number >= 0:
            self.recent.append(row)
        if self._is_kept:
            self._steps.append(row)
            if len(self._steps) >= _PACKED:
                self._pack()

    def record(self, row: Any) -> None:
        """Record an ended request: a row of `RECORD_DTYPE`."""
        if self._is_kept:
            self._records.append(tuple(row))
            if len(self._records) >= _PACKED:
                self._pack()

    def event(self, event: Event, names: Sequence[str]) -> None:
        """Record an event if it is external."""
        row = row_of(event, names) if self._is_kept else None
        if row is not None:
            self._inputs.append(row)
            if len(self._inputs) >= _PACKED:
                self._pack()

    def _pack(self) -> None:
        columns = {
            field.name: pa.array([getattr(row, field.name) for row in self._steps], field.type)
            for field in _SCHEMA
        }
        self._step_tables.append(pa.table(columns, schema=_SCHEMA))
        self._record_tables.append(np.array(self._records, RECORD_DTYPE))
        self._input_tables.append(pa.Table.from_pylist(self._inputs, INPUTS_SCHEMA))
        self._steps, self._records, self._inputs = [], [], []

    def steps(self) -> pa.Table:
        """Return all steps, in the order of reports."""
        self._pack()
        return pa.concat_tables(self._step_tables)

    def inputs(self) -> pa.Table:
        """Return the external inputs, in order."""
        self._pack()
        return pa.concat_tables(self._input_tables)

    def records(self) -> np.ndarray:
        """Return the records of all requests, by number."""
        self._pack()
        return np.sort(np.concatenate(self._record_tables), order="id")
