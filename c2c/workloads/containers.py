"""Containers of traces: decompression by magic bytes, file kinds, CSV as columns of text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
# A quote opens a cell only as its first character; line breaks before the closing one are text.
_CELL = rb'SPACE(?:"[^"]*+(?:""[^"]*+)*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_RECORD = rb"CELL(?:,CELL)*+(?:\r\n|[\r\n])".replace(b"CELL", _CELL)
_RECORDS = re.compile(rb"(?:RECORD)*+".replace(b"RECORD", _RECORD.replace(b"SPACE", b"")))
# The same where spaces precede the quotes, as in `, "a"`.
_SPACED_RECORDS = re.compile(_RECORDS.pattern.replace(_CELL[5:], rb"[ \t]*+" + _CELL[5:]))
_SPACED_RECORD = re.compile(_RECORD.replace(b"SPACE", rb"[ \t]*+"))


def open_bytes(path: Path) -> pa.NativeFile:
    """Return a stream of the file's content, decompressed by its magic bytes, not its name."""
    with path.open("rb") as file:
        head = file.read(8)
    packed = [codec for magic, codec in _CODECS.items() if head.startswith(magic)]
    return pa.input_stream(str(path), compression=packed[0] if packed else None)


def container_of(path: Path) -> str:
    """Return "parquet", "json" or "csv".

    Raises:
      DataError: the file is empty, cannot be read, or is of an unsupported kind.
    """
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
    for magic, (what, remedy) in _REFUSED.items():
        if head.startswith(magic):
            raise DataError(str(path), f"it is {what}", remedy)
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
    """Return the names of the columns, without spaces around them."""
    return _header(path).names


def csv_batches(
    path: Path, on_malformed: Callable[[], None] | None = None, block_bytes: int = _BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, every cell as text, so that an unreadable cell costs one row, not the file.

    Blocks end at record boundaries, and pyarrow parses each in the caller's thread. pyarrow's
    streaming reader parses ahead in threads of its own. They call `on_malformed` even while the
    interpreter exits, and the process then aborts or hangs.

    Args:
      path: CSV file, plain or compressed.
      on_malformed: called for each record with a wrong number of cells, which yields no row.
      block_bytes: bytes read at a time; a record may be longer.

    Raises:
      DataError: a quote is not closed, or a row is too long.
    """
    import pyarrow.csv as pa_csv

    def skip(_row: object) -> str:
        if on_malformed is not None:
            on_malformed()
        return "skip"

    header = _header(path)
    numbers = [str(at) for at in range(len(header.names))]  # names may repeat
    parse = pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
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
            yield pa.RecordBatch.from_arrays(batch.columns, header.names)


@dataclass(frozen=True, slots=True)
class _Header:
    names: list[str]
    bytes: int
    spaced: bool  # spaces follow its commas


def _header(path: Path) -> _Header:
    with open_bytes(path) as stream:
        text, found = b"", None
        while found is None:
            more = stream.read(max(1 << 16, len(text)))
            text += more or b"\n"
            start = len(_BOM) if text.startswith(_BOM) else 0
            start += len(text[start:]) - len(text[start:].lstrip(b"\r\n"))
            found = _SPACED_RECORD.match(text, start)
            if not more or len(text) > _MOST_RECORD_BYTES:
                break
    if found is None:
        what = "a quote in its header is not closed"
        too_long = f"its header is longer than {_MOST_RECORD_BYTES} bytes"
        raise DataError(str(path), too_long if len(text) > _MOST_RECORD_BYTES else what)
    if (columns := found[0].count(b",")) >= _MOST_COLUMNS:
        raise DataError(str(path), f"its header has {columns} commas, at most {_MOST_COLUMNS} fit")
    line = found[0].decode("utf-8")
    names = next(csv.reader(io.StringIO(line, newline=""), skipinitialspace=True), [])
    spaced = re.search(r",[ \t]", line) is not None
    return _Header([name.strip() for name in names], found.end(), spaced)


def _blocks(path: Path, header: _Header, block_bytes: int) -> Iterator[bytes]:
    """Yield the bytes after the header in pieces of about `block_bytes` that hold whole records."""
    records = _SPACED_RECORDS if header.spaced else _RECORDS
    with open_bytes(path) as stream:
        stream.read(header.bytes)
        rest, more = b"", b" "
        while more:
            # A long record doubles the amount read, so that it is scanned only a few times.
            more = stream.read(max(block_bytes, len(rest)))
            piece = rest + (more or b"\n")
            if b'"' in piece:
                found = records.match(piece)
                end = found.end() if found else 0
            else:
                end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            block, rest = piece[:end], piece[end:]
            if len(rest) > _MOST_RECORD_BYTES:
                break
            if header.spaced:
                block = re.sub(rb'(^|[,\r\n])[ \t]+(?=")', rb"\1", block)
            if block.strip(b"\r\n"):
                yield block
    if rest:
        begin = rest[:40].decode("utf-8", "replace")
        too_long = f"there are more than {_MOST_RECORD_BYTES} bytes in the row"
        what = "a quote is not closed in the row" if len(rest) <= _MOST_RECORD_BYTES else too_long
        raise DataError(str(path), f"{what} that begins with {begin!r}")
