"""Trace formats: columns, recognition, reading by batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq

from c2c.errors import DataError, SettingError
from c2c.ranges import OneOf, check_fields
from c2c.workloads.blocks import MEASURED, WISHES
from c2c.workloads.containers import container_of, csv_batches, csv_names
from c2c.workloads.guesses import guessed_columns, mapping
from c2c.workloads.logs import LOGS, log_format_of, read_log
from c2c.workloads.names import alike, likely
from c2c.workloads.parsing import DATES
from c2c.workloads.records import json_table

__all__ = [
    "FORMATS",
    "TraceFile",
    "TraceFormat",
    "format_names",
    "open_lengths",
    "open_trace",
]

_BATCH_ROWS = 65_536
_LENGTHS = ("prompt_tokens", "output_tokens")
_IDS = ("model", "session", "parent")
_FIELDS = ("arrival_s", "model", *_LENGTHS)
# Fields that any file may lack.
_MORE = (
    "hash_ids", "session", "parent", "turn", "waits_for", "think_s", "calls_tool", *MEASURED,
    *WISHES,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """Columns of a format by field; None if it has no such column.

    Time columns are inspected for numbers or date-times. Other fields: see
    `c2c.workloads.RequestBlock`.

    Attributes:
      optional: optional fields; those from `hash_ids` on always are.
      label: all requests' model id without a column of ids.
      keeps_origin: times are relative to the trace's start.
      unit: of numeric times; "": by the column's name.
      marks: further columns that distinguish the format.
      hash_ids: lists of hashes of the prompt's blocks.
      block_tokens: of a block; 0: undefined.
      session: conversation ids; with `parent`, requests' own.
      parent: id of the preceding request.
      waits_for: lists of turns waited for.
      calls_tool: whether the answer ends in a tool's call.
      max_output_tokens, priority, deadline_s, cancel_s: see `c2c.workloads.RequestBlock`.
    """

    name: str
    arrival_s: str
    model: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    optional: frozenset[str] = frozenset()
    label: str = "unnamed"
    keeps_origin: bool = False
    unit: Annotated[str, OneOf("s", "ms", "us", "ns", "min", "h", "d", "")] = "s"
    marks: tuple[str, ...] = ()
    hash_ids: str | None = None
    block_tokens: int = 0
    session: str | None = None
    parent: str | None = None
    turn: str | None = None
    waits_for: str | None = None
    think_s: str | None = None
    calls_tool: str | None = None
    measured_ttft_s: str | None = None
    measured_tpot_s: str | None = None
    max_output_tokens: str | None = None
    priority: str | None = None
    deadline_s: str | None = None
    cancel_s: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, f"format {self.name}")
        for name, column in self.columns().items():
            if not isinstance(column, str):
                raise SettingError(f"format {self.name}.{name}", column, "the name of a column")

    def columns(self) -> dict[str, str]:
        """Return field -> column."""
        fields = (*_FIELDS, *_MORE)
        return {f: column for f in fields if (column := getattr(self, f)) is not None}

    def found(self, present: list[str]) -> dict[str, list[str]] | None:
        """Return field -> columns named alike, or None."""
        columns_of = {f: alike(column, present) for f, column in self.columns().items()}
        optional = {*self.optional, *_MORE}
        absent = any(not columns for f, columns in columns_of.items() if f not in optional)
        if absent or not all(alike(mark, present) for mark in self.marks):
            return None
        return {f: columns for f, columns in columns_of.items() if columns}


# Tried in this order: the first format whose required columns all exist is chosen.
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
            hash_ids="hash_ids",
            session="session_id",
            turn="turn",
            waits_for="waits_for",
            think_s="think_s",
            calls_tool="calls_tool",
            measured_ttft_s="measured_ttft_s",
            measured_tpot_s="measured_tpot_s",
            max_output_tokens="max_output_tokens",
            priority="priority",
            deadline_s="deadline_s",
            cancel_s="cancel_s",
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
        # Alibaba's Bailian (qwen-bailian-usagetraces-anon).
        TraceFormat(
            name="bailian",
            arrival_s="timestamp",
            prompt_tokens="input_length",
            output_tokens="output_length",
            label="bailian",
            marks=("chat_id",),
            hash_ids="hash_ids",
            block_tokens=16,
            session="chat_id",
            parent="parent_chat_id",
            turn="turn",
        ),
        # Mooncake, and tools that write its format (AIPerf, Dynamo, GuideLLM).
        TraceFormat(
            name="mooncake",
            arrival_s="timestamp",
            model="model",
            prompt_tokens="input_length",
            output_tokens="output_length",
            optional=frozenset({"model"}),
            label="mooncake",
            unit="ms",
            hash_ids="hash_ids",
            block_tokens=512,
            session="session_id",
            turn="turn",
        ),
        # aibrix's workload generator: lines with a time and a list of requests.
        TraceFormat(
            name="aibrix",
            arrival_s="timestamp",
            model="requests.model",
            prompt_tokens="requests.Prompt Length",
            output_tokens="requests.Output Length",
            optional=frozenset({"model"}),
            label="aibrix",
            unit="ms",
            session="requests.session_id",
        ),
        # vLLM's and SGLang's serving benchmarks, with details of each request.
        TraceFormat(
            name="benchmark",
            arrival_s="start_times",
            model="model_id",
            prompt_tokens="input_lens",
            output_tokens="output_lens",
            optional=frozenset({"model"}),
            label="benchmark",
            measured_ttft_s="ttfts",
            measured_tpot_s="tpots",
        ),
    )
}


def format_names() -> tuple[str, ...]:
    """Return the values of `workload.format`, with a user's formats."""
    return ("auto", *FORMATS, *LOGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """An opened trace, its format and columns."""

    path: Path
    container: str  # "parquet", "csv", "json" or "log"
    format: TraceFormat
    columns: Mapping[str, str]  # field -> column present in the file
    guessed: Mapping[str, str] = field(default_factory=dict)  # those of `columns` that are guesses
    present: tuple[str, ...] = ()  # the file's columns, without spaces around their names
    table: pa.Table | None = None  # all requests of a log or of JSON; None: read in batches
    malformed: int = 0  # malformed lines of that log or JSON
    block_tokens: int = 0  # tokens of a block, from the file's metadata; 0: not stated there
    keys_answers: bool = False  # whether hashes continue over the answers, likewise

    def batches(self, on_malformed: Callable[[], None] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in file order, from the start."""
        if self.table is not None:
            for _ in range(self.malformed if on_malformed is not None else 0):
                on_malformed()  # type: ignore[misc]
            yield from self.table.to_batches(max_chunksize=_BATCH_ROWS)
            return
        try:
            if self.container == "parquet":
                with pq.ParquetFile(self.path) as file:
                    for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                        yield pa.RecordBatch.from_arrays(batch.columns, self.present)
            else:
                yield from csv_batches(self.path, on_malformed)
        except _UNREADABLE as error:
            raise _unreadable(self.path, error) from error


def open_trace(
    path: str | Path,
    format_name: str = "auto",
    columns: Mapping[str, str] | None = None,
    chars_per_token: float = 0.0,
    *,
    with_lengths: bool = True,
) -> TraceFile:
    """Open a trace: detect file and format, map fields to columns.

    A column of another name is a field's if the only likely one.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise SettingError("workload.path", str(path), "an existing Parquet, CSV, JSON or log file")
    if format_name not in format_names():
        raise SettingError("workload.format", format_name, f"one of {', '.join(format_names())}")
    if format_name in LOGS:
        return _open_log(path, format_name, chars_per_token)
    choices = dict(columns or {})
    opened = _open(path, chars_per_token, format_name == "auto", choices)
    if opened.container == "log":
        return opened
    _check_columns(path, opened.present, choices)
    guessed: dict[str, str] = {}
    fit = _choose(opened.present, format_name, choices)
    if fit is None and format_name == "auto" and "arrival_s" not in choices:
        guessed = _guess(opened, [*choices.values()], ["arrival_s"])
        fit = _choose(opened.present, format_name, choices | guessed)
    if fit is None:
        raise _unfit(opened, format_name)
    chosen, columns_of = fit
    if opened.format.name:  # rows of another format, in c2c's own
        chosen = replace(chosen, name=opened.format.name)
    single = _single(path, columns_of)
    fields = ["model", *_LENGTHS * with_lengths]
    unknowns = [name for name in fields if name not in choices and name not in single]
    guessed |= _guess(opened, [*single.values()], unknowns)
    joined = single | guessed
    ordered = {field: joined[field] for field in (*_FIELDS, *_MORE) if field in joined}
    opened = replace(opened, format=chosen, columns=ordered, guessed=guessed)
    if any(_must_be_text(opened, name) for name in opened.columns):
        return replace(opened, table=json_table(path, as_text=True)[0])
    return opened


def _must_be_text(opened: TraceFile, name: str) -> bool:
    if opened.table is None:
        return False
    kind = opened.table.schema.field(opened.columns[name]).type
    listed, fractional = pa.types.is_list(kind), pa.types.is_floating(kind)
    return (listed and name not in ("hash_ids", "waits_for")) or (fractional and name in _IDS)


def _guess(opened: TraceFile, used: list[str], fields: list[str]) -> dict[str, str]:
    free = [c for c in opened.present if c not in used and opened.present.count(c) == 1]
    first = next((batch for batch in opened.batches() if batch.num_rows), None) if fields else None
    return guessed_columns(opened.path, first, free, fields)


def open_lengths(path: Path, chars_per_token: float = 0.0) -> TraceFile:
    """Open a trace, log, or table of lengths."""
    opened = _open(path, chars_per_token, True, {})
    if opened.container == "log":
        return opened
    if pair := _pair(opened.present):
        return replace(opened, columns=_single(path, pair))
    examples = "; ".join(f"{prompt}, {output}" for prompt, output in _pairs())
    raise DataError(
        str(path),
        f"it has no known length columns ({examples}) and no conversations",
        _shown(list(opened.present)),
    )


_NO_FORMAT = TraceFormat(name="", arrival_s="")
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


def _open(path: Path, chars_per_token: float, may_be_log: bool, named: dict[str, str]) -> TraceFile:
    table, malformed = None, 0
    metadata: Mapping[bytes, bytes] = {}
    try:
        container = container_of(path)
        # A table's cells may contain lines of a log, so a known table takes precedence.
        present = _header_of(path) if container == "csv" else []
        is_table = bool(named) or container == "parquet" or _is_known(present)
        if may_be_log and not is_table and (log := log_format_of(path)):
            return _open_log(path, log, chars_per_token)
        if container == "parquet":
            schema = pq.read_schema(path)
            present = [str(name).strip() for name in schema.names]
            metadata = schema.metadata or {}
        elif container == "json":
            table, malformed = json_table(path)
            metadata = table.schema.metadata or {}
            present = list(table.column_names)
        else:
            present = csv_names(path)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    return TraceFile(
        path=path, container=container, columns={}, present=tuple(present),
        format=replace(_NO_FORMAT, name=metadata.get(b"format", b"").decode()),
        table=table, malformed=malformed, block_tokens=int(metadata.get(b"block_tokens", 0)),
        keys_answers=b"keys_answers" in metadata,
    )  # fmt: skip


def _header_of(path: Path) -> list[str]:
    try:
        return csv_names(path)
    except (DataError, UnicodeDecodeError):  # perhaps a log; a broken table fails again later
        return []


def _is_known(present: list[str]) -> bool:
    return bool(_pair(present)) or any(f.found(present) for f in FORMATS.values())


def _open_log(path: Path, name: str, chars_per_token: float) -> TraceFile:
    try:
        table, malformed = read_log(path, name, chars_per_token)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    fields: dict[str, Any] = {field: field for field in _FIELDS}
    form = TraceFormat(name=name, **fields)
    return TraceFile(
        path=path, container="log", format=form, columns=form.columns(),
        present=_FIELDS, table=table, malformed=malformed,
    )  # fmt: skip


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(str(path), f"cannot be read: {reason}")


def _pairs() -> list[tuple[str, str]]:
    candidates = [(f.prompt_tokens, f.output_tokens) for f in FORMATS.values()]
    pairs = [(prompt, output) for prompt, output in candidates if prompt and output]
    return list(dict.fromkeys([*pairs, ("prompt_len", "output_len")]))


def _pair(present: Iterable[str]) -> dict[str, list[str]]:
    for prompt, output in _pairs():
        prompts, outputs = alike(prompt, present), alike(output, present)
        if prompts and outputs:
            return {"prompt_tokens": prompts, "output_tokens": outputs}
    return {}


def _single(path: Path, matches: Mapping[str, list[str]]) -> dict[str, str]:
    for columns in matches.values():
        if len(columns) > 1:
            shown = " or ".join(map(repr, dict.fromkeys(columns)))
            raise DataError(str(path), f"column {shown} occurs more than once")
    return {field: columns[0] for field, columns in matches.items()}


def _check_columns(path: Path, present: Iterable[str], columns: Mapping[str, str]) -> None:
    if unknown := sorted(set(columns) - {*_FIELDS, *_MORE}):
        known_fields = ", ".join((*_FIELDS, *_MORE))
        raise SettingError("workload.columns", unknown, f"fields among {known_fields}")
    for name, column in columns.items():
        if column and not alike(column, present):
            raise DataError(
                str(path), f"no column {column!r} (workload.columns.{name})", _shown(present)
            )


def _known(format_name: str) -> list[TraceFormat]:
    return [FORMATS[format_name]] if format_name != "auto" else list(FORMATS.values())


def _choose(
    present: Iterable[str], format_name: str, columns: Mapping[str, str]
) -> tuple[TraceFormat, dict[str, list[str]]] | None:
    override: dict[str, Any] = {name: column or None for name, column in columns.items()}
    formats, present, arrival = _known(format_name), list(present), columns.get("arrival_s")
    fit = [
        f for f in formats if not arrival or (alike(f.arrival_s, [arrival]) and f.found(present))
    ]
    tried = [replace(f, **override) for f in fit]
    if arrival:  # the zero and the unit of a column that is no format's own are unknown
        foreign = override | {"keeps_origin": False, "unit": ""}
        tried += [replace(f, **foreign) for f in formats]
    pairs = ((one, one.found(present)) for one in tried)
    return next(((one, columns_of) for one, columns_of in pairs if columns_of), None)


def _unfit(opened: TraceFile, format_name: str) -> DataError:
    needs = "; ".join(
        f"{f.name}: "
        + ", ".join(
            [*(c for k, c in f.columns().items() if k not in {*f.optional, *_MORE}), *f.marks]
        )
        for f in _known(format_name)
    )
    path, shown = str(opened.path), _shown(opened.present)
    arrivals = likely("arrival_s", opened.present)
    lengths = _pair(opened.present) or any(likely(name, opened.present) for name in _LENGTHS)
    if format_name == "auto" and not arrivals and (lengths or "conversations" in opened.present):
        return DataError(
            path,
            "it has lengths but no arrivals",
            "Use it as workload.lengths=<path> beside a trace of arrivals, or name its arrivals: "
            f"{mapping({'arrival_s': '<column>'})}. {shown}",
        )
    if format_name == "auto" and arrivals:
        first = next((batch for batch in opened.batches() if batch.num_rows), None)
        cell = "" if first is None else first.column(arrivals[0])[0].as_py()
        return DataError(
            path,
            f"{arrivals[0]!r} may be its arrivals, but its cells, such as {str(cell)!r}, are no "
            "differing numbers or dates",
            f"{DATES} {shown}",
        )
    example = mapping({"arrival_s": arrivals[0] if arrivals else "<column>"})
    return DataError(
        path,
        f"its columns fit no known format (needed: {needs})",
        f"{shown} Name them with workload.columns, e.g. {example}.",
    )


def _shown(present: Iterable[str]) -> str:
    shown = list(present)
    return f"Its columns: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}."
