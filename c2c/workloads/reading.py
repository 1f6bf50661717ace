"""Interpretation of a trace: unit and zero of its times, block size, lengths, unused columns."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from c2c.errors import DataError, SettingError
from c2c.workloads.blocks import MEASURED
from c2c.workloads.formats import TraceFile, mapping
from c2c.workloads.names import like_fields, plain_name
from c2c.workloads.parsing import GOOD, times, token_counts

__all__ = [
    "UNITS",
    "Clock",
    "block_tokens_of",
    "clock_of",
    "has_lengths",
    "refuse_made_up",
    "unused_columns",
]

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_EPOCH_S = (1e9, 1e10)  # seconds since 1970 of the years from 2001 to 2286
_FAR_S = 3600.0  # a later first arrival counts from another zero than the trace's start
_LENGTHS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Clock:
    """Unit and zero of a trace's times.

    Attributes:
      per_second: units of a numeric time per second, such as 1e3 for ms.
      keeps_origin: whether time 0 is the file's own zero, not the first request.
      says: description of both in words.
    """

    per_second: float
    keeps_origin: bool
    says: str


def clock_of(trace: TraceFile, unit: str, origin: str) -> Clock:
    """Return the unit and the zero of a trace's times, as set or inferred from its first times.

    Args:
      trace: opened trace.
      unit: a name in `UNITS`; "auto": the unit in which the first time is an epoch time between
        2001 and 2286, else the format's.
      origin: "keep", "first", or "auto": keep if the format's times count from the trace's start
        and the first request is at most an hour after it.

    Raises:
      SettingError: a unit given for dates, or one that cannot be inferred.
    """
    first, fractional = _first_time(trace)
    if first is None:
        if unit != "auto":
            raise SettingError("workload.time_unit", unit, "auto, as times are dates")
        return Clock(1.0, False, "dates; 0 is the first request")
    told = f"{_WORDS.get(unit, '')} (workload.time_unit)"
    if unit == "auto":
        for name, per_second in UNITS.items():
            if _EPOCH_S[0] <= first / per_second < _EPOCH_S[1]:
                unit, told = name, f"{_WORDS[name]} since 1970"
                break
        else:
            unit = trace.format.unit
            told = f"{_WORDS[unit]} (format {trace.format.name}; or set workload.time_unit)"
            if unit != "s" and fractional:
                raise SettingError(
                    "workload.time_unit", "auto", "s or ms",
                    f"{trace.path.name} has times with fractions; the format "
                    f"{trace.format.name} has whole milliseconds.",
                )  # fmt: skip
    first_s = first / UNITS[unit]
    near = trace.format.keeps_origin and first_s <= _FAR_S
    keeps = origin == "keep" or (origin == "auto" and near)
    zero = "0 is the file's own zero" if keeps else "0 is the first request"
    if first_s and not keeps:
        zero += f", at {first_s:,.15g} s"
    return Clock(UNITS[unit], keeps, f"{told}; {zero}")


def _first_time(trace: TraceFile) -> tuple[float | None, bool]:
    """Return the first usable time, None for dates, and whether its batch has fractions."""
    import pyarrow.compute as pc

    for batch in trace.batches():
        column = batch.column(trace.columns["arrival_s"])
        verdict = np.full(batch.num_rows, GOOD, np.int8)
        found = times(column, verdict)
        if (good := verdict == GOOD).any():
            if found.dtype == np.int64:
                return None, False
            dotted = pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "."))
            whole = bool((found[good] == np.floor(found[good])).all())
            return float(found[good][0]), not whole or (bool(dotted) and dotted.as_py() is True)
    return 0.0, False


def block_tokens_of(trace: TraceFile, told: int) -> int:
    """Return the tokens of a hashed block of the trace; 0 if it has no hashes.

    Args:
      trace: opened trace.
      told: value of `workload.block_tokens`; 0: the file's own value or the format's.

    Raises:
      SettingError: no value is known, or one is set for a trace without hashes.
    """
    if "hash_ids" not in trace.columns:
        if told:
            raise SettingError(
                "workload.block_tokens", told, f"0: {trace.path.name} has no column of hashes",
                f"Name it with {mapping({'hash_ids': '<column>'})}.",
            )  # fmt: skip
        return 0
    if not (tokens := told or trace.block_tokens or trace.format.block_tokens):
        raise SettingError(
            "workload.block_tokens", 0,
            f"the tokens per block of {trace.columns['hash_ids']!r}",
        )  # fmt: skip
    return tokens


def has_lengths(trace: TraceFile) -> bool:
    """Return whether the trace has token counts (GenTD26 has the columns, all null)."""
    return len(_filled_lengths(trace)) == len(_LENGTHS)


def _filled_lengths(trace: TraceFile) -> dict[str, str]:
    return {
        field: column
        for field, column in trace.columns.items()
        if field in _LENGTHS
        and any(batch.column(column).null_count < batch.num_rows for batch in trace.batches())
    }


def refuse_made_up(trace: TraceFile, told: Container[str], lengths_too: bool) -> None:
    """Refuse to make up models or lengths if an unused column seems to hold them.

    Args:
      trace: opened trace.
      told: fields that `workload.columns` names, with a column or as absent.
      lengths_too: whether lengths would be made up, not only models.

    Raises:
      DataError: a column seems to hold them; names it and the setting that maps it.
    """
    like: dict[str, str] = {}
    otherwise = []
    if lengths_too:
        numeric = _numeric(trace)
        found = _filled_lengths(trace)
        found |= like_fields(numeric, [f for f in _LENGTHS if f not in found and f not in told])
        if not found and (tokens := [c for c in numeric if "token" in plain_name(c)]):
            found = {"prompt_tokens": tokens[0]}
        if found:
            like = {f: found.get(f, "<column>") for f in _LENGTHS}
            otherwise.append("workload.lengths=synthetic draws lengths")
            if trace.container == "log":
                otherwise.append("workload.chars_per_token=4 counts texts")
    unused = unused_columns(trace, with_lengths=True)
    asked = "model" not in trace.columns and "model" not in told
    if asked and (models := like_fields(unused, ["model"])):
        like |= models
        otherwise.append(f"{mapping({'model': ''})} gives all requests one model")
    if like:
        made_up = ["lengths"] * ("prompt_tokens" in like) + ["models"] * ("model" in like)
        columns = ", ".join(repr(c) for c in like.values() if c in trace.present)
        raise DataError(
            str(trace.path),
            f"{' and '.join(made_up)} would be made up, although it has {columns}",
            f"To read that, set {mapping(like)}; otherwise {', and '.join(otherwise)}.",
        )


def unused_columns(trace: TraceFile, with_lengths: bool) -> list[str]:
    """Return the columns from which nothing is read.

    Args:
      trace: opened trace.
      with_lengths: whether token counts are the trace's own.
    """
    of_lengths = (*_LENGTHS, "hash_ids", *MEASURED)
    used = {c for f, c in trace.columns.items() if with_lengths or f not in of_lengths}
    return [column for column in trace.present if column not in used]


def _numeric(trace: TraceFile) -> list[str]:
    """Return the unused columns with positive numbers in at least half of the first batch."""
    batch = next((b for b in trace.batches() if b.num_rows), None)
    if batch is None:
        return []
    return [
        name
        for name in unused_columns(trace, with_lengths=True)
        if trace.present.count(name) == 1
        and 2 * np.count_nonzero(token_counts(batch.column(name)) > 0) >= batch.num_rows
    ]
