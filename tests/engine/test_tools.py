"""Calls of tools in an answer: the usual formats, whole and in pieces; and their grammars."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.engine.constraint import Grammars
from c2c.engine.front.failures import ApiError
from c2c.engine.front.tools import FORMS, Calls, Form, forced, form_of
from c2c.transformer.text.tokenizer import Tokenizer
from tests.engine.talking import HERMES, byte_tokenizer

BY_NAME = {form.name: form for form in FORMS}
# As the templates of these checkpoints have it, shortened.
TEMPLATES = {
    "hermes": (
        HERMES,
        '{{- "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <name>, '
        '\\"arguments\\": <args-json-object>}\\n</tool_call>" }}',  # Qwen 2.5 and 3
    ),
    "llama": (
        '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument '
        "name and its value}.' }}{{- '{\"name\": \"' + tool_call.name + '\", ' }}"
        "{{- '\"parameters\": ' }}",  # Llama 3.1 and 3.2
    ),
    "mistral": ("{{- '[TOOL_CALLS] [' }}{{- '[TOOL_RESULTS] ' }}",),  # Mistral 7B v0.3, Nemo
    "mistral_args": ("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",),  # Small 3.2
}
UNKNOWN = (
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "<tool_call>\n<function=example>\n<parameter=a>\n</parameter>",  # Qwen3-Coder
)
ADD = '{"a": 2, "b": [1, "}</tool_call>"]}'
FLAT = '{"a": 2, "b": "é"}'
ANSWERS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Four.", "Four.", []),
    ("hermes", f'<tool_call>\n{{"name": "add", "arguments": {ADD}}}\n</tool_call>', "",
     [("add", ADD)]),
    ("hermes", f'So: <tool_call>{{"name": "add", "arguments": {FLAT}}}</tool_call>\n<tool_call>\n'
     '{"arguments": {}, "name": "sub"}\n</tool_call> done', "So: done",
     [("add", FLAT), ("sub", "{}")]),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "",
     [("add", '{"a": 1}')]),
    ("hermes", "a <tool_call>nonsense</tool_call> b", "a <tool_call>nonsense</tool_call> b", []),
    ("hermes", "1 <tool", "1 <tool", []),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": ', "", [("add", '{"a": ')]),
    ("llama", f'{{"name": "add", "parameters": {ADD}}}', "", [("add", ADD)]),
    ("llama", f'<|python_tag|>{{"type": "function", "name": "add", "parameters": {FLAT}}}; '
     '{"name": "sub", "parameters": {}}', "", [("add", FLAT), ("sub", "{}")]),
    ("llama", '{"name": "Ann", "parameters": {"a": 1}}', '{"name": "Ann", "parameters": {"a": 1}}',
     []),
    ("llama", '{"answer": 4}', '{"answer": 4}', []),
    ("llama", "<|python_tag|>print(4)", "<|python_tag|>print(4)", []),
    ("llama", "It is 4.", "It is 4.", []),
    ("mistral", f'[TOOL_CALLS] [{{"name": "add", "arguments": {ADD}, "id": "abcdefghi"}}, '
     f'{{"name": "sub", "arguments": {FLAT}}}]', "", [("add", ADD), ("sub", FLAT)]),
    ("mistral", f"[TOOL_CALLS]add{FLAT}", "", [("add", FLAT)]),
    ("mistral_args", f"Well. [TOOL_CALLS]add[ARGS]{ADD}[TOOL_CALLS]sub[CALL_ID]abcdefghi[ARGS]{{}}",
     "Well. ", [("add", ADD), ("sub", "{}")]),
    ("mistral_args", "[TOOL", "[TOOL", []),
]  # fmt: skip


def in_pieces(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Read an answer; what its stream tells is what the whole answer has."""
    calls = Calls(BY_NAME[name], {"add", "sub"})
    content = ""
    told: dict[int, dict[str, str]] = {}
    for k, piece in enumerate([*pieces, ""]):
        text, deltas = calls.push(piece, is_over=k == len(pieces))
        content += text
        for delta in deltas:
            shown = delta.shown()
            if "id" in shown:
                assert shown["index"] == len(told)
                assert (shown["type"], "mistral" in name) == ("function", len(shown["id"]) == 9)
                told[shown["index"]] = {"id": shown["id"], **shown["function"]}
            else:
                told[shown["index"]]["arguments"] += shown["function"]["arguments"]
    whole = [{"id": c["id"], **c["function"]} for c in calls.shown()]
    assert list(told.values()) == whole
    return content, [(call["name"], call["arguments"]) for call in whole]


