"""Anthropic's messages and OpenAI's responses: scripted answers, whole and as streams."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from c2c.engine import messages as say
from c2c.engine.front.app import make_app
from c2c.engine.front.served_model import Served
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer
from tests.engine.fake_front import FakeLink, begun
from tests.engine.talking import HERMES, byte_tokenizer

TOKENIZER = Tokenizer(
    backend=byte_tokenizer(), chat_template=ChatTemplate(source=HERMES + "{# <think></think> #}")
)
INFO = say.ModelInfo(name="any", path="", context=4096, vocab=262)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "x\n"}}\n</tool_call>'
SCRIPT = f"<think>\nHm.\n</think>\n\nI add. {CALL}\n{CALL}\nDone."


class Scripted(FakeLink):
    """Sender to a scheduler whose model writes one text, in frames of random lengths."""

    def __init__(self, text: str, why: str, seed: int) -> None:
        super().__init__(INFO, why=why)
        self.text, self.seed = text, seed
        self.asked: dict[str, Any] = {}

    def ask(self, **fields: Any) -> tuple[int, asyncio.Queue[say.Answered]]:
        self.asked = fields
        answers: asyncio.Queue[say.Answered] = asyncio.Queue()
        left, random_ = (
            TOKENIZER.encode(self.text, add_special_tokens=False),
            random.Random(self.seed),
        )
        while left:
            count = random_.randint(1, 9)
            answers.put_nowait(say.Tokens(request=1, tokens=tuple(left[:count])))
            left = left[count:]
        answers.put_nowait(say.Ended(request=1, why=self.why))
        return 1, answers


def asked(
    path: str, body: dict[str, Any], text: str = SCRIPT, *, why: str = "stop", seed: int = 0,
    **more: Any,
) -> tuple[httpx.Response, str]:  # fmt: skip
    """Return an answer, and the prompt."""
    model = Served(info=INFO, tokenizer=TOKENIZER, eos=frozenset(), longest=None)
    link = Scripted(text, why, seed)
    app = make_app(link, key="secret", read=lambda _infos: {"any": model}, origins=["http://a.b"])
    with begun(app) as send:
        answer = send(
            "POST", path, json={"model": "any", **body}, headers={"x-api-key": "secret"}, **more
        )
    prompt = TOKENIZER.decode(link.asked["ids"]) if link.asked else ""
    return answer, prompt


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    result = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        result.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {result[-1]['type']}"
    return result


ADD = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT: dict[str, Any] = {
    "max_tokens": 400, "system": [{"type": "text", "text": "brief"}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "So:"},
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1",
             "content": [{"type": "text", "text": "3"}]},
            {"type": "text", "text": "More", "cache_control": {"type": "ephemeral"}},
        ]},
    ],
    "tools": [{"name": "add", "description": "adds", "input_schema": ADD}],
}  # fmt: skip
ITEMS: dict[str, Any] = {
    "max_output_tokens": 400, "instructions": "brief",
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "r", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "So:"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "user", "content": [{"type": "input_text", "text": "More"}]},
    ],
    "tools": [{"type": "function", "name": "add", "description": "adds", "parameters": ADD}],
}  # fmt: skip
PROMPT = (
    '<system>brief<user>Hi<assistant>So:<tool_call>{"name": "add", "arguments": {"a": 1}}'
    "</tool_call><tool>3<user>More<assistant>"
)
INPUT = {"a": 2, "b": "x\n"}


def test_a_message_has_blocks() -> None:
    answer, prompt = asked("/v1/messages", CHAT)
    assert answer.status_code == 200, answer.text
    assert prompt.endswith(PROMPT)
    found = answer.json()
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "any")
    assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)
    thought, text, *calls, last = found["content"]
    assert thought == {"type": "thinking", "thinking": "\nHm.\n", "signature": ""}
    assert text == {"type": "text", "text": "I add. "}
    assert last == {"type": "text", "text": "Done."}
    assert [(c["type"], c["name"], c["input"]) for c in calls] == [("tool_use", "add", INPUT)] * 2
    assert found["usage"]["output_tokens"] == len(TOKENIZER.encode(SCRIPT))
    begun_ = [*CHAT["messages"], {"role": "assistant", "content": "The l"}]
    assert asked("/v1/messages", CHAT | {"messages": begun_})[1].endswith("<assistant>The l")
    counted, _ = asked("/v1/messages/count_tokens", CHAT)
    assert counted.json() == {"input_tokens": found["usage"]["input_tokens"]}


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_of_a_message_joins_to_its_blocks(seed: int) -> None:
    answer, _ = asked("/v1/messages", CHAT | {"stream": True}, seed=seed)
    first, *middle, delta, last = events(answer)
    assert (first["type"], last["type"]) == ("message_start", "message_stop")
    assert first["message"]["content"] == []
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    blocks: list[dict[str, Any]] = []
    for event in middle:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"joined": ""})
        elif event["type"] == "content_block_delta":
            (text,) = (v for k, v in event["delta"].items() if k != "type")
            blocks[-1]["joined"] += text
        assert event["index"] == len(blocks) - 1
    kinds = [block["type"] for block in blocks]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    thought, text, *calls, rest = (block["joined"] for block in blocks)
    assert (thought, text, rest) == ("\nHm.\n", "I add. ", "Done.")
    assert [json.loads(call) for call in calls] == [INPUT] * 2


@pytest.mark.parametrize(
    ("text", "why", "body", "reason", "stop"),
    [
        ("Four.", "stop", {}, "end_turn", None),
        ("Four.", "length", {}, "max_tokens", None),
        ("Four.", "stop", {"stop_sequences": ["zz", "ur"]}, "stop_sequence", "ur"),
    ],
)
def test_a_message_says_why_it_ends(
    text: str, why: str, body: dict[str, Any], reason: str, stop: str | None
) -> None:
    found = asked("/v1/messages", CHAT | body, text, why=why)[0].json()
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, stop)
    assert found["content"] == [{"type": "text", "text": "Fo" if stop else "Four."}]


def test_a_response_has_items() -> None:
    answer, prompt = asked("/v1/responses", ITEMS)
    assert answer.status_code == 200, answer.text
    assert prompt.endswith(PROMPT)
    found = answer.json()
    assert (found["object"], found["status"], found["store"]) == ("response", "completed", False)
    assert found["tools"] == ITEMS["tools"]
    thought, text, *calls, last = found["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "\nHm.\n"}]
    assert (text["role"], text["content"][0]["text"]) == ("assistant", "I add. ")
    assert last["content"][0]["text"] == "Done."
    assert [(c["type"], c["name"]) for c in calls] == [("function_call", "add")] * 2
    assert [json.loads(c["arguments"]) for c in calls] == [INPUT] * 2
    assert found["usage"]["output_tokens"] == len(TOKENIZER.encode(SCRIPT))


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_of_a_response_ends_in_its_items(seed: int) -> None:
    answer, _ = asked("/v1/responses", ITEMS | {"stream": True}, seed=seed)
    found = events(answer)
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1]["type"] == "response.completed"
    output = found[-1]["response"]["output"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == output
    for index, item in enumerate(output):
        own = [e for e in found if e.get("output_index") == index and e["type"].endswith(".delta")]
        joined = "".join(event["delta"] for event in own)
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert joined == whole
        assert {event["item_id"] for event in own} == {item["id"]}
    texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
    assert texts == ["I add. ", "Done."]
    cut = events(asked("/v1/responses", ITEMS | {"stream": True}, "Fo", why="length")[0])[-1]
    assert cut["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("messages", {"max_tokens": None}, "max_tokens"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ("messages", {"messages": [{"role": "user", "content": ["a"]}]}, "messages"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools"),
        ("messages", {"tool_choice": {"type": "all"}}, "tool_choice"),
        ("messages", {"tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice"),
        ("messages", {"temperature": 3}, "temperature"),
        ("messages", {"logprobs": True}, "logprobs"),
        ("messages", {"n": 2}, "n"),
        ("responses", {"top_logprobs": 3}, "top_logprobs"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"background": True}, "background"),
        ("responses", {"input": [{"type": "item_reference", "id": "a"}]}, "input"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools"),
        ("responses", {"tool_choice": "all"}, "tool_choice"),
        ("responses", {"text": {"format": {"type": "yaml"}}}, "response_format"),
        ("responses", {"truncation": "auto"}, "truncation"),
        ("responses", {"max_tokens": 5}, "max_tokens"),
        ("responses", {"messages": CHAT["messages"]}, "messages"),
        ("responses", {"include": ["message.output_text.logprobs"]}, "include"),
        ("responses", {"text": {"verbosity": "low"}}, "verbosity"),
        ("messages", {"parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_what_is_not_built_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    answer, _ = asked(f"/v1/{path}", (CHAT if path == "messages" else ITEMS) | body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert answer.json()["type"] == "error"


def test_choices_of_tools_are_those_of_chats() -> None:
    for path, base, choice, forced in (
        ("messages", CHAT, {"type": "any"}, True),
        ("messages", CHAT, {"type": "tool", "name": "add"}, True),
        ("messages", CHAT, {"type": "none"}, False),
        ("responses", ITEMS, "required", True),
        ("responses", ITEMS, {"type": "function", "name": "add"}, True),
        ("responses", ITEMS, {"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "function", "name": "add"}]}, True),
        ("responses", ITEMS, "auto", False),
    ):  # fmt: skip
        model = Served(info=INFO, tokenizer=TOKENIZER, eos=frozenset(), longest=None)
        link = Scripted("x", "stop", 0)
        app = make_app(link, key=None, read=lambda _infos, m=model: {"any": m})
        with begun(app) as send:
            body = {"model": "any", **base, "tool_choice": choice}
            answer = send("POST", f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert bool(link.asked["grammar"]) == forced


def test_a_failure_within_a_stream_is_an_event() -> None:
    for path, body in (("messages", CHAT), ("responses", ITEMS)):
        answer, _ = asked(f"/v1/{path}", body | {"stream": True}, "Four", why="worker_lost")
        last = events(answer)[-1]
        assert last["type"] == "error"
        assert "worker" in str(last)
        failed, _ = asked(f"/v1/{path}", body | {"stream": True}, "", why="worker_lost")
        assert failed.status_code == 503


def test_browsers_may_ask_from_allowed_pages() -> None:
    model = Served(info=INFO, tokenizer=TOKENIZER, eos=frozenset(), longest=None)
    for origins, seen in ((["http://a.b"], "http://a.b"), (["*"], "*"), ([], None)):
        app = make_app(
            Scripted("x", "stop", 0),
            key="secret",
            read=lambda _infos: {"any": model},
            origins=origins,
        )
        with begun(app) as send:
            headers = {
                "origin": "http://a.b", "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            }  # fmt: skip
            asks = send("OPTIONS", "/v1/chat/completions", headers=headers)
            refused = send(
                "POST", "/v1/chat/completions", json={}, headers={"origin": "http://a.b"}
            )
        assert (asks.status_code == 200) == bool(origins)
        assert asks.headers.get("access-control-allow-origin") == seen
        assert refused.status_code == 401
        assert refused.headers.get("access-control-allow-origin") == seen
