"""Dialects by chat template, and the grammars that force their calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from c2c.engine.constraint import Grammars
from c2c.engine.front.dialects import (
    DIALECTS,
    Dialect,
    answer_grammar,
    call_grammar,
    dialect_of,
    forced_dialect,
    takes_several,
    thought_of,
)
from c2c.engine.front.failures import ApiError
from c2c.engine.front.grammars import schema_grammar
from c2c.engine.front.trial import fault
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer
from tests.engine.talking import END, HERMES, byte_tokenizer
from tests.engine.test_parser import BY_NAME, in_pieces

PUBLISHED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "templates.yaml").read_text("utf-8")
)
# As the templates of these checkpoints have it, shortened.
SHORTENED = {
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
    None: (
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        '{"tool_name": title of the tool, "parameters": a dict of values}',  # Command R
    ),
}
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


FORCED = [dialect for dialect in DIALECTS if dialect.written]
UNFORCED = {
    "deepseek_dsml", "gemma", "function_gemma", "minimax", "glm", "seed", "qwen_coder", "thoughts",
}  # fmt: skip


def test_the_dialect_is_that_of_the_template() -> None:
    templates = [(name, text) for name, texts in SHORTENED.items() for text in texts]
    templates += [(row["dialect"], row["marks"]) for row in PUBLISHED]
    for name, text in templates:
        found = dialect_of(text)
        assert (None if found is None else found.name) == name, text
    assert sum(len(row["names"]) for row in PUBLISHED) == 55


def test_calls_of_other_dialects_are_forced_in_llamas() -> None:
    assert {dialect.name for dialect in DIALECTS if not dialect.written} == UNFORCED
    forced = forced_dialect(BY_NAME["seed"])
    assert (forced.name, forced.thought) == ("llama", BY_NAME["seed"].thought)
    assert forced_dialect(BY_NAME["hermes"]) is BY_NAME["hermes"]


def follows(text: str, grammar: str, tokenizer: Tokenizer) -> bool:
    constraint = Grammars(tokenizer, tokenizer.vocab_size).begin(grammar, ())
    for token in tokenizer.encode(text, add_special_tokens=False):
        if not constraint.mask(())[token // 32] >> token % 32 & 1:
            return False
        constraint.take(token)
    end = tokenizer.backend.token_to_id(END)
    assert end is not None
    return bool(constraint.mask({end})[end // 32] >> end % 32 & 1)


def tokenizer_of(dialect: Dialect, *, is_special: bool) -> Tokenizer:
    """Return a tokenizer with a dialect's marks as tokens.

    llguidance spells the common beginning of marks that are no special tokens byte by byte.
    """
    marks = re.findall(r"<[^<>\s=]+>|\[/?[A-Z_]+\]", f"{dialect} [ARGS]")
    if dialect.head and not is_special:
        marks = []
    return Tokenizer(backend=byte_tokenizer(*((mark, is_special) for mark in dict.fromkeys(marks))))


@pytest.mark.parametrize("dialect", FORCED, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("is_special", [False, True])
def test_a_forced_call_is_read_as_one(dialect: Dialect, is_special: bool) -> None:
    tokenizer = tokenizer_of(dialect, is_special=is_special)
    quoted = 'name": %n' in dialect.call

    def call(name: str, arguments: str) -> str:
        shown = json.dumps(name) if quoted else name
        return dialect.call.replace("%n", shown).replace("%a", arguments)

    calls = call("add", '{"a": 2, "b": -7}'), call("now", "{}")
    one, two = (dialect.written.replace("%c", dialect.between.join(calls[:n])) for n in (1, 2))
    several, single = (
        call_grammar(TOOLS, dialect, tokenizer, several=several) for several in (True, False)
    )
    assert follows(one, single, tokenizer)
    assert follows(one, several, tokenizer)
    assert follows(two, several, tokenizer)
    assert not follows(two, single, tokenizer)
    assert not follows("Four.", several, tokenizer)
    assert not follows(one.replace("add", "sub"), several, tokenizer)
    assert not follows(one.replace("2", '"2"'), several, tokenizer)
    text, thought, found = in_pieces(dialect, [two])
    assert (text, thought) == ("", "")
    assert [(n, json.loads(own)) for n, own in found] == [("add", {"a": 2, "b": -7}), ("now", {})]


@pytest.mark.parametrize("name", ["hermes", "mistral", "gpt_oss", "command_r"])
@pytest.mark.parametrize("is_special", [False, True])
def test_a_form_begins_after_the_thought(name: str, is_special: bool) -> None:
    dialect = BY_NAME[name]
    tokenizer = tokenizer_of(dialect, is_special=is_special)
    inner = schema_grammar({"enum": ["oak", "elm"]}, "guided_json")
    opening, closing = dialect.thought
    thought, answer = f"Hm, <{closing}{dialect.resumed}", f'{dialect.final}"oak"'
    for state, right, wrong in (
        ("closed", answer, f"{opening}{thought}{answer}"),
        ("free", answer, f"{thought}{answer}"),
        ("free", f"{opening}{thought}{answer}", f"{opening}{thought}oak"),
        ("open", f"{thought}{answer}", answer),
        ("open", f"{thought}\n\n{answer}", f"{thought}oak"),
    ):
        grammar = answer_grammar(inner, dialect, tokenizer, state, is_call=False)  # type: ignore[arg-type]
        assert follows(right, grammar, tokenizer), (state, right)
        assert not follows(wrong, grammar, tokenizer), (state, wrong)


@pytest.mark.parametrize(
    ("prompt", "goes_on", "state"),
    [
        ("<think> is what? A:", None, "free"), ("A:<think>\n", None, "open"),
        ("A:<think>\n\n</think>\n\n", None, "closed"), ("A:</think>", None, "closed"),
        ("A:<think>so", "<think>so", "open"), ("A:so", "so", "closed"),
        ("A:<think>a</think>b", "<think>a</think>b", "closed"),
    ],
)  # fmt: skip
def test_the_prompt_tells_whether_a_thought_is_open(
    prompt: str, goes_on: str | None, state: str
) -> None:
    assert thought_of(BY_NAME["hermes"], prompt, goes_on=goes_on) == state


def test_a_grammar_lets_only_what_can_follow_come_and_one_with_faults_all() -> None:
    tokenizer = Tokenizer(backend=byte_tokenizer())
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    call = call_grammar(TOOLS, BY_NAME["llama"], tokenizer, several=False)
    right, wrong = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ('{"n', "Four"))
    for grammar, may_come in ((call, {right}), ("{", {right, wrong})):
        mask = grammars.begin(grammar, ()).mask(())
        found = {token for token in (right, wrong) if mask[token // 32] >> token % 32 & 1}
        assert found == may_come


def test_parameters_that_are_no_schema_are_refused() -> None:
    tokenizer = Tokenizer(backend=byte_tokenizer())

    def grammar(schema: Any) -> str:
        tools = [{"name": "add", "parameters": schema}]
        return call_grammar(tools, BY_NAME["llama"], tokenizer, several=True)

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
