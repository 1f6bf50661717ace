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
from c2c.engine.front.tools import FORMS, Calls, Form, forced, forced_form, form_of, takes_several
from c2c.engine.front.trial import fault
from c2c.transformer.text.chat import ChatTemplate
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
    "qwen_coder": (  # Qwen3-Coder
        "<tool_call>\n<function=example>\n<parameter=a>\n1\n</parameter>\n</function>",
    ),
}
UNKNOWN = (
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    # GLM
    "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value></tool_call>",
    '{"tool_name": title of the tool, "parameters": a dict of values}',  # Command R
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
    ("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>'
     '<tool_call>{"arguments": "", "name": "add"}</tool_call>'
     '<tool_call>{"name": "sub"}</tool_call>', "", [("add", "{}"), ("add", "{}"), ("sub", "{}")]),
    ("hermes", f'1 <tool_call>{{"name": "add", "arguments": {FLAT}}}</tool_call> then\n<tool_call>'
     '{"name": "sub", "arguments": {}}</tool_call>\nat last', "1 then\nat last",
     [("add", FLAT), ("sub", "{}")]),
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
    ("qwen_coder", "Four <b>.", "Four <b>.", []),
    ("qwen_coder", "I add. <tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n"
     "<parameter=b>\n[1,\n 2]\n</parameter>\n<parameter=c>\nan \"é\"\n<x>\n\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=sub>\n</function>\n</tool_call> done",
     "I add. done",
     [("add", '{"a": 2, "b": [1,\n 2], "c": "an \\"é\\"\\n<x>\\n"}'), ("sub", "{}")]),
    # Without <tool_call>, without ends of values; what is no JSON of its type, and of no schema.
    ("qwen_coder", "<function=add>\n<parameter=a>\ntwo\n<parameter=d>\nNone\n</parameter>"
     "<parameter=e>1</parameter>\n</tool_call>\n", "",
     [("add", '{"a": "two", "d": null, "e": "1"}')]),
    ("qwen_coder", "<function=sub>\n<parameter=a>\n2\n</function>", "", [("sub", '{"a": "2"}')]),
    ("qwen_coder", "<tool_call>\n<function=add>\n<parameter=c>\ntext\n</para", "",
     [("add", '{"c": "text\\n</para')]),
    ("qwen_coder", "<tool_call>\n<function=add>\n<parameter=a>\n2", "", [("add", '{"a": ')]),
    ("qwen_coder", "<tool_call>\n<function=add", "<tool_call>\n<function=add", []),
    ("qwen_coder", "a <tool_call>no</tool_call> b", "a <tool_call>no</tool_call> b", []),
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "add": {
        "properties": {
            "a": {"type": "integer"},
            "b": {"$ref": "#/$defs/list"},
            "c": {"type": "string"},
            "d": {"anyOf": [{"enum": ["x", 2]}, {"type": ["null", "boolean"]}]},
        },
        "$defs": {"list": {"type": "array"}},
    },
    "sub": None,
}


