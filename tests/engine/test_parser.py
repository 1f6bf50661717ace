"""Answers as models write them, read into thoughts, text and calls; whole and in pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.engine.front.dialects import DIALECTS, Dialect
from c2c.engine.front.parser import Parser

type Answer = tuple[str, str, str, list[tuple[str, str]]]

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
ADD = '{"a": 2, "b": [1, "}</tool_call>"]}'
FLAT = '{"a": 2, "b": "é"}'
ANSWERS: list[Answer] = [
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
    # Control characters, escapes of regular expressions, and what is no JSON, end at the mark.
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"c": "a\tb\nc\\d", "a": [1]}}\n'
     "</tool_call>", "", [("add", '{"c": "a\\tb\\nc\\\\d", "a": [1]}')]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"c": "say("hi")"}}</tool_call> done',
     "done", [("add", '{"c": "say("hi")"}')]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"c": "a <tool_call> b"}}</tool_call>', "",
     [("add", '{"c": "a <tool_call> b"}')]),
    ("hermes", '\n\n<tool_call>{"name": "add", "arguments": {}}} </tool_call>, so', "} , so",
     [("add", "{}")]),
    ("hermes", " \n", " \n", []),
    ("mistral", f'[TOOL_CALLS] [{{"name": "add", "arguments": {FLAT}}}]\nMore.', "More.",
     [("add", FLAT)]),
    ("mistral_args", f"[TOOL_CALLS]add[ARGS]{FLAT} More.", "More.", [("add", FLAT)]),
    ("glm", "Well.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n"
     "<arg_key>c</arg_key>\n<arg_value>x\n</arg_value>\n</tool_call>\n<tool_call>sub</tool_call>",
     "Well.\n", [("add", '{"a": 2, "c": "x\\n"}'), ("sub", "{}")]),
    ("minimax", '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">2</parameter>\n'
     '<parameter name="c">x</parameter>\n</invoke>\n<invoke name="sub">\n</invoke>\n'
     "</minimax:tool_call> done", "done", [("add", '{"a": 2, "c": "x"}'), ("sub", "{}")]),
    ("seed", "<seed:tool_call>\n<function=add>\n<parameter=c>x</parameter>\n</function>\n"
     "</seed:tool_call>", "", [("add", '{"c": "x"}')]),
    ("deepseek", "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n"
     f"```json\n{FLAT}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>sub\n"
     "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "Well.",
     [("add", FLAT), ("sub", "{}")]),
    ("deepseek", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{ADD}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "", [("add", ADD)]),
    ("deepseek_dsml", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n'
     '<｜DSML｜parameter name="c" string="true">2</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="a" string="false">2</｜DSML｜parameter>\n'
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>", "", [("add", '{"c": "2", "a": 2}')]),
    ("kimi", "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
     f"<|tool_call_argument_begin|>{ADD}<|tool_call_end|><|tool_call_begin|>functions.sub:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", "Well.",
     [("add", ADD), ("sub", "{}")]),
    ("granite", f'<|tool_call|>[{{"name": "add", "arguments": {ADD}}}]', "", [("add", ADD)]),
    ("nemotron", f'<TOOLCALL>[{{"name": "add", "arguments": {ADD}}}, {{"name": "sub", "arguments": '
     "{}}]</TOOLCALL>", "", [("add", ADD), ("sub", "{}")]),
    ("command_r", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "add", "parameters": '
     f"{ADD}}}\n]<|END_ACTION|>", "", [("add", ADD)]),
    ("command_r", "<|START_RESPONSE|>Four.<|END_RESPONSE|>", "Four.", []),
    ("gemma", 'Well.<|tool_call>call:add{a:2,b:[1,<|"|>"<|"|>],c:<|"|>say "hi"\n<|"|>,d:null}'
     "<tool_call|>", "Well.",
     [("add", '{"a":2,"b":[1,"\\""],"c":"say \\"hi\\"\\n","d":null}')]),
    ("function_gemma", "<start_function_call>call:add{c:<escape>x<escape>}<end_function_call>", "",
     [("add", '{"c":"x"}')]),
    ("gpt_oss", "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>"
     f"commentary to=functions.add <|constrain|>json<|message|>{FLAT}<|call|>", "Well.",
     [("add", FLAT)]),
    ("gpt_oss", f"<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{FLAT}",
     "", [("add", FLAT)]),
    ("gpt_oss", "<|channel|>final<|message|>Send it to=functions.", "Send it to=functions.", []),
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
    "now": None,
}


def in_pieces(
    dialect: Dialect, pieces: list[str], *, thinks: bool = False, several: bool = True
) -> tuple[str, str, list[tuple[str, str]]]:
    """Read an answer; what its stream tells is what the whole answer has."""
    parser = Parser(dialect, SCHEMAS, thinks=thinks, several=several)
    text = thought = ""
    told: list[dict[str, Any]] = []
    for k, piece in enumerate([*pieces, ""]):
        new = parser.push(piece, is_over=k == len(pieces))
        text, thought = text + new.joined("text"), thought + new.joined("thought")
        for delta in new.calls:
            shown = delta.shown()
            if "id" in shown:
                assert (shown.pop("index"), shown["type"]) == (len(told), "function")
                assert "mistral" not in dialect.name or len(shown["id"]) == 9
                told.append(shown)
            else:
                told[shown["index"]]["function"]["arguments"] += shown["function"]["arguments"]
    assert told == parser.calls
    calls = [call["function"] for call in told]
    return text, thought, [(call["name"], call["arguments"]) for call in calls]


def cut(text: str, cuts: list[int]) -> list[str]:
    at = [0, *sorted(one % (len(text) + 1) for one in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(at)]


CUTS = st.lists(st.integers(0, 2000), max_size=12)


@pytest.mark.parametrize(("name", "text", "content", "calls"), ANSWERS)
def test_each_answer_has_its_calls(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert in_pieces(BY_NAME[name], list(text)) == (content, "", calls)
    assert in_pieces(BY_NAME[name], [text]) == (content, "", calls)


@given(st.sampled_from(ANSWERS), CUTS, st.sampled_from(["Hm.\n", " <tool_call>{ ", ""]))
def test_a_thought_is_told_apart(case: Answer, cuts: list[int], thought: str) -> None:
    name, text, content, calls = case
    opening, closing = BY_NAME[name].thought
    if BY_NAME[name].resumed:
        text = BY_NAME[name].resumed + text
    written = f"{opening}{thought}{closing}"
    expected = content.lstrip(), thought, calls
    assert in_pieces(BY_NAME[name], cut(f"\n{written}\n{text}", cuts)) == expected
    within = cut(f"{thought}{closing}\n{text}", cuts)
    assert in_pieces(BY_NAME[name], within, thinks=True) == expected


MARKS = {
    name: [
        mark
        for mark in (
            own.opening, own.closing, own.head, own.foot, own.quote, *own.thought, *own.dropped,
            *((own.pairs.name_end, own.pairs.key, own.pairs.key_end, own.pairs.value_end)
              if own.pairs else ()),
        )
        if mark
    ]
    for name, own in BY_NAME.items()
}  # fmt: skip
PARTS = [
    "{", "}", "[", "]", '"', '"name"', ": ", '"add"', ", ", '"arguments": ', "x", " ", "\n", "2",
    '{"name": "add", "arguments": {}}', "true", "\\", "call:add{", "functions.add:0", "[ARGS]",
    "<|message|>", '{"name": "add", "arguments": {"c": "', "<", "</",
]  # fmt: skip


@given(st.data(), st.sampled_from(sorted(BY_NAME)), CUTS, st.booleans(), st.booleans())
def test_pieces_make_no_difference(
    data: st.DataObject, name: str, cuts: list[int], thinks: bool, several: bool
) -> None:
    one = st.sampled_from(PARTS) | st.sampled_from(MARKS[name])
    text = "".join(data.draw(st.lists(one, max_size=16)))
    own, form = BY_NAME[name], {"thinks": thinks, "several": several}
    whole = in_pieces(own, [text], **form)
    assert in_pieces(own, cut(text, cuts), **form) == in_pieces(own, list(text), **form) == whole
    assert several or len(whole[2]) <= 1
    if not any(mark in text for mark in MARKS[name]) and not own.is_bare:
        assert whole == (("", text, []) if thinks and own.thought[1] else (text, "", []))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
TEXT = st.text(st.characters(blacklist_characters="<>[]{}|", codec="utf-8"), max_size=12)


@given(
    st.sampled_from([one for one in DIALECTS if one.written]),
    st.lists(
        st.tuples(st.sampled_from(["add", "sub"]), st.dictionaries(st.text(), VALUES)), min_size=1
    ),
    TEXT,
    TEXT,
    CUTS,
)
def test_written_calls_come_back(
    dialect: Dialect, calls: list[tuple[str, dict[str, Any]]], before: str, after: str,
    cuts: list[int],
) -> None:  # fmt: skip
    """Random calls in the form that a grammar forces, with text around them."""
    quoted = 'name": %n' in dialect.call
    shown = [
        dialect.call.replace("%n", json.dumps(name) if quoted else name).replace(
            "%a", json.dumps(own)
        )
        for name, own in calls
    ]
    written = dialect.written.replace("%c", dialect.between.join(shown))
    before = "" if dialect.is_bare else before  # its calls have no mark
    text, thought, found = in_pieces(dialect, cut(f"{before}{written}\n{after}", cuts))
    assert [(name, json.loads(own)) for name, own in found] == calls
    assert thought == ""
    assert text == (before if before.strip() else "") + after.lstrip()


@given(st.dictionaries(st.sampled_from("abcd"), st.text(st.characters(exclude_characters="<"))))
def test_values_of_marked_calls_are_of_their_types(given: dict[str, str]) -> None:
    text = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in given.items())
    pieces = [f"<tool_call>\n<function=add>\n{text}</function>"]
    ((name, arguments),) = in_pieces(BY_NAME["qwen_coder"], pieces)[2]
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
    ({"type": "array"}, "[1, {'y': None}]", '[1, {"y": null}]'),
    ({"type": "object"}, "{1}", '"{1}"'),
    ({"type": "string"}, "['a']", "\"['a']\""),
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
    parser = Parser(BY_NAME["qwen_coder"], {"add": {"properties": {"p": schema}}})
    parser.push(f"<function=add><parameter=p>\n{value}\n</parameter></function>", is_over=True)
    (call,) = parser.calls
    assert call["function"] == {"name": "add", "arguments": f'{{"p": {told}}}'}