@pytest.mark.parametrize("template", [(n, t) for n, all_ in TEMPLATES.items() for t in all_])
def test_the_format_is_that_of_the_template(template: tuple[str, str]) -> None:
    form = form_of(template[1])
    assert form is not None
    assert form.name == template[0]


@pytest.mark.parametrize("template", UNKNOWN)
def test_an_unknown_format_is_none(template: str) -> None:
    assert form_of(template) is None


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 200), max_size=12))
def test_calls_are_told_however_the_text_comes(
    case: tuple[str, str, str, list[tuple[str, str]]], cuts: list[int]
) -> None:
    name, text, content, calls = case
    at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(at)]
    assert in_pieces(name, pieces) == in_pieces(name, list(text)) == (content, calls)


PARTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "{", "}", "[", "]",
    '"', '"name"', ": ", '"add"', ", ", '"arguments": ', "x", " ",
    '{"name": "add", "arguments": {}}',
]  # fmt: skip


@given(st.sampled_from(sorted(BY_NAME)), st.lists(st.sampled_from(PARTS), max_size=14))
def test_no_text_is_an_error_and_pieces_make_no_difference(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    assert in_pieces(name, parts) == in_pieces(name, [text])


TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"number": {"type": "integer"}},
        },
    },
    {"name": "now"},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("is_special", [False, True])
def test_a_forced_call_is_read_as_one(form: Form, is_special: bool) -> None:
    marks = [(mark, is_special) for mark in form.marks if mark]
    tokenizer = Tokenizer(backend=byte_tokenizer(*marks))
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    own = '{"a": 2, "b": -7}'
    body = f'{{"name": "add", "{form.key}": {own}}}'
    other = f'{{"name": "now", "{form.key}": {{}}}}'
    one = {
        "hermes": f"<tool_call>\n{body}\n</tool_call>",
        "llama": body,
        "mistral": f"[TOOL_CALLS][{body}]",
        "mistral_args": f"[TOOL_CALLS]add[ARGS]{own}",
    }[form.name]
    two = {
        "hermes": f"{one}\n<tool_call>\n{other}\n</tool_call>",
        "llama": f"{one}; {other}",
        "mistral": f"[TOOL_CALLS][{body}, {other}]",
        "mistral_args": f"{one}[TOOL_CALLS]now[ARGS]{{}}",
    }[form.name]

    def follows(text: str, grammar: str) -> bool:
        constraint = grammars.begin(grammar, ())
        for token in tokenizer.encode(text, add_special_tokens=False):
            if not constraint.mask(())[token // 32] >> token % 32 & 1:
                return False
            constraint.take(token)
        return bool(constraint.mask({0})[0] & 1)

    several = forced(TOOLS, form, tokenizer, several=True)
    single = forced(TOOLS, form, tokenizer, several=False)
    assert follows(one, single)
    assert follows(one, several)
    assert follows(two, several)
    assert not follows(two, single)
    assert not follows("Four.", several)
    assert not follows(one.replace("add", "sub"), several)
    assert not follows(one.replace("2", '"2"'), several)
    assert in_pieces_of(form, two) == [("add", json.loads(own)), ("now", {})]


def in_pieces_of(form: Form, text: str) -> list[tuple[str, Any]]:
    calls = Calls(form, {"add", "now"})
    assert calls.push(text, is_over=True)[0] == ""
    return [(call.name, json.loads(call.arguments)) for call in calls.found]


def test_parameters_that_are_no_schema_are_refused() -> None:
    tokenizer = Tokenizer(backend=byte_tokenizer())
    tools = [{"name": "add", "parameters": {"type": "sum"}}]
    with pytest.raises(ApiError, match="sum") as found:
        forced(tools, FORMS[0], tokenizer, several=True)
    assert (found.value.status_code, found.value.param) == (400, "tools")
