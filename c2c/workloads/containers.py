"""Containers of traces: compression, file kinds, CSV as text columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from c2c.errors import DataError

__all__ = ["container_of", "csv_batches", "csv_names", "open_bytes"]

_BLOCK_BYTES = 1 << 20
_MOST_RECORD_BYTES = 1 << 26  # a longer row is damage, or a file packed to exhaust the memory
_MOST_COLUMNS = 10_000
_BOM = b"\xef\xbb\xbf"
_CODECS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_REFUSED = {
    b"PK\x03\x04": ("a zip archive (or a workbook)", "Unpack it."),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it."),
    b"\xfd7zXZ\x00": ("compressed by xz", "Unpack it, or pack it with gzip or zstd."),
    b"ARROW1": ("an Arrow (Feather) file", "Store it as Parquet or CSV."),
    b"\xff\xfe": ("UTF-16 text", "Store it as UTF-8."),
    b"\xfe\xff": ("UTF-16 text", "Store it as UTF-8."),
}
_DECIMAL = r"^\s*([+-]?\d+),(\d+)\s*$"
_DELIMITERS = b",;\t|"
# A quote opens a cell only as its first character; line breaks before the closing one are text.
_CELL = rb'SPACE(?:"[^"]*+(?:""[^"]*+)*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_RECORD = rb"CELL(?:,CELL)*+(?:\r\n|[\r\n])".replace(b"CELL", _CELL)


@cache
def _pattern(delimiter: bytes, *, spaced: bool, several: bool) -> re.Pattern[bytes]:
    record = _RECORD.replace(b",", re.escape(delimiter))
    record = record.replace(b"SPACE", _space(delimiter) + b"*+" if spaced else b"")
    return re.compile(b"(?:" + record + b")*+" if several else record)


def _space(delimiter: bytes) -> bytes:
    return b"[ ]" if delimiter == b"\t" else rb"[ \t]"


def open_bytes(path: Path) -> pa.NativeFile:
    """Return the file's content, decompressed by its magic bytes."""
    with path.open("rb") as file:
        head = file.read(8)
    packed = [codec for magic, codec in _CODECS.items() if head.startswith(magic)]
    return pa.input_stream(str(path), compression=packed[0] if packed else None)


def container_of(path: Path) -> str:
    """Return "parquet", "json" or "csv"."""
    try:
        with path.open("rb") as file:
            raw = file.read(64)
        with open_bytes(path) as stream:
            head = raw if raw[:4] == b"PAR1" else stream.read(64)
    except OSError as error:
        problem = error.strerror or str(error)
        raise DataError(str(path), f"cannot be read: {problem}") from error
    if not head.strip():
        raise DataError(str(path), "the file is empty")
    for magic, (kind, remedy) in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(str(path), f"it is {kind}", remedy)
    if len(head) >= 8 and b"\0\0\0\0" in {head[1:8:2], head[:8:2]}:
        raise DataError(str(path), "it is UTF-16 text or binary", "Store it as UTF-8.")
    if head[:4] == b"PAR1":
        if raw[:4] != b"PAR1":
            raise DataError(str(path), "it is a compressed Parquet file", "Unpack it.")
        return "parquet"
    if path.suffix.lower() in {".parquet", ".pq"}:
        raise DataError(str(path), "not a Parquet file: its first bytes are not PAR1")
    return "json" if head.removeprefix(_BOM).lstrip()[:1] in {b"{", b"["} else "csv"


def csv_names(path: Path) -> list[str]:
    """Return the stripped names of the columns."""
    return _header(path).names


