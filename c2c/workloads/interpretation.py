"""Interpretation of a trace: times, block size, lengths, unused columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from c2c.errors import DataError, SettingError
from c2c.workloads.blocks import MEASURED
from c2c.workloads.formats import TraceFile
from c2c.workloads.guesses import mapping, numeric
from c2c.workloads.names import UNITS, unit_of
from c2c.workloads.parsing import GOOD, times

__all__ = [
    "Clock",
    "block_tokens_of",
    "clock_of",
    "doubt_of_unit",
    "refuse_without_lengths",
    "unused_columns",
]

_WORDS = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
    "min": "minutes", "h": "hours", "d": "days",
}  # fmt: skip
_EPOCH_UNITS = ("s", "ms", "us", "ns")
_EPOCH_S = (1e9, 1e10)  # seconds since 1970 of the years from 2001 to 2286
_FAR_S = 3600.0  # a later first arrival counts from another zero than the trace's start
# Mean gaps in assumed seconds from which the unit may be another: to say so, and to ask for it.
_SAID_S, _ASKED_S = 1.0, 60.0
_ASKED_FRACTIONAL_S = 3600.0  # times with fractions are seldom milliseconds
_LENGTHS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Clock:
    """Unit and zero of a trace's times.

    Attributes:
      per_second: units per second, such as 1e3 for ms.
      keeps_origin: whether time 0 is the file's, not the first request.
      assumed: whether seconds are assumed.
    """

    per_second: float
    keeps_origin: bool
    says: str
    assumed: bool = False
    fractional: bool = False


def clock_of(trace: TraceFile, unit: str, origin: str) -> Clock:
    """Return a trace's unit and zero, set or inferred."""
    first, fractional = _first_time(trace)
    if first is None:
        if unit != "auto":
            raise SettingError("workload.time_unit", unit, "auto, as times are dates")
        return Clock(1.0, False, "dates; 0 is the first request")
    assumed = False
    text = f"{_WORDS.get(unit, '')} (workload.time_unit)"
    if unit == "auto":
        column = trace.columns["arrival_s"]
        of_name = None if trace.format.unit else unit_of(column)
        epochs = [u for u in _EPOCH_UNITS if _EPOCH_S[0] <= first / UNITS[u] < _EPOCH_S[1]]
        if of_name in epochs or (epochs and not of_name):
            unit = of_name or epochs[0]
            text = f"{_WORDS[unit]} since 1970"
        elif of_name and first / UNITS[of_name] < _EPOCH_S[1]:
            unit = of_name
            text = f"{_WORDS[unit]} (column {column})"
        elif epochs:
            unit = epochs[0]
            text = f"{_WORDS[unit]} since 1970 (although the column is {column})"
        elif trace.format.unit:
            unit = trace.format.unit
            text = f"{_WORDS[unit]} (format {trace.format.name}; or set workload.time_unit)"
            if unit != "s" and fractional:
                raise SettingError(
                    "workload.time_unit", "auto", "s or ms",
                    f"{trace.path.name} has times with fractions; the format "
                    f"{trace.format.name} has whole milliseconds.",
                )  # fmt: skip
        else:
            unit, assumed = "s", True
            text = f"seconds (assumed for column {column}; or set workload.time_unit)"
    first_s = first / UNITS[unit]
    near = trace.format.keeps_origin and first_s <= _FAR_S
    keeps = origin == "keep" or (origin == "auto" and near)
    zero = "0 is the file's own zero" if keeps else "0 is the first request"
    if first_s and not keeps:
        zero += f", at {first_s:,.15g} s"
    return Clock(UNITS[unit], keeps, f"{text}; {zero}", assumed, fractional)


