"""Dialects: marks of thoughts and tool calls, and grammars."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final, Literal

import msgspec

from c2c.engine.front.grammars import schema_grammar
from c2c.errors import DataError
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = [
    "DIALECTS", "Dialect", "Pairs", "Thought", "answer_grammar", "call_form", "call_grammar",
    "dialect_of", "forced_dialect", "takes_several", "thought_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pairs:
    """Arguments as marked keys and bare values.

    Attributes:
      key_end: mark after a key, with the pattern's rest.
      around: text around a value.
    """

    name_end: str
    key: str
    key_end: str
    value_end: str
    around: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    r"""Marks of a model's answers; "": none.

    Attributes:
      template: pattern of its chat templates.
      opening: mark before one call or several.
      head: mark before each call, also without `opening`.
      named: pattern before arguments, group 1 the name; None: a call is `{"name": ..., "arguments":
        ...}`.
      pairs: arguments without JSON.
      quote: second mark around strings, for bare keys.
      is_bare: whether an unmarked call may begin an answer.
      thinks_anywhere: whether a thought may follow text.
      dropped: meaningless marks.
      final: mark before text.
      written: form of all forced calls, with `%c`.
      call: form of one, with `%n` (name) and `%a` (arguments).
      between: text between two.
      id: form of a call's id, with the fields `own`, `name` and `index`.
    """

    name: str
    template: re.Pattern[str]
    opening: str = ""
    closing: str = ""
    head: str = ""
    foot: str = ""
    named: re.Pattern[str] | None = None
    pairs: Pairs | None = None
    quote: str = ""
    is_bare: bool = False
    thought: tuple[str, str] = ("<think>", "</think>")
    thinks_anywhere: bool = False
    dropped: tuple[str, ...] = ()
    resumed: str = ""
    final: str = ""
    written: str = ""
    call: str = ""
    between: str = ""
    id: str = "call_{own}"

    @property
    def has_calls(self) -> bool:
        """True if calls of tools are known."""
        return bool(self.opening or self.head)

    def specials(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return special tokens that stay in the text."""
        marks = (
            self.opening, self.closing, self.head, self.foot, self.quote, self.call, *self.thought,
            *self.dropped, self.named.pattern if self.named else "",
        )  # fmt: skip
        spelling, text = tokenizer.spelling, "\n".join(marks).replace("\\", "")
        names = {token: spelling.name(token) for token in spelling.special}
        return frozenset(token for token, name in names.items() if name and name in text)


def _pattern(_kind: type, source: str) -> re.Pattern[str]:
    return re.compile(source)


_FILE = resources.files("c2c.engine.front") / "dialects.toml"
DIALECTS: Final = msgspec.convert(
    tomllib.loads(_FILE.read_text("utf-8"))["dialects"], tuple[Dialect, ...], dec_hook=_pattern
)
_BARE: Final = next(one for one in DIALECTS if one.is_bare)

type Thought = Literal["open", "closed", "free"]
"""Whether the prompt has opened a thought, has ended it, or leaves it to the answer."""


@functools.cache
def dialect_of(template: str) -> Dialect | None:
    """Return a chat template's dialect, or None."""
    return next((one for one in DIALECTS if one.template.search(template)), None)


def forced_dialect(own: Dialect) -> Dialect:
    """Return the dialect of forced calls, or Llama's JSON."""
    if own.written:
        return own
    return replace(_BARE, thought=own.thought, thinks_anywhere=own.thinks_anywhere)


def thought_of(dialect: Dialect, prompt: str, *, goes_on: str | None) -> Thought:
    """Return the thought's state at a prompt's end."""
    opening, closing = dialect.thought
    if goes_on is not None:
        return "open" if goes_on.rfind(opening) > goes_on.rfind(closing) else "closed"
    if prompt.rstrip().endswith(opening.rstrip()):
        return "open"
    return "closed" if prompt.rstrip().endswith(closing) else "free"


