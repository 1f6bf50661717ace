"""Logs of engines and OpenAI batch files as traces."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from c2c.errors import DataError
from c2c.workloads.containers import open_bytes

__all__ = ["LOGS", "log_format_of", "read_log"]

_SNIFFED_BYTES = 1 << 20  # an engine logs much before its first request
_YEAR_S = 366 * 86_400.0  # length of 2000, a leap year, used for times without a year


@dataclass(slots=True)
class _Request:
    arrival_s: float | None = None
    model: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True)
class _Found:
    requests: list[tuple[str, _Request]] = field(default_factory=list)
    begun: dict[str, list[_Request]] = field(default_factory=dict)
    malformed: int = 0

    def begin(self, key: str, request: _Request) -> None:
        self.requests.append((key, request))
        self.begun.setdefault(key, []).append(request)

    def ended(self, key: str, unknown: _Request) -> _Request:
        if key not in self.begun:
            self.begin(key, unknown)
        same = self.begun[key]
        return same.pop(0) if len(same) > 1 else same[0]


def log_format_of(path: Path) -> str | None:
    """Return a log's format, by its first lines; None if it is none."""
    with open_bytes(path) as stream:
        head = stream.read(_SNIFFED_BYTES)
    if head[:4] == b"PAR1":
        return None
    for line in head.decode("utf-8-sig", "replace").splitlines():
        for name, log_format in LOGS.items():
            if log_format.recognise(line):
                return name
    return None


def read_log(path: Path, name: str, chars_per_token: float) -> tuple[pa.Table, int]:
    """Return a log's requests by arrival, and the count of malformed lines.

    Columns: request, arrival_s (since the first), model, prompt_tokens, output_tokens; null if
    absent. The whole log is read: a request's last line is at its end.

    Source: vLLM `entrypoints/logger.py` (--enable-log-requests), SGLang
    `srt/utils/request_logger.py` (--log-requests, text and JSON), OpenAI's Batch API reference.
    """
    log = LOGS[name].read(_lines(path), chars_per_token)
    rows = log.requests
    arrivals = [r.arrival_s for _, r in rows if r.arrival_s is not None]
    if not arrivals:
        raise DataError(str(path), f"it has no request in the format {name}")
    first_s = min(arrivals)
    # Requests that began before the log have no arrival; as bad rows they come first.
    rows.sort(key=lambda row: -math.inf if row[1].arrival_s is None else row[1].arrival_s)
    since_s = [None if r.arrival_s is None else r.arrival_s - first_s for _, r in rows]
    table = pa.table(
        {
            "request": pa.array([key for key, _ in rows], pa.string()),
            "arrival_s": pa.array(since_s, pa.float64()),
            "model": pa.array([r.model or name for _, r in rows], pa.string()),
            "prompt_tokens": pa.array([r.prompt_tokens for _, r in rows], pa.int64()),
            "output_tokens": pa.array([r.output_tokens for _, r in rows], pa.int64()),
        }
    )
    return table, log.malformed


def _lines(path: Path) -> Iterator[str]:
    with open_bytes(path) as stream:
        yield from io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")


def _tokens_of(text: str | None, chars_per_token: float) -> int | None:
    if text is None or chars_per_token <= 0:
        return None
    return math.ceil(len(text) / chars_per_token)


# vLLM: INFO 08-05 10:11:12 [logger.py:41] Received request <id>: prompt: '...', params:
# SamplingParams(...), prompt_token_ids: [1, 2], ..., lora_request: None.
# INFO 08-05 10:11:13 [logger.py:71] Generated response <id>: output: '...', output_token_ids: ...
_VLLM_RECEIVED = re.compile(
    r"(\d\d-\d\d \d\d:\d\d:\d\d) .*?Received request ([^:\s]+): prompt: (.*), params: "
    r".*?prompt_token_ids: (None|\[[\d, ]*\])(.*)"
)
_VLLM_GENERATED = re.compile(
    r"Generated response ([^:\s]+?)(?: \(streaming complete\))?: output: (.*), "
    r"output_token_ids: (None|[\[(][\d, ]*[\])]), finish_reason: "
)
_VLLM_OTHER = re.compile(r"\] Received request ")  # another release's form: counted as malformed
_LORA = re.compile(r"lora_name='([^']+)'")


