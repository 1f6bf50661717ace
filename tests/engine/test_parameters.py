"""Fields of requests: carried out, refused by name or without effect; nothing is dropped unsaid."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from fastapi import FastAPI
from tokenizers import models, pre_tokenizers

from c2c.engine.front.failures import ApiError
from c2c.engine.front.job import Job, chat_job
from c2c.engine.front.parameters import NO_EFFECT, REFUSED
from c2c.engine.front.protocol import FIELDS, OUR_NAMES, ChatRequest, CompletionRequest
from c2c.engine.front.served_model import Served, served_models
from c2c.engine.messages import ModelInfo
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer
from tests.engine.checkpoints import make_catalog
from tests.engine.fake_front import begun, front_of

DOCS = Path(__file__).parents[2] / "docs"
CHAT = {"model": "any", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "any", "prompt": [1]}

# Of OpenAI's reference of both endpoints and of vLLM's protocol, as of November 2025.
SCHEMA = """
add_generation_prompt add_special_tokens allowed_token_ids audio bad_words best_of cache_salt
chat_template chat_template_kwargs continue_final_message detokenize documents echo
frequency_penalty function_call functions guided_choice guided_decoding_backend guided_grammar
guided_json guided_regex guided_whitespace_pattern ignore_eos include_reasoning
include_stop_str_in_output kv_transfer_params length_penalty logit_bias logits_processors logprobs
max_completion_tokens max_tokens media_io_kwargs messages metadata min_p min_tokens
mm_processor_kwargs modalities model n parallel_tool_calls prediction presence_penalty priority
prompt prompt_cache_key prompt_cache_retention prompt_embeds prompt_logprobs reasoning_effort
repetition_penalty request_id response_format return_token_ids return_tokens_as_token_ids
safety_identifier seed service_tier skip_special_tokens spaces_between_special_tokens stop
stop_token_ids store stream stream_options structural_tag structured_outputs suffix temperature
tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens use_beam_search user verbosity
vllm_xargs web_search_options
""".split()  # noqa: SIM905 (so it is read)


def post(path: str, body: Any) -> httpx.Response:
    """Ask a front that serves nothing: what is not refused before is 404."""
    with begun(_app()) as send:
        return send("POST", f"/v1/{path}", json=body)


@functools.cache
def _app() -> FastAPI:
    return front_of()


def test_every_field_of_the_schemas_has_its_lot() -> None:
    carried = {*ChatRequest.model_fields, *CompletionRequest.model_fields, *OUR_NAMES}
    assert set(SCHEMA) <= carried | REFUSED.keys() | NO_EFFECT
    assert not carried & NO_EFFECT
    assert not carried & REFUSED.keys()
    assert not NO_EFFECT & REFUSED.keys()
    for kind, model in (("chat", ChatRequest), ("text", CompletionRequest)):
        effects = FIELDS["both"] | FIELDS[kind]
        schema = model.model_json_schema()["properties"]
        assert effects == {name: field["description"] for name, field in schema.items()}


def test_the_documentation_has_every_field() -> None:
    text = (DOCS / "engine" / "api.md").read_text()
    of: dict[tuple[str, str], list[str]] = {}
    for kind in ("text", "chat"):
        for pair in (FIELDS["both"] | FIELDS[kind]).items():
            of.setdefault(pair, []).append(kind)
    rows = {(name, effect, ", ".join(kinds)) for (name, effect), kinds in of.items()}
    rows |= {(name, f"as `{ours}`", "text, chat") for name, ours in OUR_NAMES.items()}
    part = dict(re.findall(r"^### (.*)\n\n((?:.+\n|\n(?!#))*)", text, re.MULTILINE))
    of_kinds = {"text, chat": "Of both", "text": "Of completions", "chat": "Of chats"}
    for name, effect, kinds in rows:
        assert f"| `{name}` | {effect} |\n" in part[of_kinds[kinds]]
    refused, no_effect = re.findall(r"^`.*`.*$", part["Refused or without effect"], re.MULTILINE)
    for name, fine in REFUSED.items():
        values = f" ({' or '.join(f'`{v!r}`' for v in fine)})" if fine else ""
        instead = f": `{FIELDS['instead'][name]}`" if name in FIELDS["instead"] else ""
        assert f"`{name}`{values}{instead}" in refused.split(", ")
    assert sorted(NO_EFFECT) == [name.strip("`") for name in no_effect.split(", ")]


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
def test_what_is_not_built_is_refused_by_name(path: str, body: dict[str, Any], name: str) -> None:
    answer = post(path, {**body, name: [["thing"]]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["type"] == "invalid_request_error"
    assert name in error["message"]
    assert "thing" in error["message"]
    allowed = " or ".join(["none", *map(ascii, REFUSED[name])])
    assert f"expected {allowed}" in error["message"]
    for fine in (None, *REFUSED[name]):
        assert post(path, {**body, name: fine}).status_code == 404


# Values that a field may not have alone; then fields that are wrong beside others.
BAD: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("required", {"type": "function", "function": {"name": "add"}}),
    "response_format": ({"type": "yaml"},), "guided_of_tomorrow": (1,),
    "modalities": (["text", "audio"],), "parallel_tool_calls": ("some",), "prompt_logprobs": (0,),
    "tools": ("add", [{"type": "retrieval"}], [{"type": "function", "function": {}}]),
    "documents": ("text",), "chat_template_kwargs": ([1],), "continue_final_message": ("perhaps",),
    "top_logprobs": (2,), "logprobs": (5,), "max_tokens": (0,), "max_completion_tokens": (0,),
    "best_of": (2,), "presence_penalty": (2.1, "much"), "frequency_penalty": (-2.1,),
    "min_p": (-0.1, 1.1), "stop_token_ids": ([-1], ["1"], 5),
    "logit_bias": (
        [1], {"1": 101}, {"1": "2"}, {"1": True}, {"1": None}, {"one": 1}, {"-1": 1}, {"01": 1},
        {str(k): 1 for k in range(1025)},
    ),
    "include_stop_str_in_output": ("maybe",), "seed": (2**63, -(2**63) - 1, 1.5), "echo": (True,),
    "prompt": ("Hi",),
    "messages": (
        [], [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ),
}  # fmt: skip
BESIDE: list[tuple[str, dict[str, Any]]] = [
    ("add_generation_prompt", {"continue_final_message": True, "add_generation_prompt": True}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("max_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
    ("stream_options", {"stream": True, "stream_options": {"every": 1}}),
    ("stream_options", {"stream": True, "stream_options": {"continuous_usage_stats": "any"}}),
]
BAD_TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("best_of", {"best_of": 2}), ("best_of", {"best_of": 1, "n": 2}),
    ("max_tokens", {"max_tokens": 0}), ("max_tokens", {"max_tokens": -1, "echo": True}),
    ("echo", {"echo": "maybe"}), ("suffix", {"suffix": "end"}),
    ("max_completion_tokens", {"max_completion_tokens": 5}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "add"}}]}),
    ("messages", CHAT), ("top_logprobs", {"top_logprobs": 1}),
    ("add_special_tokens", {"add_special_tokens": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "param", "more"),
    [
        *(("chat/completions", CHAT, name, {name: v}) for name, of in BAD.items() for v in of),
        *(("chat/completions", CHAT, *beside) for beside in BESIDE),
        *(("completions", TEXT, *bad) for bad in BAD_TEXTS),
    ],
)
def test_bad_values_are_refused_by_name(
    path: str, body: dict[str, Any], param: str, more: dict[str, Any]
) -> None:
    answer = post(path, body | more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    "body",
    [
        dict.fromkeys(NO_EFFECT, "any"),
        dict.fromkeys(SCHEMA),
        {"tools": [], "documents": [], "functions": [], "tool_choice": "auto"},
        {"echo": False, "stream_options": {"include_obfuscation": True}},
        {"nothing_that_is_known": 1},
    ],
)
def test_what_asks_for_nothing_is_taken(body: dict[str, Any]) -> None:
    assert post("chat/completions", body | CHAT).status_code == 404
    assert post("completions", body | TEXT).status_code == 404


TEMPLATE = (
    "{# <tool_call> #}{% if tools %}[{{ tools | tojson }}]{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content + '' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thoughts{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"default": None}}}


def served(template: str = TEMPLATE, for_tools: str | None = None) -> Served:
    """A model whose tokens are characters."""
    vocab = {chr(code): code for code in range(128)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    tokenizer = Tokenizer(
        backend=backend,
        chat_template=ChatTemplate(source=template),
        tool_template=None if for_tools is None else ChatTemplate(source=for_tools),
    )
    info = ModelInfo(name="any", path="", context=4096, vocab=128)
    return Served(info=info, tokenizer=tokenizer, eos=frozenset(), longest=None)


def job(model: Served, **body: Any) -> Job:
    return chat_job(model, ChatRequest.model_validate(CHAT | body))


def rendered(*, template: str = TEMPLATE, **body: Any) -> str:
    return "".join(map(chr, job(served(template), **body).prompts[0]))


def refused(**body: Any) -> str | None:
    with pytest.raises(ApiError) as found:
        rendered(**body)
    assert found.value.status_code == 400
    return found.value.param


def test_what_is_for_the_template_gets_there() -> None:
    assert rendered() == "<user>Hi;<assistant>"
    assert rendered(add_generation_prompt=False) == "<user>Hi;"
    assert rendered(chat_template_kwargs={"enable_thinking": False}).endswith("no thoughts")
    assert json.loads(rendered(tools=[TOOL]).partition("<")[0][1:-1]) == [TOOL]
    assert rendered(tools=[TOOL], tool_choice="none") == rendered()
    assert refused(documents=[{"text": "x"}]) == "documents"
    assert rendered(reasoning_effort="low") == rendered()
    assert refused(template="{{ messages[0].content }}", tools=[TOOL]) == "tools"
    takes = "{{ documents[0].text }}{{ reasoning_effort }}{{ messages[0].content }}"
    more = {"documents": [{"text": "x"}], "reasoning_effort": "low"}
    assert rendered(template=takes, **more) == "xlowHi"
    for name in ("messages", "tools", "self", "strftime_now", "add_generation_prompt"):
        assert refused(chat_template_kwargs={name: 1}) == "chat_template_kwargs"
    given = {"chat_template_kwargs": {"enable_thinking": True, "other": 1}}
    chat = job(served(), **given, reasoning_effort="low").chat
    assert chat is not None
    assert chat.unused == ["chat_template_kwargs.other", "reasoning_effort"]


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_tools_of_an_unknown_form_are_refused() -> None:
    writes = "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
    assert refused(template=writes, tools=[TOOL]) == "tools"
    assert rendered(template="{{ tools | length }}" + PLAIN, tools=[TOOL]) == "1Hi"
    body = {"tools": [TOOL], "tool_choice": "required"}
    assert refused(template="{{ tools }}" + PLAIN, **body) == "tools"


def test_a_thought_is_switched_where_the_template_can() -> None:
    thinks = PLAIN + "<think></think>"
    assert rendered(enable_thinking=False).endswith("no thoughts")
    assert rendered(thinking={"type": "disabled"}).endswith("no thoughts")
    assert rendered(template="{% if thinking %}so{% endif %}" + PLAIN, thinking=True) == "soHi"
    assert rendered(template=PLAIN, enable_thinking=False) == "Hi"
    assert rendered(template=thinks, enable_thinking=True).startswith("Hi")
    assert refused(template=thinks, enable_thinking=False) == "thinking"
    assert refused(template=PLAIN, thinking={"type": "enabled"}) == "thinking"
    kwargs = {"enable_thinking": False}
    assert rendered(enable_thinking=False, chat_template_kwargs=kwargs).endswith("no thoughts")
    assert refused(enable_thinking=True, chat_template_kwargs=kwargs) == "thinking"


NOW = {"type": "function", "function": {"name": "now"}}


def test_only_allowed_tools_are_seen_and_forced() -> None:
    names = [{"type": "function", "function": {"name": "now"}}]
    body = {"tools": [TOOL, NOW], "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names},
    }}  # fmt: skip
    assert json.loads(rendered(**body).partition("<")[0][1:-1]) == [NOW]
    asked = ChatRequest.model_validate(CHAT | body)
    assert (asked.is_forced, [tool["name"] for tool in asked.callable_tools]) == (False, ["now"])
    body["tool_choice"]["allowed_tools"]["mode"] = "required"
    asked = ChatRequest.model_validate(CHAT | body)
    assert asked.is_forced
    assert asked.may_have_several
    grammar, _ = job(served(), **body).grammar()
    assert "now" in grammar
    assert "add" not in grammar


@pytest.mark.parametrize(
    ("field", "value", "ours"),
    [
        ("max_new_tokens", 7, {"max_tokens": 7}), ("n_predict", -1, {"max_tokens": None}),
        ("num_predict", 7, {"max_tokens": 7}), ("num_return_sequences", 2, {"n": 2}),
        ("random_seed", 7, {"seed": 7}), ("repeat_penalty", 1.5, {"repetition_penalty": 1.5}),
        ("stop_sequences", ["a"] * 5, {"stop": ["a"] * 5}), ("regex", "a+", {"guided_regex": "a+"}),
        ("json_schema", {"const": 1}, {"guided_json": {"const": 1}}),
        ("grammar", "x", {"guided_grammar": "x"}), ("ebnf", "x", {"guided_grammar": "x"}),
    ],
)  # fmt: skip
def test_fields_of_other_apis_are_carried_out(field: str, value: Any, ours: dict[str, Any]) -> None:
    for model, body in ((ChatRequest, CHAT), (CompletionRequest, TEXT)):
        asked = model.model_validate(body | {field: value})
        assert {name: getattr(asked, name) for name in ours} == ours
        other = {name: [value] for name in ours}
        if value != -1:
            assert post("completions", TEXT | {field: value} | other).status_code == 400


def test_forms_and_a_top_p_of_other_apis_are_carried_out() -> None:
    form = ChatRequest.model_validate(CHAT | {"format": "json"}).response_format
    assert form is not None
    assert form.type == "json_object"
    form = ChatRequest.model_validate(CHAT | {"format": {"const": 1}}).response_format
    assert form is not None
    assert form.json_schema is not None
    assert form.json_schema.schema_ == {"const": 1}
    for top_p in (0, 1e-40):
        drawn = ChatRequest.model_validate(CHAT | {"top_p": top_p}).sampling(0)["top_p"]
        assert 0 < drawn < 1e-8


KNOWS = TEMPLATE + "{# system or developer #}"
LAST = "{% if messages[-1].role == 'user' %}{{ messages[-1].content }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "messages", "seen"),
    [
        (TEMPLATE, ["developer: brief", "user: Hi"], "<system>brief;<user>Hi;<assistant>"),
        (KNOWS, ["developer: brief", "user: Hi"], "<developer>brief;<user>Hi;<assistant>"),
        (TEMPLATE, ["system: a", "developer: b", "system: ", "user: Hi"],
         "<system>a\n\nb;<user>Hi;<assistant>"),
        (KNOWS, ["developer: b", "system: a"], "<developer>b\n\na;<assistant>"),
        (TEMPLATE, ["user: Hi", "system: now", "developer: b"],
         "<user>Hi;<system>now;<system>b;<assistant>"),
        (LAST, ["user: Hi"], "Hi"),
        (LAST, ["system: ", "user: Hi"], "Hi"),
        (LAST, ["system: a", "user: Hi"], None),
        (LAST, ["developer: a", "user: Hi"], None),
        (LAST, ["user: 1", "system: no", "user: Hi"], None),
    ],
)  # fmt: skip
def test_no_instruction_is_dropped(template: str, messages: list[str], seen: str | None) -> None:
    parts = [message.partition(": ") for message in messages]
    given = [{"role": role, "content": content} for role, _, content in parts]
    if seen is None:
        assert refused(template=template, messages=given) == "messages"
    else:
        assert rendered(template=template, messages=given) == seen


def test_a_chat_with_tools_has_the_template_for_tools() -> None:
    model = served(
        "{{ messages[0].content }}",
        "{# <tool_call> #}{{ tools | length }}{{ messages[0].content }}",
    )

    def seen(**body: Any) -> str:
        return "".join(map(chr, job(model, **body).prompts[0]))

    assert seen() == seen(tools=[TOOL], tool_choice="none") == "Hi"
    assert seen(tools=[TOOL]) == "1Hi"


@pytest.mark.parametrize("refuses", [True, False])
def test_a_template_of_one_call_has_no_second_one_forced(refuses: bool) -> None:
    raises = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    source = (
        '{% if tools %}{% endif %}{# {"name": , "parameters": } #}{% for m in messages %}'
        + raises * refuses
        + "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
        "{% endfor %}"
    )
    body = {"tools": [TOOL], "tool_choice": "required"}
    grammar, field = job(served(source), **body).grammar()
    assert field == "tools"
    assert (")*" in grammar) == (not refuses)


def called(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "add", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": 2, "b": null}', '{"a": 2, "b": null}'),
        ({"a": 2}, '{"a": 2}'),
        ("{}", "{}"),
        ("", "{}"),
        (" ", "{}"),
        (None, "{}"),
        ("{a: 2", '"{a: 2"'),
        ("[1]", '"[1]"'),
        ("[" * 9, '"[[[[[[[[["'),
    ],
)
def test_arguments_of_calls_are_objects_for_the_template(arguments: Any, seen: str) -> None:
    assert rendered(messages=called(arguments)) == f"<assistant>{seen};<assistant>"


def test_a_template_may_take_arguments_as_text() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert rendered(template=source, messages=called('{"a": "é"}')) == 'add{"a": "?"}'
    assert rendered(template=source, messages=called("")) == "add{}"
    null = "{% for m in messages %}{% if m.content is none %}" + source + "{% endif %}{% endfor %}"
    assert "add" in rendered(template=null, messages=called("{}"))  # and no content, as DeepSeek's
    assert refused(template="{{ raise_exception('no') }}", messages=called("{}")) == "messages"


def test_a_call_without_arguments_has_none() -> None:
    messages = called(None)
    del messages[0]["tool_calls"][0]["function"]["arguments"]
    assert rendered(messages=messages) == "<assistant>{};<assistant>"
    source = "{% if messages[0].function_call is defined %}call{% endif %}"
    for empty in ({"function_call": {}}, {"tool_calls": []}, {"function_call": None}):
        message = {"role": "assistant", "content": "so", **empty}
        assert rendered(template=TEMPLATE + source, messages=[message]).endswith("<assistant>")


@pytest.mark.parametrize("calls", [None, [], "add", 5, [1], [{"function": 7}], [{}]])
def test_odd_calls_are_no_error_of_ours(calls: Any) -> None:
    message = {"role": "assistant", "tool_calls": calls}
    if isinstance(calls, int) or calls in ("add", [1], [{"function": 7}], [{}]):
        assert refused(messages=[message]) == "messages"
    else:
        assert rendered(messages=[message]) == "<assistant>;<assistant>"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_null_and_missing_contents_are_empty_texts(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}, {"role": role, "content": []}):
        assert rendered(messages=[message]) == f"<{role}>;<assistant>"


@pytest.mark.parametrize("text", ["so", "s", ";", " so far ", "<assistant>"])
def test_an_answer_goes_on_with_the_last_message(text: str) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": text}]
    found = rendered(messages=messages, continue_final_message=True)
    assert found == f"<user>Hi;<assistant>{text}"
    assert refused(
        template="{{ messages[0].content }}", messages=messages, continue_final_message=True
    ) == "messages"  # fmt: skip


def test_a_checkpoint_may_say_how_tokens_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_catalog(tmp_path) / "one"
    file = path / "generation_config.json"
    info = ModelInfo(name="one", path=str(path), context=64, vocab=96)

    def drawn(config: dict[str, Any], **body: Any) -> dict[str, Any]:
        file.write_text(json.dumps(config))
        served = served_models([info], has_own_sampling=True)["one"]
        asked = CompletionRequest.model_validate(TEXT | {"seed": 1} | body)
        return served.with_defaults(asked).sampling(0)

    neutral = CompletionRequest.model_validate(TEXT | {"seed": 1}).sampling(0)
    qwen = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05}
    assert drawn({}) == neutral
    assert drawn(qwen | {"do_sample": True, "eos_token_id": 7}) == neutral | qwen
    assert drawn(qwen, top_k=5, temperature=1.0) == neutral | qwen | {"top_k": 5, "temperature": 1}
    assert drawn(qwen, top_k=None)["top_k"] == 20
    assert drawn({"do_sample": False, "temperature": 0.6}) == neutral | {"temperature": 0}
    assert drawn({"top_p": 7, "min_p": 0.1}) == neutral | {"min_p": 0.1}
    assert "top_p=7 is no valid sampling setting" in caplog.text
    assert served_models([info])["one"].sampling == {}


def test_a_model_that_cannot_be_served_leaves_those_after_it(tmp_path: Path) -> None:
    path = str(make_catalog(tmp_path) / "one")
    infos = [
        ModelInfo(name=name, path=path, context=64, vocab=96, failed=failed)
        for name, failed in (("lost", "its weights are cut off"), ("one", ""))
    ]
    assert [*served_models(infos)] == ["one"]
