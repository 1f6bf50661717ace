"""Logs of vLLM and SGLang and OpenAI's batch files, read as traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from c2c.errors import DataError
from c2c.workloads import Workload, build_workload, concatenate
from c2c.workloads.formats import open_trace
from tests.workloads.traces import columns, stored

VLLM = """\
INFO 12-31 23:59:50 [api_server.py:1090] Starting vLLM API server 0 on http://0.0.0.0:8000
(APIServer pid=7) INFO 12-31 23:59:58 [logger.py:41] Received request chatcmpl-1: prompt: 'Hi, \
params: x', params: SamplingParams(n=1, max_tokens=16, stop=[]), prompt_token_ids: [1, 22, 333], \
prompt_embeds shape: None, lora_request: None.
INFO 12-31 23:59:59 [logger.py:41] Received request chatcmpl-2: prompt: 'twelve chars', params: \
SamplingParams(n=1), prompt_token_ids: None, prompt_embeds shape: None, lora_request: \
LoRARequest(lora_name='small', lora_int_id=1, lora_path='x').
INFO 01-01 00:00:01 [logger.py:71] Generated response chatcmpl-2 (streaming complete): output: \
'eight ch', output_token_ids: None, finish_reason: stop
INFO 01-01 00:00:02 [logger.py:71] Generated response chatcmpl-1: output: 'x', output_token_ids: \
(5, 6), finish_reason: length
INFO 01-01 00:00:03 [loggers.py:122] Engine 000: Avg prompt throughput: 1.2 tokens/s
"""
SGLANG = """\
[2026-02-13 09:29:30] INFO server_args.py:1: server_args=...
[2026-02-13 09:29:32] Receive: obj=GenerateReqInput(rid='a', text="'prompt_tokens': 999, ")
[2026-02-13 09:29:33 TP0] Prefill batch. #new-seq: 1, #new-token: 9, #cached-token: 0
[2026-02-13 09:29:33] Receive: obj=GenerateReqInput(rid='b', stream=True)
[2026-02-13 09:29:34] Finish: obj=GenerateReqInput(rid='b'), out={'text': "'completion_tokens': 7",\
 'meta_info': {'id': 'b', 'prompt_tokens': 11, 'completion_tokens': 21, 'e2e_latency': 1.0}}
