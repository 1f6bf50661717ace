"""Columns by other names, times of every unit, and JSON: read as they are meant, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads import build_workload, concatenate, describe, write_trace
from tests.workloads.traces import build, columns, json_lines, stored

EPOCH_S = 1_716_000_000
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ROWS = "\n0,a,10,20\n1.5,b,11,21\n2.5,a,12,22\n"


READ = ([0.0, 1.5, 2.5], [0, 1, 0], [10, 11, 12], [20, 21, 22])


def test_a_name_is_the_same_in_other_case_and_spelling(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for header in (
        "arrival_s, model, prompt_tokens, output_tokens",
        " Arrival_S ,MODEL,Prompt Tokens,output-tokens",
        "\ufeffarrivalS,Model,promptTokens,OUTPUT_TOKENS",
        '"arrival_s","model"," prompt_tokens ","output.tokens"',
    ):
        path.write_text(header + ROWS.replace(",", " , "), "utf-8")
        assert columns(build(path, lengths="trace")) == READ, header
    table = {"Arrival_s": [0.0, 1.5, 2.5], "model ": ["a", "b", "a"]}
    table |= {" Prompt tokens": [10, 11, 12], "output_tokens": [20, 21, 22]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    assert columns(build(tmp_path / "t.parquet", lengths="trace")) == READ
    with pytest.raises(DataError, match="column 'Model' or 'MODEL' occurs more than once"):
        build(stored(path, "Model,MODEL,arrival_s\na,b,1\n"))


TOOK: Mapping[str, str] = {
    "arrival_s,model_id,input_tokens,output_tokens":
        "arrival_s, model = model_id, prompt_tokens = input_tokens, output_tokens",
    "arrival_s,model,num_prefill_tokens,num_decode_tokens":
        "arrival_s, model, prompt_tokens = num_prefill_tokens, "
        "output_tokens = num_decode_tokens",
    "arrival_s,Model name,Input length (tokens),generated_tokens":
        "arrival_s, model = Model name, prompt_tokens = Input length (tokens), "
        "output_tokens = generated_tokens",
    "arrival_s,service,prompt_tokens,output_tokens":
        "arrival_s, model = service, prompt_tokens, output_tokens",
    "arrival_s,model,prompt_tokens,completion_tokens":
        "arrival_s, model, prompt_tokens, output_tokens = completion_tokens",
    "arrived_at,model,ISL,OSL":
        "arrival_s = arrived_at, model, prompt_tokens = ISL, output_tokens = OSL",
    "time,model,in,out":
        "arrival_s = time, model, prompt_tokens = in, output_tokens = out",
    "arrival time (s),LLM,prompt length,response length":
        "arrival_s = arrival time (s), model = LLM, prompt_tokens = prompt length, "
        "output_tokens = response length",
    "Timestamp, Model Name, Prompt Tokens, Completion Tokens":
        "arrival_s = Timestamp, model = Model Name, prompt_tokens = Prompt Tokens, "
        "output_tokens = Completion Tokens",
    "ts,svc,tokens_in,tokens_out":
        "arrival_s = ts, model = svc, prompt_tokens = tokens_in, output_tokens = tokens_out",
    "start_time,gen_ai.request.model,response.usage.input_tokens,response.usage.output_tokens":
        "arrival_s = start_time, model = gen_ai.request.model, "
        "prompt_tokens = response.usage.input_tokens, "
        "output_tokens = response.usage.output_tokens",
}  # fmt: skip


@pytest.mark.parametrize("header", TOOK)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " ; "])
def test_a_likely_column_is_taken_and_said(tmp_path: Path, header: str, delimiter: str) -> None:
    path = stored(tmp_path / "t.csv", (header + ROWS).replace(", ", ",").replace(",", delimiter))
    workload = build(path)
    found = columns(workload)
    assert ([at - found[0][0] for at in found[0]], *found[1:]) == READ
    assert f"columns: took {TOOK[header]} (or set workload.columns)" in describe(workload)
    assert workload.description["columns_not_used"] == []


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("start_time,created_at,prompt_tokens,output_tokens",
         "arrival_s may be the column 'start_time' or 'created_at'. Name it with "
         "'workload.columns={arrival_s: start_time}'."),
        ("arrival_s,output_tokens,input_tokens,prompt_token_count",
         "prompt_tokens may be the column 'input_tokens' or 'prompt_token_count'. Name it with"),
        ("arrival_s,deployment,adapter,prompt_tokens,output_tokens",
         "model may be the column 'deployment' or 'adapter'. Name it with "
         "'workload.columns={model: deployment}', or 'workload.columns={model: \"\"}' for none."),
        ("time,model,a,b",
         "it has no prompt_tokens and no output_tokens; whole numbers are in 'a', 'b'. Name their "
         "columns with 'workload.columns={prompt_tokens: <column>, output_tokens: <column>}'. "
         "workload.lengths=synthetic draws lengths."),
        ("time,num_prompts,num_completions", "whole numbers are in 'num_prompts', "),
        ("time,request,response,status,id", "no output_tokens; whole numbers are in 'request', "),
        ("ts,prompt_chars,max_tokens,cached_input_tokens,output_tokens_per_second",
         "it has no prompt_tokens and no output_tokens; whole numbers are in 'prompt_chars', "),
        ("inter_arrival_s,prompt_tokens,output_tokens", "it has lengths but no arrivals"),
        ("end_time,prompt_tokens,output_tokens", "it has lengths but no arrivals"),
        ("day,hour,x", "its columns fit no known format"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_clear_is_asked_for(tmp_path: Path, header: str, said: str) -> None:
    path = tmp_path / "t.csv"
    wide = header.count(",") + 1
    with pytest.raises(DataError) as refused:
        build(stored(path, "\n".join([header, *(",".join([f"{k}"] * wide) for k in (1, 2, 3))])))
    assert said in str(refused.value)


HABITS: Mapping[str, str] = {
    # header and first row: a spreadsheet with decimal commas, one with dates of its country, a log,
    # a gateway's table, a bill
    "excel.csv": "\ufeffTimestamp;Model Name;Prompt Tokens;Completion Tokens;User\r\n"
    "0,5;{};10;20;u1\r\n2,0;{};1011;21;u2\r\n3,0;{};12;22;u1\r\n",
    "dates.csv": "timestamp;Model;Input Tokens;Output Tokens\n10.09.2026 08:00:00,5;{};10;20\n"
    "10.09.2026 08:00:02;{};1011;21\n10.09.2026 08:00:03;{};12;22\n",
    "log.csv": "id,created_at,deployment,usage.prompt_tokens,usage.completion_tokens,latency_ms\n"
    "a,1789000000500,{},10,20,5\nb,1789000002000,{},1011,21,5\nc,1789000003000,{},12,22,5\n",
    "gateway.tsv": "startTime\tendTime\tmodel\tprompt_tokens\tcompletion_tokens\tspend\n"
    "2026-09-10T08:00:00.5Z\t2026-09-10T08:00:09Z\t{}\t10\t20\t0.1\n"
    "2026-09-10T08:00:02Z\t2026-09-10T08:00:09Z\t{}\t1011\t21\t0.1\n"
    "2026-09-10T08:00:03Z\t2026-09-10T08:00:09Z\t{}\t12\t22\t0.1\n",
    "bill.csv": 'ts,model,input_tokens,output_tokens,cost_usd\n0.5,{},"10","20",0.1\n'
    '2,{},"1,011","21",0.1\n3,{},"12","22",0.1\n',
}


@pytest.mark.parametrize("name", HABITS)
def test_files_of_other_habits_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    path = stored(tmp_path / name, HABITS[name].format("Qwen/Qwen3-32B", "large", "Qwen/Qwen3-32B"))
    workload = build_workload(
        {"kind": "trace", "path": str(path)}, ("small", "large"), 0, may_add=True
    )
    arrival_s, model, prompt_tokens, output_tokens = columns(workload)
    assert [at - arrival_s[0] for at in arrival_s] == [0, 1.5, 2.5]
    assert [workload.models[k] for k in model] == ["qwen3-32b", "large", "qwen3-32b"]
    assert (prompt_tokens, output_tokens) == ([10, 1011, 12], [20, 21, 22])
    (line,) = (line for line in describe(workload) if line.startswith("columns: took "))
    assert all(field in line for field in ("arrival_s", "model", "prompt_tokens", "output_tokens"))
    assert "  qwen3-32b: 2 requests of Qwen/Qwen3-32B (its name)" in describe(workload)


def test_a_column_of_texts_is_no_length_and_one_of_one_value_no_time(tmp_path: Path) -> None:
    rows = [
        {"date": 20260101, "start_time": 5001.5 + k, "request": "...", "response": "2 words",
         "prompt_tokens": ["a"], "info": {"input_tokens": 10 + k, "output_tokens": 20 + k}}
        for k in range(3)
    ]  # fmt: skip
    path = stored(tmp_path / "t.json", json.dumps(rows))
    workload = build(path, columns={"prompt_tokens": "info.input_tokens"})
    assert columns(workload) == ([0, 1, 2], [0, 0, 0], [10, 11, 12], [20, 21, 22])
    said = workload.description["columns_guessed"]
    assert said == {"arrival_s": "start_time", "output_tokens": "info.output_tokens"}
    for row in rows:
        del row["prompt_tokens"]
    assert columns(build(stored(path, json.dumps(rows)))) == columns(workload)


def test_columns_that_are_not_read_are_said(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "arrival_s,total_tokens,prompt\n0,5,hello\n")
    with pytest.raises(DataError, match="no output_tokens; whole numbers are in 'total_tokens'"):
        build(path)
    said = describe(build(path, lengths="synthetic"))
    assert "columns not used: total_tokens, prompt" in said


def test_a_file_can_be_said_to_have_no_column_of_models(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "arrival_s,model_version,prompt_tokens,output_tokens" + ROWS)
    assert columns(build(path))[1] == READ[1]
    workload = build(path, columns={"model": ""})
    assert columns(workload)[1] == [0, 0, 0]
    assert "columns not used: model_version" in describe(workload)
    assert "columns not used: prompt_tokens, output_tokens" in describe(
        build(path, columns={"model": "model_version"}, lengths="fixed")
    )


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["arrival_s", "Timestamp", "when"])
@pytest.mark.parametrize("container", ["csv", "parquet", "jsonl"])
def test_times_since_1970_count_from_the_first_request(
    tmp_path: Path, unit: str, name: str, container: str
) -> None:
    times = [(EPOCH_S + at) * UNITS[unit] for at in (0, 1, 19)]
    rows = [{name: at, "Model": "a", "Request tokens": 5, "Response tokens": 6} for at in times]
    told = {"arrival_s": "when"} if name == "when" else {}
    if name != "Timestamp":
        told |= {"prompt_tokens": "Request tokens", "output_tokens": "Response tokens"}
    path = tmp_path / f"t.{container}"
    if container == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif container == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    workload = build(path, columns=told)
    np.testing.assert_allclose(columns(workload)[0], [0, 1, 19], atol=1e-6)
    assert workload.description["span_s"] == pytest.approx(19)
    assert any("since 1970; 0 is the first request" in line for line in describe(workload))


def test_a_first_request_far_from_zero_is_the_zero(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    def arrivals(*at: float, **said: object) -> list[float]:
        path.write_text("arrival_s\n" + "".join(f"{one}\n" for one in at))
        return columns(build(path, lengths="fixed", **said))[0]

    assert arrivals(7, 9) == [7, 9]
    assert arrivals(7, 9, origin="first") == [0, 2]
    assert arrivals(500_000, 500_002) == [0, 2]
    assert arrivals(500_000, 500_002, origin="keep") == [500_000, 500_002]
    assert arrivals(0, 1e6) == [0, 1e6]
    assert arrivals(7000, 9000, time_unit="ms") == [7, 9]
    with pytest.raises(SettingError, match=r"workload\.time_unit='auto'.*arrives within"):
        arrivals(0, 5e14)
    with pytest.raises(SettingError, match=r"workload\.time_unit='ms': expected auto, as times"):
        build(stored(path, "arrival_s\n2024-01-01\n"), time_unit="ms", lengths="fixed")


def test_times_that_cannot_be_read_name_the_forms_that_are(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "arrival_s\n16/11/2023 18:15\n17/11/2023 18:15\n")
    with pytest.raises(DataError, match=r"numbers \(12\.5\) and as dates such as 2023-11-16 18:15"):
        build(path, lengths="fixed")
    with pytest.raises(DataError, match=r"unreadable_arrival 1 .* as dates such as 2023-11-16"):
        build(stored(path, "arrival_s\n1\n16/11/2023 18:15\n"), lengths="fixed")
    with pytest.raises(DataError, match=r"'Timestamp' may be .* such as '16/11/2023 18:15'"):
        build(stored(path, "Timestamp,prompt_tokens,output_tokens\n16/11/2023 18:15,1,1\n"))


MOONCAKE = [
    {"timestamp": 3000 * at, "input_length": 512 + at, "output_length": 7 + at, "hash_ids": [at, 1]}
    for at in range(40)
]
MORE: Mapping[str, Mapping[str, Any]] = {
    "mooncake": {},
    "sessions": {"session_id": "s", "delay": 500},
    "bailian": {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1},
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("per_second", [0, *UNITS.values()])
@pytest.mark.parametrize("hashed", [True, False])
def test_traces_with_prefix_blocks_sessions_and_turns(
    tmp_path: Path, more: str, per_second: int, hashed: bool
) -> None:
    unit_s = 1 if more == "bailian" else 1000
    rows = []
    for row in MOONCAKE:
        at = row["timestamp"] / 1000
        time = int((EPOCH_S + at) * per_second) if per_second else int(at * unit_s)
        rows.append({**row, **MORE[more], "timestamp": time})
        if not hashed:
            del rows[-1]["hash_ids"]
    workload = build(json_lines(tmp_path / "t.jsonl", rows))
    arrival_s, _, prompt, output = columns(workload)
    np.testing.assert_allclose(arrival_s, np.arange(40) * 3, atol=1e-5)
    assert (prompt, output) == (list(range(512, 552)), list(range(7, 47)))
    unused = [name for name in rows[0] if name in {"delay", "type"}]
    assert workload.description["columns_not_used"] == unused
    (said,) = (line for line in describe(workload) if line.startswith("times: "))
    assert ("since 1970" in said) == bool(per_second)
    assert ("milliseconds" in said) == (per_second == 1000 or (not per_second and unit_s == 1000))


def test_a_unit_that_cannot_be_seen_is_asked_for(tmp_path: Path) -> None:
    rows = [{**row, "timestamp": row["timestamp"] / 1000} for row in MOONCAKE]
    path = json_lines(tmp_path / "t.jsonl", rows)
    with pytest.raises(SettingError, match=r"workload\.time_unit='auto': expected s or ms"):
        build(path)
    assert columns(build(path, time_unit="s"))[0] == [3.0 * at for at in range(40)]


def test_a_turn_without_an_arrival_is_counted_not_placed(tmp_path: Path) -> None:
    turn = {"session_id": "s", "delay": 5, "input_length": 5, "output_length": 5}
    path = json_lines(tmp_path / "t.jsonl", [MOONCAKE[0], turn, MOONCAKE[1]])
    with pytest.raises(DataError, match=r"missing_arrival 1 \(rows 2\).*Turns with a delay"):
        build(path)


def test_a_broken_line_of_json_costs_that_line(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "t.jsonl", MOONCAKE)
    stored(path, path.read_text()[:-40] + "\n[1]\n")
    with pytest.raises(DataError, match=r"2 of 41 rows are bad: malformed_line 2"):
        build(path)
    assert len(columns(build(path, on_bad_row="skip"))[0]) == 39


RESULT = {
    "date": "20260101", "backend": "vllm", "completed": 3, "model_id": "m",
    "input_lens": [100, 200, 300], "output_lens": [10, 20, 30], "start_times": [11.5, 11.0, 13.0],
    "ttfts": [0.1, 0.2, 0.3], "itls": [[0.1], [], [0.2, 0.3]], "errors": ["", "", ""],
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_the_result_of_a_serving_benchmark_is_a_trace(tmp_path: Path, indent: int | None) -> None:
    path = stored(tmp_path / "r.json", json.dumps(RESULT, indent=indent))
    workload = build(path)
    assert columns(workload) == ([0.0, 0.5, 2.0], [0, 0, 0], [200, 100, 300], [20, 10, 30])
    assert workload.description["assignment"]["made_of"] == {"m": "small"}
    assert "columns not used: date, backend, completed, errors" in describe(workload)
    assert "measured latencies (TTFT, TPOT): 3 requests" in describe(workload)
    block = concatenate(workload.blocks())
    assert block.measured_ttft_s is not None
    assert block.measured_tpot_s is not None
    assert block.measured_ttft_s.tolist() == [0.2, 0.1, 0.3]
    np.testing.assert_allclose(block.measured_tpot_s, [np.nan, 0.1 / 9, 0.5 / 29])
    write_trace(tmp_path / "t.parquet", workload)
    again = concatenate(build(tmp_path / "t.parquet").blocks())
    assert again.measured_tpot_s is not None
    np.testing.assert_array_equal(again.measured_tpot_s, block.measured_tpot_s)
    drawn = concatenate(build(path, lengths="fixed").blocks())
    assert (drawn.measured_ttft_s, drawn.measured_tpot_s) == (None, None)
    with pytest.raises(DataError, match=r"but no arrivals\. Use it as workload\.lengths="):
        build(stored(path, json.dumps({k: v for k, v in RESULT.items() if k != "start_times"})))
    odd = {"ttfts": ["x", None, -1], "itls": [3, ["a"], None]}  # what tells nothing is no bad row
    path.write_text(json.dumps(RESULT | odd))
    assert not any(line.startswith("measured") for line in describe(build(path)))
    with pytest.raises(DataError, match="output_lens has 1 entries and input_lens has 3"):
        build(stored(path, json.dumps({**RESULT, "output_lens": [1]})))


RECORD = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 3_000_000),
        "input_length": st.integers(1, 10**6),
        "output_length": st.integers(1, 10**6),
    },
    optional={"hash_ids": st.lists(st.integers(0, 99)), "text": st.text(max_size=9)},
)


@settings(max_examples=25)
@given(
    rows=st.lists(RECORD, min_size=1, max_size=20),
    form=st.sampled_from(["lines", "list", "indented", "one a line"]),
)
def test_no_record_of_json_is_lost_and_none_made(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], form: str
) -> None:
    rows = sorted(rows, key=lambda row: row["timestamp"])
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = {
        "lines": "\n".join(texts),
        "list": json.dumps(rows),
        "indented": json.dumps(rows, indent=1),
        "one a line": "[" + ",\n".join(texts) + "]",
    }[form]
    path = stored(tmp_path_factory.mktemp("t") / "t.json", text.encode("utf-8"))
    arrival_s, _, prompt, output = columns(build(path))
    assert arrival_s == [(row["timestamp"] - rows[0]["timestamp"]) / 1000 for row in rows]
    assert prompt == [row["input_length"] for row in rows]
    assert output == [row["output_length"] for row in rows]


CASES = {
    "blocks.jsonl": (40, 117.0, 121_103, 4_784),
    "epoch_seconds.csv": (20, 19.0, 6_000, 400),
    "one_instant.csv": (40, 5.0, 12_000, 800),
    "benchmark_result.json": (5, 2.0, 1_500, 150),
    "quoted_newlines.csv.gz": (2_500, 499.8, 437_233, 30_925),
    "header_spaces.csv": (30, 14.5, 13_372, 801),
}


@pytest.mark.parametrize("name", CASES)
def test_traces_of_users_are_read_whole(shared_part: Callable[[str], Path], name: str) -> None:
    path = shared_part(f"cases/simulator/{name}")
    told = {"kind": "trace", "path": str(path)}
    workload = build_workload(told, ("llama-3-8b", "llama-3-3b"), 0)
    arrival_s, _, prompt, output = columns(workload)
    found = len(arrival_s), pytest.approx(arrival_s[-1]), sum(prompt), sum(output)
    assert CASES[name] == found
    assert workload.description["bad_rows"] == {}
