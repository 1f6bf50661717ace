"""Trace formats: what their columns are called, and how to read them batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from c2c.errors import DataError, SettingError
from c2c.workloads.logs import LOGS, log_format_of, read_log

__all__ = ["FORMATS", "FORMAT_NAMES", "TraceFile", "TraceFormat", "open_lengths", "open_trace"]

_BATCH_ROWS = 65_536
_CSV_BLOCK_BYTES = 1 << 20
_FIELDS = ("arrival_s", "model", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """Names of the columns that carry a request; None where the format has no such column.

    Times are either numbers (seconds) or date-times; which, each column tells by itself.
    `keeps_origin` says that times are already relative to the start of the trace.
    """

    name: str
    arrival_s: str
    model: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    optional: frozenset[str] = frozenset()  # fields whose column may be absent
    label: str = "unnamed"  # the model id where there is no such column
    keeps_origin: bool = False

    def columns(self) -> dict[str, str]:
        """Return field -> column for the fields this format has."""
        return {f: column for f in _FIELDS if (column := getattr(self, f)) is not None}

    def missing(self, present: list[str]) -> list[str]:
        """Return the required columns that are not among those present."""
        return [c for f, c in self.columns().items() if f not in self.optional and c not in present]


# Tried in this order: the first whose required columns are all there is taken.
FORMATS: dict[str, TraceFormat] = {
    f.name: f
    for f in (
        # The project's own schema, Parquet or CSV; also the normalised GenTD26 Parquet.
        TraceFormat(
            name="c2c",
            arrival_s="arrival_s",
            model="model",
            prompt_tokens="prompt_tokens",
            output_tokens="output_tokens",
            optional=frozenset({"model", "prompt_tokens", "output_tokens"}),
            keeps_origin=True,
        ),
        # alibaba/clusterdata, cluster-trace-v2026-GenAI, lora_request_trace.csv. Image
        # generation: it has no token counts.
        TraceFormat(name="gentd26", arrival_s="gmt_create", model="checkpoint_model_version_id"),
        # Azure/AzurePublicDataset, LLM inference traces of 2023 and 2024 (one service a file).
        TraceFormat(
            name="azure",
            arrival_s="TIMESTAMP",
            prompt_tokens="ContextTokens",
            output_tokens="GeneratedTokens",
            label="azure-llm",
        ),
        # BurstGPT: failed requests have 0 response tokens.
        TraceFormat(
            name="burstgpt",
            arrival_s="Timestamp",
            model="Model",
            prompt_tokens="Request tokens",
            output_tokens="Response tokens",
        ),
    )
}


FORMAT_NAMES = ("auto", *FORMATS, *LOGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """An opened trace: where it is, and which column is which."""

    path: Path
    container: str  # "parquet", "csv" or "log"
    format: TraceFormat
    columns: Mapping[str, str]  # field -> column present in the file
    log: pa.Table | None = None  # the requests of a log, which is read at once
    malformed: int = 0  # lines of it that are broken

    def batches(self, on_malformed: Callable[[], None] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in file order, from the start, a bounded number at a time.

        Args:
          on_malformed: called once for each CSV line with a wrong number of cells; such lines
            yield no row.

        Raises:
          DataError: the file is corrupt or cannot be read.
        """
        if self.log is not None:
            for _ in range(self.malformed if on_malformed is not None else 0):
                on_malformed()  # type: ignore[misc]
            yield from self.log.to_batches(max_chunksize=_BATCH_ROWS)
            return
        try:
            if self.container == "parquet":
                with pq.ParquetFile(self.path) as file:
                    yield from file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
            else:
                with _csv_reader(self.path, on_malformed) as reader:
                    yield from reader
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(str(self.path), f"cannot be read: {_first_line(error)}") from error


