"""Parsing of a trace's cells, with verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from c2c.workloads.arrays import filled, nulls, scalar, values
from c2c.workloads.blocks import MEASURED, WISHES
from c2c.workloads.prefixes import Lists

__all__ = ["DATES", "GOOD", "KINDS", "RawRows", "kind_code", "parse", "times", "token_counts"]

_MAX_TOKENS = 2**31 - 1

# Faults of a row. A row counts once, under the first kind that applies.
KINDS: tuple[str, ...] = (
    "malformed_line",
    *(f"{kind}_arrival" for kind in ("missing", "unreadable", "nan", "infinite", "negative")),
    "missing_model",
    *(
        f"{kind}_tokens"
        for kind in (
            "missing",
            "unreadable",
            "nan",
            "infinite",
            "negative",
            "fractional",
            "zero_prompt",
            "zero_output",
            "too_many",
        )
    ),
    *(
        f"{kind}_{name}"
        for name in ("hash_ids", "waits_for")
        for kind in ("unreadable", "negative")
    ),
    *("unreadable_think_s", "unreadable_calls_tool"),
    *(f"{kind}_turn" for kind in ("missing", "unreadable", "nan", "infinite", "negative")),
    *(f"unreadable_{name}" for name in WISHES),
    "limit_below_output",
    "unordered",
    "duplicate",
)
GOOD = -1

DATES = (
    "Times are read as numbers (12.5) and as dates such as 2023-11-16 18:15:46.68, "
    "16.11.2023 18:15:46, 2023-11-16T18:15:46Z or 2023-11-16 18:15:46+02:00."
)
_DATE = r"^(\d{4}[-/]\d{2}[-/]\d{2}|\d{2}\.\d{2}\.\d{4})"
# Forms of a date that Arrow does not read, and their replacements.
_DATE_FORMS = (
    (r"^(\d{4})/(\d{2})/(\d{2})", r"\1-\2-\3"),
    (r"^(\d{2})\.(\d{2})\.(\d{4})", r"\3-\2-\1"),
    (r"(:\d{2}),(\d+)", r"\1.\2"),
    (r"\s*(?:UTC|GMT|Z)$", "Z"),
    (r"\s+([+-]\d{2}(?::?\d{2})?)$", r"\1"),
)
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^[+-]?(nan|inf|infinity)$"
_SEPARATOR = "[,'_ \u00a0\u202f]"
_GROUPED = rf"^[+-]?[1-9]\d{{0,2}}({_SEPARATOR}\d{{3}})+(\.\d*)?$"


def kind_code(kind: str) -> int:
    """Return the code of a kind in `RawRows.verdict`."""
    return KINDS.index(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """Batch of parsed rows, valid where `verdict` is GOOD.

    Attributes:
      time: i64 nanoseconds since the epoch for date-times, else f64 in the file's unit.
      model: i32, index into `ids`; -1 if missing.
      prompt_tokens: i32; zeros if not read from the trace.
      verdict: i8, GOOD or an index into `KINDS`.
      hashes: of the prompts' blocks; None: not read.
      session: the session's id, or the request's own with `parent`; None: no column.
      turn: f64, in the session from 1, or 0; None: no column.
      measured: f64 by name in `c2c.workloads.blocks.MEASURED`; NaN: none.
      wishes: f64 by name in `c2c.workloads.blocks.WISHES`; NaN: none.
    """

    time: NDArray[np.int64] | NDArray[np.float64]
    ids: tuple[str, ...]
    model: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    verdict: NDArray[np.int8]
    hashes: Lists | None = None
    session: pa.Array | None = None
    parent: pa.Array | None = None
    turn: NDArray[np.float64] | None = None
    waits_for: Lists | None = None
    think_s: NDArray[np.float64] | None = None
    calls_tool: NDArray[np.bool_] | None = None
    measured: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    wishes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def parse(
    batch: pa.RecordBatch,
    columns: Mapping[str, str],
    *,
    label: str,
    with_lengths: bool,
    max_total_tokens: int,
    with_hashes: bool = False,
    may_be_prefill: bool = False,
) -> RawRows:
    """Parse a batch's columns and judge each row.

    Args:
      columns: field -> column of the file.
      label: all rows' model id without a column.
      with_lengths: whether token counts are judged.
      max_total_tokens: limit of good rows; 0: none.
      may_be_prefill: whether rows without output are good.
    """
    rows = batch.num_rows
    verdict = np.full(rows, GOOD, np.int8)
    time = times(batch.column(columns["arrival_s"]), verdict)
    if "model" in columns:
        ids, model = _models(batch.column(columns["model"]))
        _judge(verdict, model < 0, "missing_model")
    else:
        ids, model = (label,), np.zeros(rows, np.int32)
    prompt = output = np.zeros(rows, np.int32)
    if with_lengths:
        prompt = _tokens(batch.column(columns["prompt_tokens"]), verdict, "zero_prompt_tokens")
        zero = "" if may_be_prefill else "zero_output_tokens"
        output = _tokens(batch.column(columns["output_tokens"]), verdict, zero)
        if max_total_tokens:
            total = prompt.astype(np.int64) + output
            _judge(verdict, total > max_total_tokens, "too_many_tokens")
    wishes = {
        name: _wishes(batch.column(columns[name]), verdict, name)
        for name in WISHES
        if name in columns and (with_lengths or name != "max_output_tokens")
    }
    if "max_output_tokens" in wishes:
        _judge(verdict, wishes["max_output_tokens"] < output, "limit_below_output")
    return RawRows(
        time=time,
        ids=ids,
        model=model,
        prompt_tokens=prompt,
        output_tokens=output,
        verdict=verdict,
        hashes=number_lists(batch.column(columns["hash_ids"]), verdict, "hash_ids")
        if with_hashes
        else None,
        session=_text(batch, columns.get("session")),
        parent=_text(batch, columns.get("parent")),
        turn=_turns(batch.column(columns["turn"]), verdict)
        if {"session", "turn"} <= columns.keys()
        else None,
        waits_for=number_lists(batch.column(columns["waits_for"]), verdict, "waits_for")
        if {"session", "turn", "waits_for"} <= columns.keys()
        else None,
        think_s=_wishes(batch.column(columns["think_s"]), verdict, "think_s")
        if "think_s" in columns
        else None,
        calls_tool=_truths(batch.column(columns["calls_tool"]), verdict, "calls_tool")
        if "calls_tool" in columns
        else None,
        measured={
            name: _measured(batch.column(columns[name]))
            for name in MEASURED
            if name in columns and with_lengths
        },
        wishes=wishes,
    )


def number_lists(raw: pa.Array, verdict: NDArray[np.int8], name: str) -> Lists:
    """Parse and judge lists of whole numbers, or text such as "[1, 2]"."""
    import pyarrow.compute as pc

    array = _plain(raw)
    none = nulls(array)
    if _is_text(array):
        empty = filled(pc.match_substring_regex(array, r"^\[\s*\]$"), value=False)
        none = none | values(empty)
        looks = pc.match_substring_regex(array, r"(?s)^\[.*\]$")
        array = pc.if_else(pc.and_not(looks, empty), array, pa.nulls(1, array.type)[0])
        array = pc.split_pattern(pc.utf8_slice_codeunits(array, 1, -1), ",")
    elif not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        array = pa.nulls(len(array), pa.list_(pa.uint64()))
    _judge(verdict, nulls(array) & ~none, f"unreadable_{name}")
    counts = values(filled(pc.list_value_length(array), 0))
    flat, negative = _whole_numbers(_plain(pc.list_flatten(array)))
    row = np.repeat(np.arange(len(array)), counts)
    for bad, kind in ((negative, "negative"), (flat.is_null(), "unreadable")):
        rows = row[values(bad)]
        _judge(verdict, np.bincount(rows, minlength=len(array)) > 0, f"{kind}_{name}")
    return Lists(
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        values=values(filled(flat, 0)),
    )


def _whole_numbers(flat: pa.Array) -> tuple[pa.Array, pa.Array]:
    import pyarrow.compute as pc

    unsigned = pa.uint64()
    if _is_text(flat):
        negative = filled(pc.match_substring_regex(flat, r"^-\d+$"), value=False)
        return _cast(flat, (unsigned,), r"^\d+$"), negative
    if pa.types.is_signed_integer(flat.type):
        negative = filled(pc.less(flat, scalar(0, flat.type)), value=False)
        return pc.cast(pc.if_else(negative, pa.nulls(1, flat.type)[0], flat), unsigned), negative
    if not pa.types.is_unsigned_integer(flat.type):
        flat = pa.nulls(len(flat), unsigned)
    return pc.cast(flat, unsigned), pa.repeat(scalar(False, pa.bool_()), len(flat))


def _measured(raw: pa.Array) -> NDArray[np.float64]:
    judged = np.full(len(raw), GOOD, np.int8)  # apart: a row without measurement is not bad
    numbers = _numbers(_plain(raw), judged, "tokens")
    return np.where(judged == GOOD, numbers, np.nan)


def _wishes(raw: pa.Array, verdict: NDArray[np.int8], name: str) -> NDArray[np.float64]:
    array = _plain(raw)
    missing, judged = nulls(array), np.full(len(array), GOOD, np.int8)
    numbers = _numbers(array, judged, "tokens")
    if name == "priority":
        judged[judged == kind_code("negative_tokens")] = GOOD
    is_whole = name in ("priority", "max_output_tokens")
    least = numbers < 0.0 if name == "think_s" else numbers <= 0.0
    bad = (judged != GOOD) | (numbers != np.floor(numbers) if is_whole else least)
    _judge(verdict, bad & ~missing, f"unreadable_{name}")
    return np.where(missing, np.nan, numbers)


def _truths(raw: pa.Array, verdict: NDArray[np.int8], name: str) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    text = pc.utf8_lower(_plain(pc.cast(raw, pa.string())))
    is_true = filled(pc.equal(text, scalar("true", pa.string())), value=False)
    is_false = filled(pc.equal(text, scalar("false", pa.string())), value=True)  # also an empty one
    _judge(verdict, ~values(is_true) & ~values(is_false), f"unreadable_{name}")
    return values(is_true).astype(np.bool_)


def _turns(raw: pa.Array, verdict: NDArray[np.int8]) -> NDArray[np.float64]:
    import pyarrow.compute as pc

    array = _plain(raw)
    if _is_text(array) or pa.types.is_primitive(array.type):  # 0: unknown
        array = pc.fill_null(array, scalar(0, array.type))
    return _numbers(array, verdict, "turn")


def _text(batch: pa.RecordBatch, column: str | None) -> pa.Array | None:
    import pyarrow.compute as pc

    return None if column is None else _plain(pc.cast(batch.column(column), pa.string()))


def token_counts(raw: pa.Array) -> NDArray[np.float64]:
    """Return a column as f64; 0 for bad cells."""
    return _numbers(_plain(raw), np.full(len(raw), GOOD, np.int8), "tokens")


def _judge(verdict: NDArray[np.int8], bad: NDArray[np.bool_], kind: str) -> None:
    verdict[bad & (verdict == GOOD)] = kind_code(kind)


def _is_text(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


def _plain(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_text(array):
        array = pc.utf8_trim_whitespace(array)
        empty = pc.equal(array, scalar("", array.type))
        array = pc.if_else(empty, pa.nulls(1, array.type)[0], array)
    return array


def _cast(
    array: pa.Array,
    kinds: tuple[pa.DataType, ...],
    looks_right: str,
    tidy: Callable[[pa.Array], pa.Array] = lambda array: array,
) -> pa.Array:
    import pyarrow.compute as pc

    try:
        return pc.cast(array, kinds[0])
    except pa.ArrowException:  # some cell does not fit
        array = tidy(array)
        likely = pc.match_substring_regex(array, looks_right, ignore_case=True)
        return _cast_each(pc.if_else(likely, array, pa.nulls(1, array.type)[0]), kinds)


def _without_groups(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    plain = pc.replace_substring_regex(array, _SEPARATOR, "")
    return pc.if_else(pc.match_substring_regex(array, _GROUPED), plain, array)


def _with_iso_dates(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    for form, iso in _DATE_FORMS:
        array = pc.replace_substring_regex(array, form, iso)
    return array


def _cast_each(array: pa.Array, kinds: tuple[pa.DataType, ...]) -> pa.Array:
    import pyarrow.compute as pc

    for kind in kinds:
        try:
            return pc.cast(array, kind).cast(kinds[0])
        except pa.ArrowException:  # halve until the cell that does not fit is isolated
            continue
    if len(array) == 1:
        return pa.nulls(1, kinds[0])
    half = len(array) // 2
    parts = array.slice(0, half), array.slice(half)
    return pa.concat_arrays([_cast_each(part, kinds) for part in parts])


def times(raw: pa.Array, verdict: NDArray[np.int8]) -> NDArray[np.int64] | NDArray[np.float64]:
    """Parse and judge a column for `RawRows.time`."""
    array = _plain(raw)
    parsed: pa.Array
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ns"))
    if _is_text(array) and _looks_like_date(array):
        utc = pa.timestamp("ns", "UTC")
        parsed = _cast(array, (pa.timestamp("ns"), utc), _DATE, _with_iso_dates)
    elif pa.types.is_timestamp(array.type):
        parsed = array.cast(pa.timestamp("ns", array.type.tz), safe=False)
    else:
        return _numbers(array, verdict, "arrival")
    missing = nulls(array)
    unreadable = nulls(parsed) & ~missing
    _judge(verdict, missing, "missing_arrival")
    _judge(verdict, unreadable, "unreadable_arrival")
    return values(filled(parsed.cast(pa.int64()), 0))


def _looks_like_date(array: pa.Array) -> bool:
    import pyarrow.compute as pc

    dates = pc.sum(pc.match_substring_regex(array, _DATE)).as_py() or 0
    return bool(2 * dates > len(array) - array.null_count)


def _numbers(array: pa.Array, verdict: NDArray[np.int8], column: str) -> NDArray[np.float64]:
    import pyarrow.compute as pc

    missing = nulls(array)
    if _is_text(array):
        parsed = _cast(array, (pa.float64(),), _NUMBER, _without_groups)
    else:
        try:
            parsed = pc.cast(array, pa.float64(), safe=False)
        except pa.ArrowException:  # a type that is not numeric, such as a list
            parsed = pa.nulls(len(array), pa.float64())
    unreadable = nulls(parsed) & ~missing
    result: NDArray[np.float64] = values(filled(parsed, 0.0))
    _judge(verdict, missing, f"missing_{column}")
    _judge(verdict, unreadable, f"unreadable_{column}")
    _judge(verdict, np.isnan(result), f"nan_{column}")
    _judge(verdict, np.isinf(result), f"infinite_{column}")
    _judge(verdict, result < 0, f"negative_{column}")
    return result


def _tokens(raw: pa.Array, verdict: NDArray[np.int8], zero_kind: str) -> NDArray[np.int32]:
    numbers = _numbers(_plain(raw), verdict, "tokens")
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    _judge(verdict, finite != np.floor(finite), "fractional_tokens")
    if zero_kind:
        _judge(verdict, finite == 0, zero_kind)
    _judge(verdict, finite > _MAX_TOKENS, "too_many_tokens")
    return np.clip(finite, 0, _MAX_TOKENS).astype(np.int32)


def _models(raw: pa.Array) -> tuple[tuple[str, ...], NDArray[np.int32]]:

    array = _plain(raw)
    if not _is_text(array):
        array = array.cast(pa.string())
    encoded = array.dictionary_encode()
    codes = values(filled(encoded.indices, -1)).astype(np.int32)
    return tuple(encoded.dictionary.to_pylist()), codes