def csv_batches(
    path: Path, on_malformed: Callable[[], None] | None = None, block_bytes: int = _BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield rows of text cells: an unreadable cell costs one row.

    Commas in numbers beside semicolons are decimal points. Without pyarrow's streaming reader: its
    threads call `on_malformed` at the interpreter's exit, which aborts or hangs.
    """
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv

    def skip(_row: object) -> str:
        if on_malformed is not None:
            on_malformed()
        return "skip"

    header = _header(path)
    numbers = [str(index) for index in range(len(header.names))]  # names may repeat
    parse = pa_csv.ParseOptions(
        delimiter=header.delimiter, newlines_in_values=True, invalid_row_handler=skip
    )
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(numbers, pa.string()), null_values=[""], strings_can_be_null=True
    )
    for block in _blocks(path, header, block_bytes):
        read = pa_csv.ReadOptions(
            column_names=numbers, block_size=len(block) + 1, use_threads=False
        )
        table = pa_csv.read_csv(
            pa.py_buffer(block), read_options=read, parse_options=parse, convert_options=convert
        )
        for batch in table.to_batches():
            cells = batch.columns
            if header.delimiter == ";":
                cells = [pc.replace_substring_regex(c, _DECIMAL, r"\1.\2") for c in cells]
            yield pa.RecordBatch.from_arrays(cells, header.names)


@dataclass(frozen=True, slots=True)
class _Header:
    names: list[str]
    bytes: int
    delimiter: str
    spaced: bool  # spaces follow its delimiters


def _header(path: Path) -> _Header:
    with open_bytes(path) as stream:
        text, match = b"", None
        while match is None:
            more = stream.read(max(1 << 16, len(text)))
            text += more or b"\n"
            start = len(_BOM) if text.startswith(_BOM) else 0
            start += len(text[start:]) - len(text[start:].lstrip(b"\r\n"))
            delimiter = _delimiter(text[start:])
            match = _pattern(delimiter, spaced=True, several=False).match(text, start)
            if not more or len(text) > _MOST_RECORD_BYTES:
                break
    if match is None:
        fault = "a quote in its header is not closed"
        too_long = f"its header is longer than {_MOST_RECORD_BYTES} bytes"
        raise DataError(str(path), too_long if len(text) > _MOST_RECORD_BYTES else fault)
    if (columns := match[0].count(delimiter)) >= _MOST_COLUMNS:
        label = "commas" if delimiter == b"," else f"{delimiter.decode()!r}"
        raise DataError(str(path), f"its header has {columns} {label}, at most {_MOST_COLUMNS} fit")
    line = io.StringIO(match[0].decode("utf-8"), newline="")
    names = next(csv.reader(line, delimiter=delimiter.decode(), skipinitialspace=True), [])
    spaced = re.search(re.escape(delimiter) + _space(delimiter), match[0]) is not None
    return _Header([name.strip() for name in names], match.end(), delimiter.decode(), spaced)


def _delimiter(text: bytes) -> bytes:
    line = re.sub(rb'"[^"]*+"', b"", text).splitlines() or [b""]
    counts = {_DELIMITERS[k : k + 1]: line[0].count(_DELIMITERS[k]) for k in range(4)}
    return max(counts, key=lambda one: counts[one])


def _blocks(path: Path, header: _Header, block_bytes: int) -> Iterator[bytes]:
    delimiter = header.delimiter.encode()
    records = _pattern(delimiter, spaced=header.spaced, several=True)
    begin = b"(^|[" + re.escape(delimiter) + rb"\r\n])" + _space(delimiter) + b'+(?=")'
    with open_bytes(path) as stream:
        stream.read(header.bytes)
        rest, more = b"", b" "
        while more:
            # A long record doubles the amount read, so that it is scanned only a few times.
            more = stream.read(max(block_bytes, len(rest)))
            piece = rest + (more or b"\n")
            if b'"' in piece:
                match = records.match(piece)
                end = match.end() if match else 0
            else:
                end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            block, rest = piece[:end], piece[end:]
            if len(rest) > _MOST_RECORD_BYTES:
                break
            if header.spaced:
                block = re.sub(begin, rb"\1", block)
            if block.strip(b"\r\n"):
                yield block
    if rest:
        shown = rest[:40].decode("utf-8", "replace")
        too_long = f"there are more than {_MOST_RECORD_BYTES} bytes in the row"
        fault = "a quote is not closed in the row" if len(rest) <= _MOST_RECORD_BYTES else too_long
        raise DataError(str(path), f"{fault} that begins with {shown!r}")
