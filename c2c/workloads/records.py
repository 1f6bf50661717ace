"""JSON files as columns: lines, records, or a benchmark's result."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from c2c.errors import DataError
from c2c.workloads.agent_traces import agent_table, is_graph, is_weka
from c2c.workloads.containers import open_bytes
from c2c.workloads.json_lines import arrow_table
from c2c.workloads.spans import span_table

__all__ = ["json_records", "json_table"]

_PIECE = 1 << 20  # characters read at a time
_MOST = 1 << 27  # characters of a record: a benchmark's result is one record
_BATCH_ROWS = 65_536


def json_table(path: Path, *, as_text: bool = False) -> tuple[pa.Table, int]:
    """Return a file's records, as text or typed, and the count of malformed lines.

    Nested names are "usage.prompt_tokens". A list of `requests` (aibrix) becomes records, as do a
    benchmark's lists `input_lens`, `output_lens` and so on, with `tpots`, the mean time per token
    after the first, for `itls`.
    """
    if not as_text and (table := arrow_table(path)) is not None:
        return table, 0
    parts: list[pa.Table] = []
    rows: list[dict[str, str | None]] = []
    broken = 0
    records = json_records(path)
    first = next(records, None)
    records = chain([first], records) if first is not None else records
    if first is not None and (is_weka(first) or {"request_id", "resourceSpans"} & first.keys()):
        objects = list(records)
        if "resourceSpans" in first:
            return span_table(path, objects)
        if is_weka(first) or is_graph(objects):
            return agent_table(path, objects)
        records = iter(objects)
    for record in records:
        if record is None:
            broken += 1
            continue
        several = _of_benchmark(path, record) if "input_lens" in record else _of_group(record)
        rows.extend(_texts(one) for one in several)
        if len(rows) >= _BATCH_ROWS:
            parts.append(_table(rows))
            rows = []
    if not parts and not rows:
        raise DataError(str(path), "it has no record")
    parts.append(_table(rows))
    table = pa.concat_tables(parts, promote_options="default")
    outer = {
        name[:index] for name in table.column_names for index, c in enumerate(name) if c == "."
    }
    # A null in place of an object is no column beside those of the object.
    absent = [n for n in table.column_names if n in outer and table[n].null_count == len(table)]
    return table.drop_columns(absent), broken


def _table(rows: list[dict[str, str | None]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(cells: list[str | None]) -> pa.Array:
    try:
        return pa.array(cells, pa.string())
    except UnicodeEncodeError:  # half of a surrogate pair, as in a text that was cut
        return pa.array([c and c.encode("utf-8", "replace").decode() for c in cells], pa.string())


def _texts(record: Mapping[str, Any], within: str = "") -> dict[str, str | None]:
    cells: dict[str, str | None] = {}
    for key, value in record.items():
        name = f"{within}{key.strip()}"
        if isinstance(value, dict):
            cells |= _texts(value, f"{name}.")
        elif value is None or isinstance(value, str):
            cells[name] = value
        else:
            cells[name] = json.dumps(value)
    return cells


def _of_group(record: dict[str, Any]) -> list[dict[str, Any]]:
    requests = record.get("requests")
    if not isinstance(requests, list) or not all(isinstance(one, dict) for one in requests):
        return [record]
    return [record | {"requests": one} for one in requests]


def _of_benchmark(path: Path, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(result["input_lens"], list):
        return [dict(result)]
    lists = {name: value for name, value in result.items() if isinstance(value, list)}
    count = len(lists["input_lens"])
    for name in ("output_lens", "start_times"):
        if len(lists.get(name, lists["input_lens"])) != count:
            raise DataError(
                str(path), f"{name} has {len(lists[name])} entries and input_lens has {count}"
            )
    if len(lists.get("itls", ())) == count:
        tokens = lists.get("output_lens", [0] * count)
        lists["tpots"] = list(map(_mean_gap, lists.pop("itls"), tokens))
    lists = {name: value for name, value in lists.items() if len(value) == count}
    common = {name: value for name, value in result.items() if name not in {*lists, "itls"}}
    rows = [
        common | dict(zip(lists, values, strict=True))
        for values in zip(*lists.values(), strict=True)
    ]
    starts = lists.get("start_times", [])
    if all(isinstance(start, int | float) for start in starts):
        rows.sort(key=lambda row: row.get("start_times", 0))
    return rows


def _mean_gap(gaps: Any, output_tokens: Any) -> float | None:
    try:
        return sum(gaps) / (output_tokens - 1) if output_tokens > 1 and gaps else None
    except TypeError:  # no list of numbers, or no number of tokens
        return None


def json_records(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the objects of a JSON list or of JSON lines, in bounded memory; None: no object."""
    with _text(path) as file:
        lines = _lines(file)
        first = next((line for line in lines if line.strip()), "")
        record = _object(first) if first.lstrip().startswith("{") else None
        if record is not None:
            yield record
            for line in lines:
                if len(line) >= _MOST:
                    raise DataError(str(path), _too_long(line))
                if line.strip():
                    yield _object(line)
            return
    for record in _decoded(path):
        if not isinstance(record, dict):
            raise DataError(str(path), f"a record is {type(record).__name__}, not an object")
        yield record


def _text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig")


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    return iter(lambda: file.readline(_MOST), "")


def _too_long(text: str) -> str:
    return f"the record that begins with {text[:40]!r} has {_MOST} characters or more"


def _object(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # malformed, too many digits, or nested too deeply
        return None
    return record if isinstance(record, dict) else None


def _decoded(path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    between = re.compile(r"[\s,]*")
    with _text(path) as file:
        buffer = file.read(_PIECE).lstrip()
        in_list = buffer.startswith("[")
        offset, ended = int(in_list), False
        while True:
            offset = _end_of(between.match(buffer, offset), offset)
            if in_list and buffer.startswith("]", offset):
                return
            try:
                record, offset = decoder.raw_decode(buffer, offset)
            except json.JSONDecodeError as error:
                if not ended:  # the record continues in the next piece
                    if len(buffer) - offset >= _MOST:
                        raise DataError(
                            str(path), _too_long(buffer[offset : offset + 40])
                        ) from None
                    more = file.read(max(_PIECE, len(buffer) - offset))
                    ended = not more
                    buffer, offset = buffer[offset:] + more, 0
                    continue
                if offset == len(buffer) and not in_list:
                    return
                raise DataError(str(path), f"broken or truncated JSON: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise DataError(str(path), f"JSON that cannot be read: {error}") from None
            yield record


def _end_of(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise
