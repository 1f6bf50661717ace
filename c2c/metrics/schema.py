"""Columns of records and phases, defined in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.errors import DataError

__all__ = [
    "PHASE_KINDS",
    "PHASE_SCHEMA",
    "RECORD_SCHEMA",
    "START_KINDS",
    "STATUSES",
    "phase_table",
    "record_table",
]

START_KINDS = ("warm", "switch", "cold")
STATUSES = ("finished", "failed")
PHASE_KINDS = ("prefill", "decode", "mixed", "switch", "load")

_NAME = pa.dictionary(pa.int32(), pa.string())

RECORD_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("model", _NAME),
        ("arrival_s", pa.float64()),
        ("admitted_s", pa.float64()),
        ("started_s", pa.float64()),
        ("first_token_s", pa.float64()),
        ("finished_s", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("instance", pa.int32()),
        ("slice", pa.int32()),
        ("chip", pa.int32()),
        ("start_kind", _NAME),
        ("chunks", pa.int32()),
        ("alpha_mean", pa.float64()),
        ("link_bytes", pa.float64()),
        ("hbm_bytes", pa.float64()),
        ("cached_hbm_tokens", pa.int32()),
        ("cached_host_tokens", pa.int32()),
        ("ttft_slo_s", pa.float64()),
        ("tpot_slo_s", pa.float64()),
        ("status", _NAME),
        ("reason", _NAME),
    ]
)

PHASE_SCHEMA = pa.schema(
    [
        ("chip", pa.int32()),
        ("instance", pa.int32()),
        ("model", _NAME),
        ("kind", _NAME),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("tokens", pa.int32()),
        ("seqs", pa.int32()),
        ("steps", pa.int64()),
        ("alpha", pa.float64()),
        ("link_gbps", pa.float64()),
    ]
)


def record_table(
    columns: Mapping[str, npt.NDArray[Any]], names: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Return records as a table of `RECORD_SCHEMA`.

    Args:
      columns: one array per column; `model`, `start_kind`, `status` and `reason` hold codes.
      names: of the codes; by default `START_KINDS` and `STATUSES`.

    Raises:
      DataError: a missing, unknown or unequal column, or an unnamed code.
    """
    return _table(columns, {"start_kind": START_KINDS, "status": STATUSES, **names}, RECORD_SCHEMA)


def phase_table(
    columns: Mapping[str, npt.NDArray[Any]], names: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Return a table of `PHASE_SCHEMA`; codes are `PHASE_KINDS` by default."""
    return _table(columns, {"kind": PHASE_KINDS, **names}, PHASE_SCHEMA)


def _table(
    columns: Mapping[str, npt.NDArray[Any]], names: Mapping[str, Sequence[str]], schema: Any
) -> pa.Table:
    if wrong := sorted(set(schema.names).symmetric_difference(columns)):
        raise DataError("records", f"missing or unknown columns: {', '.join(wrong)}")
    lengths = {name: len(columns[name]) for name in schema.names}
    if len(set(lengths.values())) > 1:
        raise DataError("records", f"columns of different length: {lengths}")
    arrays = [_array(np.asarray(columns[f.name]), f, names.get(f.name)) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: npt.NDArray[Any], field: Any, names: Sequence[str] | None) -> Any:
    if not pa.types.is_dictionary(field.type):
        return _numbers(values, field.type)
    if names is None:
        raise DataError("records", f"column {field.name} holds codes but no names were given")
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(names):
        raise DataError("records", f"column {field.name} has a code outside 0..{len(names) - 1}")
    codes = _numbers(values, pa.int32())
    return pa.DictionaryArray.from_arrays(codes, _texts(names))


# Like `pa.array`, which imports pandas to recognise its objects.
def _numbers(values: npt.NDArray[Any], kind: Any) -> Any:
    plain = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(plain), [None, pa.py_buffer(plain)])


def _texts(values: Sequence[str]) -> Any:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)