def _with_texts(message: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(message))
    calls = result.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(arguments := function.get("arguments"), dict):
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return result


def _without_content(message: Mapping[str, Any]) -> dict[str, Any]:
    result = _with_texts(message)
    return result | (
        {"content": None} if result.get("tool_calls") and not result["content"] else {}
    )


def call_form(template: ChatTemplate) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the form in which a template writes calls, such as arguments as texts."""
    forms = (dict, _with_texts, _without_content)
    return next((form for form in forms if _shows(template, form, "call_one")), dict)


def _shows(template: ChatTemplate, form: Callable[..., dict[str, Any]], *names: str) -> bool:
    calls = [
        {"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": {}}}
        for name in names
    ]  # ids of Mistral's length
    call = form({"role": "assistant", "content": "", "tool_calls": calls})
    try:
        text = template.render([{"role": "user", "content": "a"}, call], tools=[])
    except DataError:
        return False
    return all(name in text for name in names)


def takes_several(template: ChatTemplate) -> bool:
    """Return False if a template refuses or drops a second call."""
    form = call_form(template)
    several = _shows(template, form, "call_one", "call_two")
    return several or not _shows(template, form, "call_one")


def _lark(text: str, tokenizer: Tokenizer) -> str:
    special = {tokenizer.spelling.name(token): token for token in tokenizer.spelling.special}
    names = sorted(filter(None, special), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False)
        for part in parts if part
    )  # fmt: skip


def call_grammar(
    tools: Sequence[Mapping[str, Any]], dialect: Dialect, tokenizer: Tokenizer, *, several: bool
) -> str:
    """Return the grammar of calls alone, see `c2c.engine.front.grammars`."""

    def symbols(form: str, **values: str) -> str:
        parts = re.split("%([can])", form)
        shown = [values[p] if k % 2 else _lark(p, tokenizer) for k, p in enumerate(parts)]
        return " ".join(filter(None, shown))

    rules, one = [], []
    quoted = '"name": %n' in dialect.call or '"tool_name": %n' in dialect.call
    for number, tool in enumerate(tools):
        schema = tool.get("parameters") or {"type": "object"}
        grammar = json.loads(schema_grammar(schema, "tools"))["grammars"][0]["json_schema"]
        rules.append(f"a{number}: %json {json.dumps(grammar, ensure_ascii=False)}")
        name = json.dumps(tool["name"], ensure_ascii=False)
        name = json.dumps(name, ensure_ascii=False) if quoted else name
        one.append(symbols(dialect.call, n=name, a=f"a{number}"))
    calls = f"call ({_lark(dialect.between, tokenizer)} call)*" if several else "call"
    lines = [f"start: {symbols(dialect.written, c=calls)}", f"call: {' | '.join(one)}", *rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}]})


def answer_grammar(
    grammar: str, dialect: Dialect, tokenizer: Tokenizer, thought: Thought, *, is_call: bool
) -> str:
    """Return an answer's grammar after its thought and marks."""
    begin, end, resumed, final = (
        _lark(mark, tokenizer) for mark in (*dialect.thought, dialect.resumed, dialect.final)
    )
    if thought == "closed" and (is_call or not final):
        return grammar
    is_special = end.startswith("<[")
    rule = (
        f"thought{'' if is_special else f'[suffix={end}]'}: /(?s:.*)/ {end if is_special else ''}"
    )
    heads = {"open": f"thought {resumed} SPACE", "free": f"({begin} thought {resumed} SPACE)?"}
    lines = [f"start: {heads.get(thought, '')} {'' if is_call else final} @answer"]
    lines += [rule, "SPACE: /[ \\n]*/"] if thought != "closed" else []
    first, *rest = json.loads(grammar)["grammars"]
    parts = [{"lark_grammar": "\n".join(lines)}, {**first, "name": "answer"}, *rest]
    return json.dumps({"grammars": parts})
