"""JSON lines by Arrow's reader, where equal to Python's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from c2c.workloads.arrays import scalar
from c2c.workloads.containers import open_bytes

__all__ = ["arrow_table"]

_BLOCK_BYTES = 1 << 22
_MOST_LINE_BYTES = 1 << 26
_LONG_LINE_BYTES = 4096
_MOST_EXACT = 2.0**53  # whole numbers below it are exact as doubles
_SEVERAL = {"requests", "input_lens", "wait_for"}  # of several requests, or of a graph
_HASHES = pa.list_(pa.uint64())
_MOST_DEPTH = 500  # Arrow parses by recursion: a hundred thousand levels end the process


def arrow_table(path: Path) -> pa.Table | None:
    """Return JSON lines' records with typed columns, inner objects as "outer.inner".

    None: Arrow would fail or change values.
    """
    import pyarrow.compute as pc

    try:
        blocks = (block.replace(b"\r\n", b"\n").strip(b"\n") for block in _blocks(path))
        parts: list[pa.Table] = []
        for text in filter(None, blocks):
            parts.append(_part(text, _wide(parts[-1:])))
        parts = _alike(parts)
        table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        table.validate(full=True)  # texts are UTF-8
        names = table.column_names
    except (pa.ArrowException, UnicodeDecodeError, _OtherReader):
        return None
    spaced = any(part != part.strip() for name in names for part in name.split("."))
    distinct = len(names) == len({*names})
    if not names or spaced or not distinct or not all(map(_is_plain, table.columns)):
        return None
    is_text = pa.types.is_boolean, pa.types.is_null
    columns = [
        pc.cast(column, pa.string()) if any(check(column.type) for check in is_text) else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, names=names)


class _OtherReader(Exception):
    """Lines that Arrow would read otherwise than Python."""


def _blocks(path: Path) -> Iterator[bytes]:
    rest = b""
    with open_bytes(path) as stream:
        while more := stream.read(_BLOCK_BYTES):
            lines, end, rest = (rest + more).rpartition(b"\n")
            if end:
                yield lines
            if len(rest) > _MOST_LINE_BYTES:
                raise _OtherReader
    yield rest


def _part(text: bytes, wide: set[str]) -> pa.Table:
    import pyarrow.json as pa_json

    if b"\r" in text or _is_deep(text):
        raise _OtherReader
    parse = pa_json.ParseOptions(explicit_schema=pa.schema([(name, _HASHES) for name in wide]))
    guessed = True
    while guessed:
        table = pa_json.read_json(
            pa.py_buffer(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=parse,
        )
        # Arrow takes texts that look like dates for such, and numbers from 2**63 on for fractions:
        # read again, they stay texts and whole numbers.
        schema = pa.schema([pa.field(f.name, _meant(f.type)) for f in table.schema])
        guessed = schema != table.schema
        parse = pa_json.ParseOptions(explicit_schema=schema)
    # Each record is one line and one request, and each line one record.
    one_each = table.num_rows - 1 == text.count(b"}\n{") == text.count(b"\n")
    if not one_each or _SEVERAL & {*table.column_names}:
        raise _OtherReader
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _wide(parts: list[pa.Table]) -> set[str]:
    return {field.name for part in parts for field in part.schema if field.type == _HASHES}


def _alike(parts: list[pa.Table]) -> list[pa.Table]:
    wide = _wide(parts)

    def kind(field: pa.Field) -> pa.Field:
        return field.with_type(_HASHES) if field.name in wide else field

    return [part.cast(pa.schema(map(kind, part.schema))) if wide else part for part in parts]


def _is_deep(text: bytes) -> bool:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    ends = np.append(ends, len(text))
    rows = np.flatnonzero(ends - starts > _LONG_LINE_BYTES)
    long = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
    return any(text.count(b"[", *one) + text.count(b"{", *one) > _MOST_DEPTH for one in long)


def _meant(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(k) for k in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _meant(f.type)) for f in fields])
    if kind == pa.list_(pa.float64()):
        return _HASHES
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _is_plain(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        exact = pc.less(pc.abs(column), scalar(_MOST_EXACT, kind))
        return bool(pc.all(exact).as_py())  # not so for NaN
    if pa.types.is_list(kind):
        kind = kind.value_type
        return bool(kind in (pa.int64(), pa.uint64()) or pa.types.is_null(kind))
    several = pa.types.is_int64, pa.types.is_string, pa.types.is_boolean, pa.types.is_null
    return any(check(kind) for check in several)
