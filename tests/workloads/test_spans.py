"""Spans of OpenTelemetry's GenAI conventions: one request a model call, whoever reports it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError
from c2c.workloads import build_workload, concatenate
from tests.workloads.traces import stored

START = 1_544_712_660_000_000_000


def span(at_ns: int, took_ns: int, parent: str, name: str, **attributes: Any) -> dict[str, Any]:
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    return {
        "traceId": name.partition("/")[0], "spanId": name, "parentSpanId": parent,
        "startTimeUnixNano": str(START + at_ns), "endTimeUnixNano": str(START + at_ns + took_ns),
        "attributes": [
            {"key": "gen_ai." + key.replace("__", "."),
             "value": {kinds[type(v)]: str(v) if type(v) is int else v}}
            for key, v in attributes.items()
        ],
    }  # fmt: skip


def lines(*groups: list[dict[str, Any]]) -> str:
    return "".join(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) + "\n"
        for spans in groups
    )


def read(path: Path, **more: Any) -> Any:
    return build_workload({"kind": "trace", "path": str(path), **more}, ("m0", "m1"), 0)


calls = st.lists(
    st.tuples(
        st.integers(0, 10**13), st.sampled_from(["m0", "m1"]), st.integers(1, 10**6),
        st.integers(2, 10**6), st.booleans(),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(calls=calls, order=st.randoms(use_true_random=False))
def test_each_call_is_one_request(
    calls: list[tuple[int, str, int, int, bool]], order: Any, tmp_path_factory: Any
) -> None:
    """An agent's span around it and an engine's within it, an HTTP span between, add none."""
    groups = []
    for number, (at, model, prompt, output, is_new) in enumerate(calls):
        k = f"{number}/"
        names = ("input_tokens", "output_tokens") if is_new else (
            "prompt_tokens", "completion_tokens")  # fmt: skip
        usage = dict(zip((f"usage__{n}" for n in names), (prompt, output), strict=True))
        groups.append([
            span(at, 9, "", k + "agent", operation__name="invoke_agent", **usage),
            span(at, 2 * 10**9, k + "agent", k + "call", operation__name="chat",
                 request__model=model, latency__time_to_first_token=0.5, **usage),
            span(at, 8, k + "call", k + "http"),
            span(at, 7, k + "http", k + "engine", usage__prompt_tokens=prompt),
            span(at, 6, k + "agent", k + "tool", operation__name="execute_tool"),
        ])  # fmt: skip
    order.shuffle(groups)
    path = stored(tmp_path_factory.mktemp("spans") / "spans.jsonl", lines(*groups))
    block = concatenate(read(path).blocks())
    wanted = sorted((at, prompt, output) for at, _, prompt, output, _ in calls)
    first = wanted[0][0]
    np.testing.assert_allclose(block.arrival_s, [(at - first) / 1e9 for at, _, _ in wanted])
    found = sorted(zip(block.prompt_tokens.tolist(), block.output_tokens.tolist(), strict=True))
    assert found == sorted((prompt, output) for _, prompt, output in wanted)
    np.testing.assert_allclose(block.measured_ttft_s, 0.5)
    np.testing.assert_allclose(block.measured_tpot_s, 1.5 / (block.output_tokens - 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines([span(0, 1, "", "a", operation__name="execute_tool")]), "no span of a model call"),
        (lines([span(0, 1, "", "a", request__model="m0")]),
         "it has no prompt_tokens and no output_tokens"),
        (lines([{"attributes": [{"key": "gen_ai.request.model", "value": {"stringValue": "m"}}]}]),
         "a span lacks a field or has another type: 'startTimeUnixNano'"),
        (lines([{"attributes": [7]}]), "a span lacks a field or has another type"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read(stored(tmp_path / "spans.jsonl", text))