def doubt_of_unit(trace: TraceFile, clock: Clock, requests: int, span_s: float) -> str:
    """Return a line if assumed seconds make the load doubtful, else ""."""
    gap_s = span_s / requests
    if not clock.assumed or gap_s < _SAID_S:
        return ""
    column = trace.columns["arrival_s"]
    if gap_s >= (_ASKED_FRACTIONAL_S if clock.fractional else _ASKED_S):
        raise SettingError(
            "workload.time_unit", "auto", f"one of {', '.join(UNITS)}",
            f"Nothing tells the unit of column {column!r}: in seconds, {requests:,} requests "
            f"would take {_rounded(span_s / 3600)} h, in milliseconds {_rounded(span_s / 1e3)} s.",
        )  # fmt: skip
    return (
        f"column {column} is read as seconds, a request every {gap_s:.2g} s; if it has another "
        "unit, set workload.time_unit=ms"
    ) * (not clock.fractional)


def _rounded(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


def _first_time(trace: TraceFile) -> tuple[float | None, bool]:
    import pyarrow.compute as pc

    for batch in trace.batches():
        column = batch.column(trace.columns["arrival_s"])
        verdict = np.full(batch.num_rows, GOOD, np.int8)
        values = times(column, verdict)
        if (good := verdict == GOOD).any():
            if values.dtype == np.int64:
                return None, False
            dotted = trace.container == "json" and pa.types.is_floating(column.type)
            if pa.types.is_string(column.type):
                dotted = pc.any(pc.match_substring(column, ".")).as_py() is True
            whole = bool((values[good] == np.floor(values[good])).all())
            return float(values[good][0]), not whole or dotted
    return 0.0, False


def block_tokens_of(trace: TraceFile, setting: int) -> int:
    """Return a hashed block's tokens; 0: no hashes."""
    if "hash_ids" not in trace.columns:
        if setting:
            raise SettingError(
                "workload.block_tokens", setting, f"0: {trace.path.name} has no column of hashes",
                f"Name it with {mapping({'hash_ids': '<column>'})}.",
            )  # fmt: skip
        return 0
    if not (tokens := setting or trace.block_tokens or trace.format.block_tokens):
        raise SettingError(
            "workload.block_tokens", 0,
            f"the tokens per block of {trace.columns['hash_ids']!r}",
        )  # fmt: skip
    return tokens


def _filled_lengths(trace: TraceFile) -> dict[str, str]:
    return {
        field: column
        for field, column in trace.columns.items()
        if field in _LENGTHS
        and any(batch.column(column).null_count < batch.num_rows for batch in trace.batches())
    }


def refuse_without_lengths(trace: TraceFile) -> None:
    """Refuse a trace whose lengths would be drawn unasked."""
    absent = [field for field in _LENGTHS if field not in _filled_lengths(trace)]
    first = next((batch for batch in trace.batches() if batch.num_rows), None)
    if not absent or first is None:
        return
    free = [c for c in unused_columns(trace, with_lengths=True) if trace.present.count(c) == 1]
    holds = ""
    if numbers := numeric(first, free):
        holds += f"; whole numbers are in {', '.join(map(repr, numbers))}"
    if lists := [c for c in free if _has_records(first.column(c))]:
        holds += f"; lists of records are in {', '.join(map(repr, lists))}"
    remedy = f"Name their columns with {mapping(dict.fromkeys(absent, '<column>'))}."
    if trace.container == "log":
        remedy = "workload.chars_per_token=4 counts texts."
    raise DataError(
        str(trace.path),
        f"it has no {' and no '.join(absent)}{holds}",
        f"{remedy} workload.lengths=synthetic draws lengths.",
    )


def _has_records(cells: pa.Array) -> bool:
    text = str(next((cell for cell in cells.slice(0, 100).to_pylist() if cell), ""))
    return text.startswith("[{")


def unused_columns(trace: TraceFile, with_lengths: bool) -> list[str]:
    """Return the columns from which nothing is read."""
    of_lengths = (*_LENGTHS, "hash_ids", *MEASURED)
    used = {c for f, c in trace.columns.items() if with_lengths or f not in of_lengths}
    return [column for column in trace.present if column not in used]