def in_pieces(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Read an answer; what its stream tells is what the whole answer has."""
    calls = Calls(BY_NAME[name], SCHEMAS)
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


@pytest.mark.parametrize(("name", "text", "content", "calls"), ANSWERS)
def test_each_answer_has_its_calls(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert in_pieces(name, list(text)) == (content, calls)


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
    '{"name": "add", "arguments": {}}', "<function=add>", "</function>", "<function=", "\n",
    "<parameter=a>", "<parameter=c>", "<parameter=d>", "</parameter>", "</par", "2", "true", ">",
]  # fmt: skip


@given(st.sampled_from(sorted(BY_NAME)), st.lists(st.sampled_from(PARTS), max_size=16))
def test_no_text_is_an_error_and_pieces_make_no_difference(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    assert in_pieces(name, parts) == in_pieces(name, list(text)) == in_pieces(name, [text])


@given(st.dictionaries(st.sampled_from("abcd"), st.text(st.characters(exclude_characters="<"))))
def test_values_of_marked_calls_are_of_their_types(given: dict[str, str]) -> None:
    text = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in given.items())
    _, calls = in_pieces("qwen_coder", [f"<tool_call>\n<function=add>\n{text}</function>"])
    ((name, arguments),) = calls
    found = json.loads(arguments)
    assert (name, list(found)) == ("add", list(given))
    for key, value in found.items():
        kinds = {"a": int, "b": list, "d": (int, bool, type(None))}
        assert value == given[key] if isinstance(value, str) else isinstance(value, kinds[key])


TYPED = [
    ({"type": "number"}, "1e3", "1e3"),
    ({"type": "number"}, "NaN", '"NaN"'),
    ({"type": "integer"}, "2.0", "2.0"),
    ({"type": "integer"}, "2.5", '"2.5"'),
    ({"type": "boolean"}, "True", "true"),
    ({"type": "object"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "object"}, "[" * 99999, json.dumps("[" * 99999)),
    ({"type": ["string", "null"]}, "null", "null"),
    ({"type": ["string", "null"]}, '"x"', '"\\"x\\""'),
    ({"const": 3}, "3", "3"),
    ({"type": "string"}, "3", '"3"'),
    ({"type": 7, "enum": 7, "anyOf": {}}, "3", '"3"'),
    ({"$ref": "#/properties/p"}, "3", '"3"'),  # names itself
]


@pytest.mark.parametrize(("schema", "value", "told"), TYPED)
def test_a_value_is_what_its_schema_says(schema: Any, value: str, told: str) -> None:
    calls = Calls(BY_NAME["qwen_coder"], {"add": {"properties": {"p": schema}}})
    calls.push(f"<function=add><parameter=p>\n{value}\n</parameter></function>", is_over=True)
    assert [(c.name, c.arguments) for c in calls.found] == [("add", f'{{"p": {told}}}')]


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


FORCED = [form for form in FORMS if forced_form(form) is form]


def test_calls_of_other_formats_are_forced_in_llamas() -> None:
    assert {form.name for form in FORMS} - {form.name for form in FORCED} == {"qwen_coder"}
    assert forced_form(BY_NAME["qwen_coder"]) is forced_form(None) is BY_NAME["llama"]


@pytest.mark.parametrize("form", FORCED, ids=lambda form: form.name)
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


def test_a_grammar_lets_only_what_can_follow_come_and_one_with_faults_all() -> None:
    tokenizer = Tokenizer(backend=byte_tokenizer())
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    call = forced(TOOLS, BY_NAME["llama"], tokenizer, several=False)
    right, wrong = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ('{"n', "Four"))
    for grammar, may_come in ((call, {right}), ("{", {right, wrong})):
        mask = grammars.begin(grammar, ()).mask(())
        found = {token for token in (right, wrong) if mask[token // 32] >> token % 32 & 1}
        assert found == may_come


def in_pieces_of(form: Form, text: str) -> list[tuple[str, Any]]:
    calls = Calls(form, dict.fromkeys(["add", "now"]))
    assert calls.push(text, is_over=True)[0] == ""
    return [(call.name, json.loads(call.arguments)) for call in calls.found]


def test_parameters_that_are_no_schema_are_refused() -> None:
    tokenizer = Tokenizer(backend=byte_tokenizer())

    def grammar(schema: Any) -> str:
        tools = [{"name": "add", "parameters": schema}]
        return forced(tools, BY_NAME["llama"], tokenizer, several=True)

    assert "sum" in fault(grammar({"type": "sum"}))
    for schema in ({"maxItems": 10**5}, {"$ref": "#"}):
        with pytest.raises(ApiError) as found:
            grammar(schema)
        assert (found.value.status_code, found.value.param) == (400, "tools")


def test_a_template_takes_several_calls_or_one() -> None:
    each = "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"
    single = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    loop = "{%% for m in messages if m.tool_calls %%}%s{%% endfor %%}"
    for body, several in (
        (each, True), (single + each, False), ("{{ m.tool_calls[0].function.name }}", False),
        ("", True), ("{{ raise_exception('no calls') }}", True),
    ):  # fmt: skip
        assert takes_several(ChatTemplate(source=loop % body)) == several
