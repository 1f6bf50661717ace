"""Clients that people bring, against a live engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.transformer import load
from tests.engine.live import Live, make_step, served
from tests.engine.talking import make_talking

# Scripts in environments of their own, which `make clients` makes (2.3 GB with AIPerf's). GuideLLM
# wants torch (6.6 GB together), so it is run only where somebody has put it there.
pytestmark = pytest.mark.soak

ENVIRONMENT, AIPERF = (Path(__file__).parents[2] / f".venv-{n}" for n in ("clients", "aiperf"))
LIMIT_S = 300.0
OPENAI = r"""
import json, sys
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
ask = {"model": "talking", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}

class Tree(BaseModel):
    tall: bool
    years: int

parsed = client.chat.completions.parse(**ask, response_format=Tree, max_tokens=99)
tool = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
    "additionalProperties": False}}}
with client.chat.completions.stream(
    **ask, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=99
) as stream:
    last = stream.get_final_completion()
try:
    client.chat.completions.create(**ask, response_format={"type": "json_schema", "json_schema":
        {"name": "x", "schema": {"type": "tree"}}})
    refused = ""
except BadRequestError as error:
    refused = error.param
raw = client.completions.with_raw_response.create(
    model="talking", prompt="T", max_tokens=3, extra_body={"guided_regex": "a{3}"},
    extra_headers={"X-Request-Id": "mine"})
print(json.dumps({
    "tree": parsed.choices[0].message.parsed.model_dump(),
    "call": last.choices[0].message.tool_calls[0].function.parsed_arguments,
    "why": last.choices[0].finish_reason,
    "refused": refused,
    "regex": raw.parse().choices[0].text, "id": raw.headers["x-request-id"],
    "cached": parsed.usage.prompt_tokens_details.cached_tokens,
    "models": sorted(model.id for model in client.models.list()),
}))
"""
RESPONSES = r"""
import json, sys
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
ask = {"model": "talking", "input": "Hi", "temperature": 0, "max_output_tokens": 99}
tool = {"type": "function", "name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
    "additionalProperties": False}}
with client.responses.stream(**ask, tools=[tool], tool_choice="required",
                             parallel_tool_calls=False) as stream:
    call = list(stream)[-1].response.output[0]