def open_trace(
    path: str | Path,
    format_name: str = "auto",
    columns: Mapping[str, str] | None = None,
    chars_per_token: float = 0.0,
) -> TraceFile:
    """Find out what kind of file a trace is and which of its columns is which.

    Args:
      path: Parquet or CSV (plain or compressed).
      format_name: a name in `FORMATS`, or "auto" to recognise it by its columns.
      columns: field -> column, for files of no known format or to override one.
      chars_per_token: see `c2c.workloads.logs`.

    Raises:
      SettingError: no such file, unknown format name, or unknown field in `columns`.
      DataError: the file is empty, corrupt, or its columns fit no format.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise SettingError("workload.path", str(path), "an existing Parquet or CSV file")
    if format_name not in FORMAT_NAMES:
        raise SettingError("workload.format", format_name, f"one of {', '.join(FORMAT_NAMES)}")
    if found_log := _open_log(path, format_name, chars_per_token):
        return found_log
    container = _container(path)
    present = _column_names(path, container)
    chosen = _choose(path, present, format_name, dict(columns or {}))
    found = {f: c for f, c in chosen.columns().items() if c in present}
    if repeated := sorted(c for c in found.values() if present.count(c) > 1):
        raise DataError(str(path), f"column {repeated[0]!r} occurs more than once")
    return TraceFile(path=path, container=container, format=chosen, columns=found)


def _open_log(path: Path, format_name: str, chars_per_token: float) -> TraceFile | None:
    """Return the file as a log if it is one, or is said to be."""
    if format_name in FORMATS:
        return None
    try:
        name = log_format_of(path) if format_name == "auto" else format_name
        if name is None:
            return None
        table, malformed = read_log(path, name, chars_per_token)
    except (pa.ArrowException, OSError) as error:
        raise DataError(str(path), f"cannot be read: {_first_line(error)}") from error
    names: dict[str, Any] = {field: field for field in _FIELDS}
    form = TraceFormat(name=name, **names)
    return TraceFile(
        path=path, container="log", format=form, columns=form.columns(), log=table,
        malformed=malformed,
    )  # fmt: skip


def open_lengths(path: Path, chars_per_token: float = 0.0) -> TraceFile:
    """Open a table of which only the two length columns matter: a trace, a log, or bare pairs.

    Raises:
      DataError: the file is empty, corrupt, or has no two length columns of a known name.
    """
    if found_log := _open_log(path, "auto", chars_per_token):
        return found_log
    container = _container(path)
    present = _column_names(path, container)
    pairs = [(f.prompt_tokens, f.output_tokens) for f in FORMATS.values() if f.prompt_tokens]
    for prompt, output in [*pairs, ("prompt_len", "output_len")]:
        if prompt in present and output in present:
            columns = {"prompt_tokens": str(prompt), "output_tokens": str(output)}
            bare = TraceFormat(name="lengths", arrival_s="")
            return TraceFile(path=path, container=container, format=bare, columns=columns)
    known = "; ".join(f"{prompt}, {output}" for prompt, output in pairs)
    raise DataError(
        str(path), f"no length columns (known: {known}; prompt_len, output_len)", _shown(present)
    )


def _choose(
    path: Path, present: list[str], format_name: str, columns: dict[str, str]
) -> TraceFormat:
    if unknown := sorted(set(columns) - set(_FIELDS)):
        raise SettingError("workload.columns", unknown, f"fields among {', '.join(_FIELDS)}")
    for field, column in columns.items():
        if column not in present:
            raise DataError(
                str(path), f"no column {column!r} (workload.columns.{field})", _shown(present)
            )
    known = [FORMATS[format_name]] if format_name != "auto" else list(FORMATS.values())
    for candidate in known:
        override: dict[str, Any] = {**columns}
        if "arrival_s" in columns:  # whose zero is unknown
            override["keeps_origin"] = False
        chosen = replace(candidate, **override)
        if not chosen.missing(present):
            return chosen
    if format_name == "auto" and "arrival_s" in columns:
        named: dict[str, Any] = {"name": "columns", **columns}
        return TraceFormat(**named)
    wanted = "; ".join(
        f"{f.name}: {', '.join(c for k, c in f.columns().items() if k not in f.optional)}"
        for f in known
    )
    raise DataError(
        str(path),
        f"its columns fit no known format (needed: {wanted})",
        f"{_shown(present)} Name them with workload.columns, e.g. "
        "'workload.columns={arrival_s: time}'.",
    )


def _shown(present: list[str]) -> str:
    return f"Its columns: {', '.join(present[:20])}{', ...' if len(present) > 20 else ''}."


def _container(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
    if not head.strip():
        raise DataError(str(path), "the file is empty")
    if head[:4] == b"PAR1":
        return "parquet"
    if path.suffix.lower() in {".parquet", ".pq"}:
        raise DataError(str(path), "not a Parquet file: its first bytes are not PAR1")
    if head.lstrip()[:1] in {b"{", b"["}:
        raise DataError(
            str(path),
            "JSON carries lengths, not arrivals",
            "Use it as workload.lengths=<path> beside a trace of arrivals.",
        )
    return "csv"


def _column_names(path: Path, container: str) -> list[str]:
    try:
        if container == "parquet":
            return [str(name) for name in pq.read_schema(path).names]
        with _csv_reader(path, None) as reader:
            return [str(name) for name in reader.schema.names]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"cannot be read: {_first_line(error)}") from error


def _csv_reader(path: Path, on_malformed: Callable[[], None] | None) -> Any:
    def skip(_row: object) -> str:
        if on_malformed is not None:
            on_malformed()
        return "skip"

    def reader(names: list[str] | None) -> Any:
        # Every cell is read as text, so that one odd cell costs one row and not the file.
        return pa_csv.open_csv(
            pa.input_stream(str(path), compression="detect"),
            read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=skip),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names or [], pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    with pa.input_stream(str(path), compression="detect") as stream:
        line = stream.read(1 << 16).split(b"\n", 1)[0]
    header = pa_csv.read_csv(pa.py_buffer(line.rstrip(b"\r") + b"\n"))
    return reader(header.column_names)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
