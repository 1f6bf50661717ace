"""Answers of a form: JSON, JSON of a schema, grammars; and what else clients ask of a server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from c2c.engine.front.grammars import schema_grammar
from tests.engine.live import Live, make_step, served
from tests.engine.talking import make_talking

# The case `json_schema`; the others are what users' schemas have.
AGE = {
    "type": "object", "properties": {"years": {"type": "integer"}},
    "required": ["years"], "additionalProperties": False,
}  # fmt: skip
CHOICE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["oak", "ash"]},
        "tall": {"type": "boolean"},
        "rings": {"type": "array", "items": {"const": 7}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "tall", "rings"],
    "additionalProperties": False,
}
ASKED = {"model": "talking", "messages": [{"role": "user", "content": "How old is the tree?"}]}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "any", "strict": True, "schema": value}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("forms")
    settings = (
        f"catalog={make_talking(folder / 'models')}", "workers=1", "rows=[1,4]", "budgets=[64]",
        "context=null", "pool_bytes=32000000", "sampling=checkpoint",
        "retries=100", "patience=1000",
    )  # fmt: skip
    make_step()
    with served(*settings, log=folder / "log") as live:
        yield live


def chat(live: Live, **body: Any) -> tuple[str, str]:
    """Return text and finish of an answer, which is the same in a stream."""
    body = {"max_tokens": 300, "temperature": 0, **body}
    whole = live.post("chat/completions", **(ASKED | body))
    assert whole.status_code == 200, whole.text
    choice = whole.json()["choices"][0]
    pieces = [e["choices"][0] for e in live.events("chat/completions", **(ASKED | body))]
    text = "".join(p["delta"].get("content") or "" for p in pieces)
    assert (text, pieces[-1]["finish_reason"]) == (
        choice["message"]["content"], choice["finish_reason"],
    )  # fmt: skip
    return text, choice["finish_reason"]


@pytest.mark.parametrize("hot", [0, 1.5])
def test_an_answer_is_of_its_schema(live: Live, hot: float) -> None:
    own = {"temperature": hot, "seed": 3}
    for _ in range(2):
        text, why = chat(live, response_format=schema(CHOICE), **own)
        answer = json.loads(text)
        assert why == "stop"
        assert answer["kind"] in ("oak", "ash")
        assert isinstance(answer["tall"], bool)
        assert set(answer["rings"]) == {7}
        assert set(answer) == {"kind", "tall", "rings"}
        own["seed"] += 1
    # A whole number comes to its end, too, and in as many tokens as the case has.
    text, why = chat(live, response_format=schema(AGE), max_tokens=34, **own)
    assert why == "stop", text
    answer = json.loads(text)
    assert set(answer) == {"years"}
    assert isinstance(answer["years"], int)
    assert live.state()["compiled_after_start"] == 0


@pytest.mark.slow
def test_every_way_to_ask_for_a_form(live: Live) -> None:
    year = r"(19|20)[0-9]{2}"
    gbnf = 'root ::= "on" | "off"\n'
    for form, pattern in (
        ({"guided_regex": year}, year),
        ({"regex": year}, year),
        ({"structured_outputs": {"regex": year}}, year),
        ({"guided_choice": ["é\n", '"b"', "🙂"]}, 'é\n|"b"|🙂'),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_grammar": gbnf}, "on|off"),
        ({"grammar": 'start: "on" | "off"'}, "on|off"),
        ({"ebnf": gbnf}, "on|off"),
        ({"guided_json": {"const": 5}}, "5"),
        ({"json_schema": '{"const": 5}'}, "5"),
        ({"structured_outputs": {"json": {"const": 5}}}, "5"),
        ({"guided_json": {"enum": [[1, 2]]}, "guided_whitespace_pattern": "~"}, r"\[~*1~*,~*2~*\]"),
    ):
        text, why = chat(live, **form, min_tokens=1)
        assert re.fullmatch(pattern, text), (form, text)
        assert why == "stop"
    for form in (
        {"response_format": {"type": "json_object"}}, {"guided_json_object": True},
        {"structured_outputs": {"json_object": True}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
    ):  # fmt: skip
        text, why = chat(live, **form, max_tokens=600, logit_bias={str(b): 5 for b in b'"}'})
        assert text.startswith("{")
        if why == "stop":
            assert isinstance(json.loads(text), dict)
    plain, _ = chat(live, max_tokens=8)
    for nothing in ({"type": "text"}, None):
        assert chat(live, max_tokens=8, response_format=nothing)[0] == plain
    answer = live.post("completions", model="talking", prompt="T", guided_choice=["ab"])
    assert answer.json()["choices"][0]["text"] == "ab"
    more = live.post(
        "completions", model="talking", prompt="T", guided_choice=["abc"], logprobs=2, n=3,
        ignore_eos=True, temperature=1.0,
    ).json()  # fmt: skip
    assert {c["text"] for c in more["choices"]} == {"abc"}
    assert all(min(c["logprobs"]["token_logprobs"]) > -99 for c in more["choices"])


def test_whole_numbers_have_an_end_where_the_schema_gives_none() -> None:
    def numbers(given: Any) -> Any:
        return json.loads(schema_grammar(given, "any"))["grammars"][0]["json_schema"]

    whole = {"type": "integer"}
    ends = {"type": "integer", "minimum": -(10**18) + 1, "maximum": 10**18 - 1}
    given = {
        "$defs": {"a": whole}, "type": "object", "properties": {"type": whole, "b": True},
        "anyOf": [whole], "items": {"items": whole}, "default": whole, "enum": [whole],
    }  # fmt: skip
    found = numbers(given)
    assert found.pop("x-guidance")
    assert found == {
        **given, "$defs": {"a": ends}, "properties": {"type": ends, "b": True}, "anyOf": [ends],
        "items": {"items": ends},
    }  # fmt: skip
    assert numbers({"type": "integer", "minimum": 0})["minimum"] == 0
    assert "maximum" not in numbers({"type": "integer", "minimum": 0})
    assert numbers({"type": ["integer", "null"]})["maximum"] == 10**18 - 1


COSTLY: tuple[dict[str, Any], ...] = (
    {"guided_json": {"type": "array", "items": {"type": "integer"}, "maxItems": 3_000_000}},
    {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 2**31 - 1}},
    {"guided_json": {"allOf": [
        {"type": "string", "pattern": f"^(a|b)*a(a|b){{{k}}}$"} for k in range(5, 30)
    ]}},
    {"guided_json": {"patternProperties": {f"^a{k}(b|c)*$": True for k in range(300)}}},
    {"guided_json": {
        "type": "object", "properties": {f"v{k}": True for k in range(20_000)}, "minProperties": 1,
        "additionalProperties": False,
    }},
    {"guided_json": {"enum": [f"v{k}" for k in range(500_000)]}},
    {"guided_choice": ["a" * 1_000_000]},
    {"guided_regex": "a" * 1_000_000},
    {"guided_grammar": 'start: %json {"type": "array", "items": {}, "maxItems": 2147483647}'},
    {"guided_json": {"$ref": "#"}, "stream": True},
)  # fmt: skip


def test_a_grammar_that_costs_too_much_is_refused_and_others_go_on(live: Live) -> None:
    plain = chat(live, max_tokens=40)[0]
    asked = {"model": "talking", "prompt": "T", "max_tokens": 2}
    with ThreadPoolExecutor(len(COSTLY)) as pool:
        costly = [pool.submit(live.post, "completions", **asked, **body) for body in COSTLY]
        for _ in range(4):
            assert chat(live, max_tokens=40)[0] == plain
    for answer in costly:
        assert answer.result().status_code in (400, 503), answer.result().text
    for body in COSTLY:  # one after the other, each has its turn
        began_s = time.monotonic()
        refused = live.post("completions", **asked, **body)
        assert time.monotonic() - began_s < 20.0  # 0.1 to 0.6 where nothing else runs
        assert (refused.status_code, refused.json()["error"]["param"]) == (
            400, "guided_json" if "guided_json" in body else next(iter(body)),
        )  # fmt: skip
    assert chat(live, guided_json={"const": 5})[0] == "5"
    endless = {"type": "array", "items": {"const": 1}, "maxItems": 2**31 - 1}
    assert chat(live, guided_json=endless, max_tokens=9)[0].startswith("[")


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [2, 3]}, "b": {"type": "boolean"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("tool_choice", {**ASKED, "tool_choice": "required"}),
        ("tool_choice", {**ASKED, "tool_choice": "always", "tools": [ADD]}),
        ("tool_choice",
         {**ASKED, "tool_choice": {**NAMED, "function": {"name": "sub"}}, "tools": [ADD]}),
        ("tool_choice",
         {**ASKED, "tool_choice": "required", "tools": [ADD], "guided_regex": "a"}),
        ("tools", {**ASKED, "tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "sum"}}}
        ]}),
        ("response_format", {"response_format": {"type": "yaml"}}),
        ("response_format", {"response_format": "json"}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": schema({}) | {"type": "json_object"}}),
        ("guided_whitespace_pattern", {"guided_regex": "a", "guided_whitespace_pattern": "~"}),
        ("response_format", {"response_format": schema({"type": "tree"})}),
        ("response_format", {"response_format": schema({"$ref": "http://127.0.0.1/x"})}),
        ("response_format", {"response_format": schema({"type": "string", "pattern": "("})}),
        ("response_format", {"response_format": schema({"uniqueItems": True, "type": "array"})}),
        ("guided_json", {"guided_json": "no JSON"}),
        ("guided_json", {"guided_json": "[1]"}),
        ("guided_json", {"guided_json": "[" * 900 + "]" * 900}),
        ("guided_regex", {"guided_regex": "("}),
        ("guided_regex", {"guided_regex": "(" * 5000 + "a" + ")" * 5000}),
        ("guided_choice", {"guided_choice": []}),
        ("guided_grammar", {"guided_grammar": "root ::= other"}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": "x"}}),
        ("guided_regex", {"guided_regex": "a", "guided_json": {}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        ("model", {"guided_regex": "a", "model": "bare", "prompt": [1]}),
    ],
)  # fmt: skip
def test_a_form_with_faults_is_refused_by_its_field(
    live: Live, param: str, body: dict[str, Any]
) -> None:
    path = "chat/completions" if "messages" in body else "completions"
    answer = live.post(
        path, **({} if "messages" in body else {"model": "talking", "prompt": "T"}) | body
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_is_demanded_comes_and_is_streamed(live: Live, choice: Any) -> None:
    body = {
        **ASKED, "tools": [NOW, ADD], "tool_choice": choice, "parallel_tool_calls": False,
        "temperature": 1.0, "seed": 5, "max_tokens": 200, "logit_bias": {str(b"a"[0] - 33): 10},
    }  # fmt: skip
    whole = live.post("chat/completions", **body).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls", whole
    assert whole["message"]["content"] is None
    (call,) = whole["message"]["tool_calls"]
    assert call["function"]["name"] in (("add",) if choice == NAMED else ("add", "now"))
    if call["function"]["name"] == "add":
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["a"] in (2, 3)
        assert isinstance(arguments["b"], bool)
    pieces = [e["choices"][0] for e in live.events("chat/completions", **body)]
    assert pieces[-1]["finish_reason"] == "tool_calls"
    deltas = [c for p in pieces for c in p["delta"].get("tool_calls", ())]
    assert {d["index"] for d in deltas} == {0}
    assert [d["function"].get("name") for d in deltas if "id" in d] == [call["function"]["name"]]
    assert len(deltas) > 3
    told = "".join(d["function"]["arguments"] for d in deltas)
    assert told == call["function"]["arguments"]
    assert not "".join(p["delta"].get("content") or "" for p in pieces).strip()
    # The call and its result go back, as an agent sends them.
    again = [
        *ASKED["messages"], whole["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "5"},
    ]  # fmt: skip
    answer = live.post("chat/completions", **{**body, "messages": again, "tool_choice": "none"})
    assert answer.status_code == 200, answer.text
    assert live.state()["compiled_after_start"] == 0


def test_an_answer_without_calls_is_what_it_was(live: Live) -> None:
    plain, _ = chat(live, max_tokens=30)
    with_tools = live.post(
        "chat/completions", **ASKED, tools=[ADD], tool_choice="none", max_tokens=30, temperature=0
    ).json()["choices"][0]
    assert with_tools["message"] == {"role": "assistant", "content": plain}
    assert chat(live, tools=[ADD], max_tokens=30)[1] == "length"


def test_forms_and_plain_answers_beside_each_other_survive_kills(live: Live) -> None:
    plain = chat(live, max_tokens=40)[0]
    alone = chat(live, response_format=schema(CHOICE), temperature=1.2, seed=8)[0]

    def ask(k: int) -> bool:
        if k % 2:
            return chat(live, max_tokens=40)[0] == plain
        return chat(live, response_format=schema(CHOICE), temperature=1.2, seed=8)[0] == alone

    with ThreadPoolExecutor(6) as pool:
        done = pool.map(ask, range(12))
        live.kill_worker(0)
        assert all(done)


def test_texts_and_tokens(live: Live) -> None:
    def ask(path: str, **body: Any) -> Any:
        return live.client.post(path, json={"model": "talking", **body})

    found = ask("/tokenize", prompt='{"a"}', return_token_strs=True).json()
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 4096)
    assert "".join(found["token_strs"]) == '{"a"}'
    assert ask("/detokenize", tokens=found["tokens"]).json() == {"prompt": '{"a"}'}
    chat = ask("/tokenize", messages=ASKED["messages"], tools=[ADD], temperature=0).json()
    used = live.post("chat/completions", **ASKED, tools=[ADD], max_tokens=1).json()["usage"]
    assert used["prompt_tokens"] == chat["count"]
    assert used["prompt_tokens_details"] == {"cached_tokens": 0}
    for path, param, body in (
        ("/tokenize", "tools", {"messages": ASKED["messages"], "tools": 1}),
        ("/tokenize", "messages", {"messages": "text"}),
        ("/tokenize", None, {}),
        ("/detokenize", "tokens", {"tokens": [270]}),
        ("/detokenize", "tokens", {"tokens": ["a"]}),
        ("/detokenize", "model", {"tokens": [1], "model": "bare"}),
        ("/tokenize", "prompt", {"prompt": "a", "model": "bare"}),
    ):
        answer = ask(path, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert ask("/tokenize", prompt="a", model="none").status_code == 404
    assert live.client.get("/version").json() == {"version": version("c2c")}
    listed = {m["id"]: m for m in live.client.get("/v1/models").json()["data"]}
    assert listed["talking"]["max_model_len"] == 4096


def test_each_chunk_may_say_what_was_used(live: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**ASKED, "max_tokens": 6, "ignore_eos": True, "stream_options": options}
    used = [event["usage"] for event in live.events("chat/completions", **body)]
    drawn = [one["completion_tokens"] for one in used]
    assert drawn == sorted(drawn)
    assert (drawn[0], drawn[-1]) == (1, 6)
    whole = live.post("chat/completions", **ASKED, max_tokens=6, ignore_eos=True).json()["usage"]
    assert used[-1] == used[-2] == whole


def test_a_request_keeps_the_id_that_it_comes_with(live: Live) -> None:
    def ids(**headers: str) -> str:
        return live.client.get("/health", headers=headers).headers.get_list("x-request-id")[0]

    assert ids(**{"X-Request-Id": "trace-7:a.b/c"}) == "trace-7:a.b/c"
    for odd in ("", "a b", "x" * 129, "a;b"):
        assert ids(**{"X-Request-Id": odd}).startswith("req-")
    assert ids() != ids()


@pytest.mark.slow
def test_metrics_are_of_their_kinds(live: Live) -> None:
    def families() -> dict[str, Any]:
        text = live.client.get("/metrics").text
        return {f.name: f for f in text_string_to_metric_families(text)}

    def values(name: str) -> dict[tuple[str, ...], float]:
        return {(s.name, *s.labels.values()): s.value for s in families()[name].samples}

    chat(live, max_tokens=5)
    before = families()
    counters = {name for name, f in before.items() if f.type == "counter"}
    assert {
        "c2c_requests", "c2c_new_tokens", "c2c_steps", "c2c_compiled_after_start",
        "c2c_model_prompt_tokens", "c2c_model_device_s", "c2c_worker_restarts",
    } <= counters  # fmt: skip
    assert {before[n].type for n in ("c2c_queue_seconds", "c2c_ttft_seconds")} == {"histogram"}
    for name in counters:
        for sample in before[name].samples:
            assert sample.name.endswith(("_total", "_created"))
    waited = before["c2c_queue_seconds"].samples
    whole = {s.name.removeprefix("c2c_queue_seconds_"): s.value for s in waited}
    buckets = [s.value for s in waited if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == whole["count"] > 0
    assert 0 < whole["sum"] < 60 * whole["count"]
    room = values("c2c_worker_kv_capacity_bytes")["c2c_worker_kv_capacity_bytes", "0"]
    assert 16e6 < room <= 32e6
    live.until(lambda state: not state["open"])
    assert values("c2c_worker_kv_bytes")["c2c_worker_kv_bytes", "0"] == 0
    # More than four at once: some wait, and keys and values are in use.
    body = {"model": "talking", "prompt": "T", "max_tokens": 900, "ignore_eos": True, "n": 9}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: live.post("completions", **body))
        live.until(lambda state: state["waiting"].get("talking", 0) == 5)
        assert values("c2c_waiting_requests") == {("c2c_waiting_requests", "talking"): 5}
        assert values("c2c_open_requests") == {("c2c_open_requests", "talking"): 9}
        assert 0 < values("c2c_worker_kv_bytes")["c2c_worker_kv_bytes", "0"] <= room
        assert done.result().status_code == 200
    after = families()
    for name in counters:
        now = {(s.name, *s.labels.values()): s.value for s in after[name].samples}
        for sample in before[name].samples:
            assert now[sample.name, *sample.labels.values()] >= sample.value


def test_nobody_adds_or_removes_models_without_the_setting(live: Live) -> None:
    for answer in (
        live.client.post("/v1/models", json={"path": "talking"}),
        live.client.delete("/v1/models/talking"),
    ):
        assert answer.status_code == 403
        assert "add_from" in answer.json()["error"]["message"]
    assert live.client.get("/v1/models/talking").status_code == 200


@pytest.mark.slow
def test_a_front_that_is_killed_is_replaced(live: Live) -> None:
    time.sleep(11.0)  # one that ends sooner ends the engine
    plain = chat(live, max_tokens=40)[0]
    folder = Path("/proc") / str(live.process.pid) / "task" / str(live.process.pid)
    children = [int(pid) for pid in (folder / "children").read_text().split()]
    (front,) = [
        pid for pid in children if b"c2c.engine.front" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    with ThreadPoolExecutor(1) as pool:
        long = {"model": "talking", "prompt": "T", "max_tokens": 4000, "ignore_eos": True}
        lost = pool.submit(live.post, "completions", **long)
        live.until(lambda state: state["open"].get("talking", 0) == 1)
        os.kill(front, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            lost.result()
    end_s = time.monotonic() + 60.0
    while True:
        with contextlib.suppress(httpx.TransportError):
            if live.client.get("/ready").status_code == 200:
                break
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert chat(live, max_tokens=40)[0] == plain
    live.until(lambda state: not state["open"].get("talking", 0))
    assert chat(live, guided_json={"const": 5})[0] == "5"