again = [{"role": "user", "content": "Hi"}, call.model_dump(exclude={"parsed_arguments"}),
         {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
text = client.responses.create(**{**ask, "input": again, "max_output_tokens": 5})
print(json.dumps({"call": json.loads(call.arguments), "name": call.name, "status": text.status,
                  "why": text.incomplete_details.reason, "text": bool(text.output_text)}))
"""
ANTHROPIC = r"""
import json, sys
from anthropic import Anthropic, BadRequestError

client = Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
ask = {"model": "talking", "max_tokens": 99, "extra_body": {"temperature": 0}}
hi = {"role": "user", "content": "Hi"}
tools = [{"name": "add", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
    "additionalProperties": False}}]
choice = {"type": "any", "disable_parallel_tool_use": True}
with client.messages.stream(**ask, messages=[hi], tools=tools, tool_choice=choice) as stream:
    called = stream.get_final_message()
call = called.content[0]
result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
used = call.model_dump(include={"type", "id", "name", "input"})
again = [hi, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
text = client.messages.create(**{**ask, "max_tokens": 5}, messages=again, tools=tools)
image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
try:
    client.messages.create(**ask, messages=[{"role": "user", "content": [image]}])
    refused = ""
except BadRequestError as error:
    refused = error.body["error"]["param"]
counted = client.messages.count_tokens(model="talking", messages=[hi])
print(json.dumps({"call": call.input, "name": call.name, "why": called.stop_reason,
                  "end": text.stop_reason, "kinds": [block.type for block in text.content],
                  "tokens": counted.input_tokens, "refused": refused}))
"""
LITELLM = r"""
import json, sys
import litellm

ask = {"model": "openai/talking", "api_base": sys.argv[1] + "/v1", "api_key": "none",
       "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99, "temperature": 0}
schema = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"enum": ["oak"]}}}
whole = litellm.completion(**ask, response_format=schema)
parts = list(litellm.completion(**ask, response_format=schema, stream=True))
tool = {"type": "function", "function": {"name": "now", "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}}
call = litellm.completion(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False)
print(json.dumps({
    "whole": whole.choices[0].message.content,
    "parts": "".join(p.choices[0].delta.content or "" for p in parts),
    "call": call.choices[0].message.tool_calls[0].function.model_dump(),
}))
"""
LANGCHAIN = r'''
import json, sys
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

class Tree(BaseModel):
    tall: bool

@tool
def add(a: bool, b: bool) -> str:
    """Adds."""
    return str(a + b)

model = ChatOpenAI(model="talking", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0,
                   max_tokens=200, use_responses_api=False)
tree = model.with_structured_output(Tree, method="json_schema").invoke("Hi")
forced = model.bind_tools([add], tool_choice="add")
called = forced.invoke("Hi")
streamed = None
for chunk in forced.stream("Hi"):
    streamed = chunk if streamed is None else streamed + chunk
call = called.tool_calls[0]
answer = model.bind_tools([add], tool_choice="none").invoke(
    [HumanMessage("Hi"), called, ToolMessage(add.invoke(call["args"]), tool_call_id=call["id"])],
    max_tokens=5)
print(json.dumps({"tree": tree.model_dump(), "name": call["name"], "args": call["args"],
                  "streamed": streamed.tool_calls[0]["args"], "text": bool(answer.content)}))
'''
LM_EVAL = r"""
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

model = LocalCompletionsAPI(
    base_url=sys.argv[1] + "/v1/completions", model="talking", tokenizer=sys.argv[2] + "/talking",
    tokenizer_backend="huggingface", max_length=1024, num_concurrent=2)

def asked(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)

likely = model.loglikelihood([
    asked("loglikelihood", "The tree", text) for text in (" is", " was tall")])
texts = model.generate_until([asked("generate_until", "The tree",
    {"until": ["\u0000never"], "max_gen_toks": 7, "temperature": 0})])
print(json.dumps({"likely": likely, "texts": texts}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients")
    make_talking(folder / "models")
    return folder


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    settings = ("rows=[1,4]", "budgets=[64]", "context=1024", "pool_bytes=32000000")
    make_step()
    with served(f"catalog={folder / 'models'}", *settings, log=folder / "log") as live:
        yield live


def ran(
    package: str, version: str, *arguments: object, where: Path = ENVIRONMENT, hub: str = "1"
) -> subprocess.CompletedProcess[str]:
    """Run a program of the clients' environment; skip where the client is not there."""
    packages = [path.name for path in where.glob("lib/python3.*/site-packages/*.dist-info")]
    if not any(name.startswith(f"{package}-") for name in packages):
        pytest.skip(f"no {package} in {where.name}: make clients")
    assert f"{package}-{version}.dist-info" in packages, "the locked version"
    offline = {"HF_HUB_OFFLINE": hub, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    program, *rest = map(str, arguments)
    result = subprocess.run(
        [where / "bin" / program, *rest],
        env=dict(os.environ) | offline, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result


def told(package: str, version: str, script: str, live: Live, *more: object) -> Any:
    """Return what a client's script printed last."""
    url = str(live.client.base_url)
    found = ran(package, version, "python", "-W", "ignore", "-c", script, url, *more)
    return json.loads(found.stdout.strip().splitlines()[-1])


def test_openais_client(live: Live) -> None:
    found = told("openai", "3.57.0", OPENAI, live)
    assert isinstance(found["tree"]["tall"], bool)
    assert isinstance(found["tree"]["years"], int)
    assert isinstance(found["call"]["a"], int)
    assert (found["why"], found["refused"]) == ("tool_calls", "response_format")
    assert (found["regex"], found["id"], found["cached"]) == ("aaa", "mine", 0)
    assert found["models"] == ["bare", "talking"]


def test_openais_client_of_responses(live: Live) -> None:
    found = told("openai", "3.57.0", RESPONSES, live)
    assert isinstance(found["call"]["a"], int)
    assert (found["name"], found["status"]) == ("add", "incomplete")
    assert (found["why"], found["text"]) == ("max_output_tokens", True)


def test_anthropics_client(live: Live) -> None:
    found = told("anthropic", "2.14.0", ANTHROPIC, live)
    assert isinstance(found["call"]["a"], int)
    assert (found["name"], found["why"], found["end"]) == ("add", "tool_use", "max_tokens")
    assert (found["kinds"], found["refused"]) == (["text"], "messages")
    assert found["tokens"] > 1


def test_litellm(live: Live) -> None:
    found = told("litellm", "1.110.2", LITELLM, live)
    assert found["whole"] == found["parts"] == '"oak"'
    assert found["call"] == {"name": "now", "arguments": "{}"}


def test_langchain(live: Live) -> None:
    found = told("langchain_openai", "1.7.4", LANGCHAIN, live)
    assert isinstance(found["tree"]["tall"], bool)
    assert found["name"] == "add"
    assert set(found["args"]) == {"a", "b"}
    assert found["streamed"] == found["args"]
    assert found["text"]


def test_lm_eval(live: Live, folder: Path) -> None:
    found = told("lm_eval", "0.4.13", LM_EVAL, live, folder / "models")
    model = load(folder / "models" / "talking", executables=None)
    assert model.tokenizer is not None
    context = model.tokenizer.encode("The tree")
    for text, (likely, is_greedy) in zip((" is", " was tall"), found["likely"], strict=True):
        ids = [*context, *model.tokenizer.encode(text)]
        logits = model.logits(ids)[:-1]
        scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        own = [row[token] for row, token in zip(scores, ids[1:], strict=True)]
        np.testing.assert_allclose(likely, sum(own[len(context) - 1 :]), atol=1e-3)
        greedy = bool(np.all(scores.argmax(-1)[len(context) - 1 :] == ids[len(context) :]))
        assert is_greedy == greedy
    asked = {"model": "talking", "prompt": "The tree", "max_tokens": 7, "temperature": 0}
    assert found["texts"] == [live.post("completions", **asked).json()["choices"][0]["text"]]


def test_guidellm(live: Live, folder: Path, tmp_path: Path) -> None:
    url, out = str(live.client.base_url), tmp_path / "report.json"
    ran(
        "guidellm", "0.8.1", "guidellm", "run",
        "--backend", f"kind=openai_http,target={url},model=talking",
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
        "--tokenizer", f"kind=huggingface_auto,model={folder / 'models' / 'talking'}",
        "--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "--output", f"kind=json,path={out}", "--disable-console",
    )  # fmt: skip
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_aiperf(live: Live, folder: Path, tmp_path: Path, endpoint: str) -> None:
    ran(
        "aiperf", "0.13.0", "aiperf", "profile", "--model-names", "talking",
        "--url", live.client.base_url, "--endpoint-type", endpoint, "--streaming",
        "--tokenizer", folder / "models" / "talking", "--request-count", 6, "--concurrency", 2,
        "--synthetic-input-tokens-mean", 20, "--output-tokens-mean", 8,
        "--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", tmp_path,
        where=AIPERF, hub="",  # without a hub it takes no folder for a tokenizer
    )  # fmt: skip
    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert (found["request_count"]["avg"], found["error_summary"]) == (6, [])
    assert found["time_to_first_token"]["min"] > 0