def _read_vllm(lines: Iterable[str], chars_per_token: float) -> _Found:
    result = _Found()
    latest_s, years = 0.0, 0
    for line in lines:
        if received := _VLLM_RECEIVED.search(line):
            when, key, prompt, ids, rest = received.groups()
            try:
                moment = datetime.strptime(f"2000-{when}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                result.malformed += 1
                continue
            at_s = moment.timestamp()
            years += at_s < latest_s - _YEAR_S / 2  # a new year began
            latest_s = at_s
            lora = _LORA.search(rest)
            request = _Request(
                arrival_s=at_s + years * _YEAR_S,
                model=lora[1] if lora else "",
                prompt_tokens=_count(ids) or _tokens_of(_unquoted(prompt), chars_per_token),
            )
            result.begin(key, request)
        elif generated := _VLLM_GENERATED.search(line):
            key, output, ids = generated.groups()
            request = result.ended(key, _Request())  # unknown: it arrived before the log begins
            request.output_tokens = _count(ids) or _tokens_of(_unquoted(output), chars_per_token)
        elif _VLLM_OTHER.search(line):
            result.malformed += 1
    return result


def _count(ids: str) -> int | None:
    return None if ids == "None" else len(re.findall(r"\d+", ids))


def _unquoted(text: str) -> str | None:
    return None if text == "None" else text[1:-1]


# SGLang: [2026-02-13 09:29:32] Receive: obj=GenerateReqInput(rid='...', ...), and at the end
# [...] Finish: obj=GenerateReqInput(...), out={..., 'meta_info': {..., 'prompt_tokens': 5,
# 'completion_tokens': 8, ..., 'e2e_latency': 0.1}}; or the same as a JSON object a line.
_SGLANG_TEXT = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^\]]*\]? .*?(Receive|Finish): obj=.*?"
    r"rid='([^']*)'"
)


def _read_sglang(lines: Iterable[str], chars_per_token: float) -> _Found:  # noqa: ARG001
    result = _Found()
    for line in lines:
        try:
            if line.startswith("{"):
                _sglang_json(json.loads(line), result)
            elif event := _SGLANG_TEXT.search(line):
                when, kind, key = event.groups()
                at_s = _timestamp_s(when.replace(",", "."))
                if kind == "Receive":
                    result.begin(key, _Request(arrival_s=at_s))
                    continue
                # Texts precede the numbers and may contain the same names: the last match counts.
                numbers = dict(re.findall(r"'(\w+)': ([\d.]+(?:e[+-]?\d+)?)", line))
                _sglang_end(result, key, at_s, numbers)
        except (ValueError, KeyError, TypeError, AttributeError):
            result.malformed += 1
    return result


def _sglang_json(event: Mapping[str, Any], requests: _Found) -> None:
    kind, key, at_s = event["event"], str(event["rid"]), _timestamp_s(event["timestamp"])
    if kind == "request.received":
        model = (event.get("obj") or {}).get("lora_path") or ""
        requests.begin(key, _Request(arrival_s=at_s, model=model))
    elif kind == "request.finished":
        _sglang_end(requests, key, at_s, (event.get("out") or {}).get("meta_info") or {})


def _sglang_end(requests: _Found, key: str, at_s: float, numbers: Mapping[str, Any]) -> None:
    begun_s = at_s - float(numbers.get("e2e_latency", 0.0))
    request = requests.ended(key, _Request(arrival_s=begun_s))  # perhaps before the log begins
    if "prompt_tokens" in numbers and "completion_tokens" in numbers:
        request.prompt_tokens = int(float(numbers["prompt_tokens"]))
        request.output_tokens = int(float(numbers["completion_tokens"]))


def _timestamp_s(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# OpenAI's Batch API: inputs ({custom_id, method, url, body}), which arrive all at once, and outputs
# ({custom_id, response: {status_code, body: {created, model, usage}}, error}).


def _read_openai_batch(lines: Iterable[str], chars_per_token: float) -> _Found:
    result = _Found()
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            key = str(record["custom_id"])
            response = record.get("response")
            request = (
                _of_batch_input(record["body"], chars_per_token)
                if "body" in record
                else _of_batch_output((response or {}).get("body") or {})
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            result.malformed += 1
            continue
        result.begin(key, request)
    return result


def _of_batch_input(body: Mapping[str, Any], chars_per_token: float) -> _Request:
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    texts = [str(m.get("content") or "") for m in body.get("messages") or ()]
    prompt = body.get("prompt")
    text = prompt if isinstance(prompt, str) else "".join(texts)
    return _Request(
        arrival_s=0.0,
        model=str(body.get("model") or ""),
        prompt_tokens=_tokens_of(text or None, chars_per_token),
        output_tokens=None if most is None else int(most),
    )


def _of_batch_output(body: Mapping[str, Any]) -> _Request:
    usage = body.get("usage") or {}
    created = body.get("created")
    return _Request(
        arrival_s=0.0 if created is None else float(created),
        model=str(body.get("model") or ""),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
    )


@dataclass(frozen=True, slots=True)
class _Log:
    recognise: Callable[[str], bool]
    read: Callable[[Iterable[str], float], _Found]


def _is_text(line: str) -> bool:
    return not line.lstrip().startswith(("{", "[{"))  # a JSON record may quote a log's line


LOGS: Mapping[str, _Log] = {
    "vllm": _Log(
        lambda line: _is_text(line) and _VLLM_RECEIVED.search(line) is not None, _read_vllm
    ),
    "sglang": _Log(
        lambda line: (
            (line.startswith("{") and '"event": "request.' in line)
            or (_is_text(line) and _SGLANG_TEXT.search(line) is not None)
        ),
        _read_sglang,
    ),
    "openai_batch": _Log(
        lambda line: (
            line.startswith("{")
            and '"custom_id"' in line
            and ('"body"' in line or '"response"' in line)
        ),
        _read_openai_batch,
    ),
}