[2026-02-13 09:29:35] Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': {'id': 'a', \
'prompt_tokens': 10, 'completion_tokens': 20, 'e2e_latency': 3.0}}
[2026-02-13 09:29:36] Finish: obj=GenerateReqInput(rid='c'), out={'meta_info': {'id': 'c', \
'prompt_tokens': 12, 'completion_tokens': 22, 'e2e_latency': 2.0}}
"""


def sglang_event(event: str, second: float, rid: str, **more: object) -> str:
    at = f"2026-02-13T09:29:{second:09.6f}"
    return json.dumps({"timestamp": at, "event": event, "rid": rid, **more})


SGLANG_JSON = "\n".join(
    [
        sglang_event("request.received", 1.25, "a", obj={"lora_path": None}),
        sglang_event("request.received", 2.5, "b", obj={"lora_path": "small"}),
        sglang_event("request.finished", 3.0, "b", obj={}, out={"meta_info": {
            "prompt_tokens": 11, "completion_tokens": 21, "e2e_latency": 0.5}}),
        sglang_event("request.finished", 4.0, "a", obj={}, out={"meta_info": {
            "prompt_tokens": 10, "completion_tokens": 20, "e2e_latency": 2.75}}),
    ]
)  # fmt: skip
BATCH_OUT = "\n".join(
    json.dumps({"id": f"r{i}", "custom_id": f"q-{i}", "error": None, "response": {
        "status_code": 200, "body": {"created": 1711471533 + at, "model": "Large", "usage": {
            "prompt_tokens": 10 + i, "completion_tokens": 20 + i, "total_tokens": 30}}}})
    for i, at in enumerate((2, 0, 1))
)  # fmt: skip
BATCH_IN = "\n".join(
    json.dumps({"custom_id": f"q-{i}", "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": "small", "max_tokens": 7, "messages": [
            {"role": "system", "content": "abcd"}, {"role": "user", "content": "efgh" * i}]}})
    for i in range(3)
)  # fmt: skip


def read(path: Path, text: str, **settings: object) -> Workload:
    path.write_text(text)
    return build_workload({"kind": "trace", "path": str(path), **settings}, ("small", "large"), 0)


def test_vllm_counts_ids_and_where_there_are_none_characters(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    workload = read(log, VLLM, chars_per_token=4)
    assert workload.description["format"] == "vllm"
    assert columns(workload) == ([0.0, 1.0], [1, 0], [3, 3], [2, 2])
    assert workload.description["assignment"]["map"] == {"vllm": "large", "small": "small"}
    with pytest.raises(DataError, match=r"1 of 2 rows are bad: missing_tokens 1 "):
        read(log, VLLM)
    assert columns(read(log, VLLM, lengths="fixed"))[2] == [128, 128]


def test_a_new_year_follows_the_old_one(tmp_path: Path) -> None:
    crossing = VLLM.replace("12-31 23:59:59", "01-01 00:00:00")
    assert columns(read(tmp_path / "l", crossing, chars_per_token=4))[0] == [0.0, 2.0]


def test_sglang_joins_received_and_finished_in_order_of_arrival(tmp_path: Path) -> None:
    workload = read(tmp_path / "server.log", SGLANG)
    assert workload.description["format"] == "sglang"
    # c came before the log began to say so: 2 s before its end
    assert columns(workload) == ([0.0, 1.0, 2.0], [0, 0, 0], [10, 11, 12], [20, 21, 22])


def test_sglang_in_json(tmp_path: Path) -> None:
    workload = read(tmp_path / "host_0.log", SGLANG_JSON + "\n{broken\n", on_bad_row="skip")
    assert columns(workload)[0] == [0.0, 1.25]
    assert workload.description["bad_rows"] == {"malformed_line": 1}
    assert workload.description["assignment"]["how"] == {"sglang": "rule", "small": "name"}


def test_a_batch_that_came_back_has_arrivals_models_and_usage(tmp_path: Path) -> None:
    workload = read(tmp_path / "out.jsonl", BATCH_OUT)
    assert workload.description["format"] == "openai_batch"
    assert columns(workload) == ([0.0, 1.0, 2.0], [1, 1, 1], [11, 12, 10], [21, 22, 20])
    assert workload.description["assignment"]["how"] == {"Large": "name"}


def test_a_batch_that_is_handed_in_comes_all_at_once(tmp_path: Path) -> None:
    workload = read(tmp_path / "in.jsonl", BATCH_IN, chars_per_token=2)
    assert columns(workload) == ([0.0] * 3, [0] * 3, [2, 4, 6], [7] * 3)
    with pytest.raises(
        DataError,
        match=r"it has no prompt_tokens\. workload\.chars_per_token=4 .*lengths=synthetic draws",
    ):
        read(tmp_path / "in.jsonl", BATCH_IN, lengths="trace")


def test_ids_that_come_again_are_other_requests(tmp_path: Path) -> None:
    again = VLLM.replace("chatcmpl-2", "chatcmpl-1")
    assert columns(read(tmp_path / "l", again, chars_per_token=4))[0] == [0.0, 1.0]
    assert columns(read(tmp_path / "o", BATCH_OUT + "\n" + BATCH_OUT))[2] == [
        11, 11, 12, 12, 10, 10,
    ]  # fmt: skip
    assert len(columns(read(tmp_path / "s", SGLANG_JSON.replace('"b"', '"a"')))[0]) == 2


def test_requests_of_lines_that_are_not_understood_are_told(tmp_path: Path) -> None:
    other = "INFO 01-01 00:00:04 [logger.py:9] Received request x: params: y, lora_request: None.\n"
    begun = "INFO 01-01 00:00:04 [logger.py:9] Generated response z: output: 'abcd', "
    begun += "output_token_ids: None, finish_reason: stop\n"
    with pytest.raises(
        DataError, match=r"2 of 4 rows are bad: malformed_line 1; missing_arrival 1"
    ):
        read(tmp_path / "l", VLLM + other + begun, chars_per_token=4)
    wrong_day = SGLANG.replace("02-13 09:29:33]", "02-31 09:29:33]")
    # b's line has no time: it came a second before its end, and the line is counted
    with pytest.raises(DataError, match=r"1 of 4 rows are bad: malformed_line 1\."):
        read(tmp_path / "s", wrong_day)


def test_lines_of_a_log_within_a_table_or_a_record_are_text(tmp_path: Path) -> None:
    line = VLLM.splitlines()[1]
    table = tmp_path / "t.csv"
    text = line.replace('"', '""')
    (table).write_text(
        f'arrival_s,prompt_tokens,output_tokens,text\n0,5,6,"{text}\n{text}"\n1,7,8,x\n'
    )
    assert open_trace(table).format.name == "c2c"
    record = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6, "text": line}
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    assert open_trace(tmp_path / "t.jsonl").format.name == "c2c"


def test_a_failed_request_of_a_batch_is_a_bad_row(tmp_path: Path) -> None:
    failed = json.dumps({"custom_id": "x", "response": None, "error": {"code": "expired"}})
    with pytest.raises(DataError, match="missing_tokens 1"):
        read(tmp_path / "out.jsonl", BATCH_OUT + "\n" + failed)


def test_lengths_of_a_log_with_the_arrivals_of_a_generator(tmp_path: Path) -> None:
    (tmp_path / "host_0.log").write_text(SGLANG_JSON)
    settings = {"kind": "poisson", "requests": 50, "lengths": str(tmp_path / "host_0.log")}
    block = concatenate(build_workload(settings, ("small",), 0).blocks())
    assert set(zip(block.prompt_tokens, block.output_tokens, strict=True)) == {(10, 20), (11, 21)}
    assert np.diff(block.arrival_s).min() > 0


def test_packed_logs_are_read_and_what_is_no_log_is_said(tmp_path: Path) -> None:
    packed = stored(tmp_path / "server.log.gz", gzip.compress(SGLANG.encode()))
    assert open_trace(packed).format.name == "sglang"
    (tmp_path / "other.log").write_text("nothing\nof the kind\n")
    with pytest.raises(DataError, match="no request in the format vllm"):
        open_trace(tmp_path / "other.log", "vllm")
    (tmp_path / "t.json").write_text('[{"prompt_len": 1}]')
    with pytest.raises(DataError, match="it has lengths but no arrivals"):
        open_trace(tmp_path / "t.json")
