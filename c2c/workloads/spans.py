"""Requests from OTLP files of OpenTelemetry's GenAI spans.

Source: OTLP's JSON encoding; conventions of GenAI client spans, and vLLM's attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from c2c.errors import DataError

__all__ = ["span_table"]

_CALLS: Final = ("chat", "text_completion", "generate_content", None)  # not of agents or tools
# Attributes of a column, the first present one counts.
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("gen_ai.request.model", "gen_ai.response.model"),
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "session_id": ("gen_ai.conversation.id",),
    "max_output_tokens": ("gen_ai.request.max_tokens",),
    "measured_ttft_s": (
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.latency.time_to_first_token",
    ),
}

type _Key = tuple[str, str]


def span_table(path: Path, records: Sequence[Mapping[str, Any] | None]) -> tuple[pa.Table, int]:
    """Return model calls by start, in the project's format, and malformed lines.

    Calls within others, such as a server's in its client's, do not count.
    """
    there = [record for record in records if record is not None]
    parents: dict[_Key, _Key] = {}
    calls: dict[_Key, tuple[int, int, dict[str, str]]] = {}
    try:
        for number, span in enumerate(span for one in there for span in _spans(one)):
            trace = str(span.get("traceId"))
            key = trace, str(span.get("spanId") or number)
            parents[key] = trace, str(span.get("parentSpanId"))
            attributes = {one["key"]: _text(one["value"]) for one in span.get("attributes") or ()}
            says = any(name.startswith(("gen_ai.usage.", "gen_ai.request.")) for name in attributes)
            if says and attributes.get("gen_ai.operation.name") in _CALLS:
                calls[key] = (
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    attributes,
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(str(path), f"a span lacks a field or has another type: {error}") from None
    outer = [call for key, call in calls.items() if not _is_inner(key, parents, calls)]
    if not outer:
        raise DataError(str(path), "it has no span of a model call (gen_ai.request.model, ...)")
    first = min(start for start, _, _ in outer)
    rows = [_row(*call, first) for call in sorted(outer, key=lambda call: call[0])]
    names = ["arrival_s", *(n for n in (*_COLUMNS, "measured_tpot_s") if any(n in r for r in rows))]
    table = pa.table({name: pa.array([r.get(name) for r in rows], pa.string()) for name in names})
    return table.replace_schema_metadata({"format": "otel"}), len(records) - len(there)


def _spans(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in record.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            yield from scope.get("spans") or ()


def _text(value: Mapping[str, Any]) -> str:
    return str(next(iter(value.values()), ""))


def _is_inner(key: _Key, parents: Mapping[_Key, _Key], calls: Mapping[_Key, Any]) -> bool:
    passed = {key}
    while (key := parents.get(key, key)) not in passed:
        if key in calls:
            return True
        passed.add(key)
    return False


def _row(start: int, end: int, attributes: Mapping[str, str], first: int) -> dict[str, str]:
    row = {"arrival_s": repr((start - first) / 1e9)}
    for column, names in _COLUMNS.items():
        if (name := next((n for n in names if n in attributes), None)) is not None:
            row[column] = attributes[name]
    try:
        gaps = int(row["output_tokens"]) - 1
        rest_s = (end - start) / 1e9 - float(row["measured_ttft_s"])
        row["measured_tpot_s"] = repr(max(0.0, rest_s / gaps))
    except (KeyError, ValueError, ZeroDivisionError):  # a call that says no such times has none
        return row
    return row
