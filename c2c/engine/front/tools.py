"""Tool calls: formats of chat templates, grammars that force calls, and parsing of answers.

The chat template determines the format: Hermes and Qwen (`<tool_call>`), Qwen3-Coder
(`<function=name>`), Llama 3 (an answer of JSON) or Mistral (`[TOOL_CALLS]` with a list, or with
`name[ARGS]`).
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from c2c.engine.front.grammars import schema_grammar
from c2c.engine.front.marked import read_marked
from c2c.errors import DataError
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = [
    "FORMS", "Call", "Calls", "Delta", "Form", "forced", "forced_form", "form_of", "takes_several",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """A format of tool calls.

    Attributes:
      name: name of the format.
      opening: mark before a call, or before all calls.
      closing: mark after each call; "": none.
      between: separator of two calls.
      begins: pattern that identifies the format's chat templates.
      key: key of the arguments in a call's object; "": the function's name precedes the arguments.
    """

    name: str
    opening: str
    closing: str
    between: str
    begins: re.Pattern[str]
    key: str = "arguments"

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks by which calls are recognized, special tokens or not."""
        return (self.opening, self.closing, _ARGS, "[CALL_ID]")


FORMS: Final = (
    Form(
        "qwen_coder", "<tool_call>", "</tool_call>", "\n",
        re.compile(r"<function=(?s:.*)<parameter="),
    ),
    Form("mistral_args", "[TOOL_CALLS]", "", "", re.compile(r"\[TOOL_CALLS\](?s:.*)\[ARGS\]"), ""),
    Form("mistral", "[TOOL_CALLS]", "", ", ", re.compile(r"\[TOOL_CALLS\]")),
    Form(
        "hermes", "<tool_call>", "</tool_call>", "\n",
        re.compile(r"^(?!(?s:.*)<arg_key>)(?s:.*)<tool_call>(?!(?s:.*)<function=)"),
    ),
    Form(
        "llama", "<|python_tag|>", "", "; ",
        re.compile(r"""<\|python_tag\|>|^(?!(?s:.*)tool_name)(?s:.*)["']parameters["']\s*:"""),
        "parameters",
    ),
)  # fmt: skip
_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]+)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_NAMED = re.compile(r"\s*([^\s\[{]+)(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(?=\{)")
_NEXT = re.compile(r"[\s,;\[]*(?=\{)")
_ARGS = "[ARGS]"
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Call:
    """A call: name of the function, and the arguments as JSON received so far."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """New part of a call; the first part has `name` and `id`."""

    index: int
    arguments: str
    name: str = ""
    id: str = ""

    def shown(self) -> dict[str, Any]:
        """Return the part in OpenAI's form of stream chunks."""
        if not self.name:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        return {"index": self.index, **_shown(self.id, self.name, self.arguments)}


def _shown(number: str, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


@functools.cache
def form_of(template: str) -> Form | None:
    """Return the format of calls in a chat template; None if the format is unknown."""
    return next((form for form in FORMS if form.begins.search(template)), None)


def forced_form(form: Form | None) -> Form:
    """Return the format of calls that a grammar forces.

    Formats without a grammar use Llama's.
    """
    return FORMS[-1] if form is None or form.name == "qwen_coder" else form


def takes_several(template: ChatTemplate) -> bool:
    """Return False if a template refuses or drops the second of two calls in a message."""

    def shown(*names: str) -> str:
        calls = [_shown("abcdefghi", name, {}) for name in names]  # of Mistral's length
        call = {"role": "assistant", "content": "", "tool_calls": calls}
        return template.render([{"role": "user", "content": "a"}, call], tools=[])

    try:
        if "call_one" not in shown("call_one"):
            return True  # no calls at all
    except DataError:
        return True
    try:
        return "call_two" in shown("call_one", "call_two")
    except DataError:
        return False


def forced(
    tools: Sequence[Mapping[str, Any]], form: Form, tokenizer: Tokenizer, *, several: bool
) -> str:
    """Return the grammar of an answer of calls alone, see `c2c.engine.front.grammars`.

    Args:
      tools: functions that may be called.
      form: format of calls.
      tokenizer: tokenizer of the model, in which some marks are special tokens.
      several: True to allow several calls.

    Raises:
      ApiError: a function's schema is invalid, see `schema_grammar`.
    """

    def mark(text: str) -> str:
        token = tokenizer.backend.token_to_id(text)
        return f"<[{token}]>" if token in tokenizer.spelling.special else json.dumps(text)

    rules, one = [], []
    for number, tool in enumerate(tools):
        schema = tool.get("parameters") or {"type": "object"}
        own = json.loads(schema_grammar(schema, "tools"))["grammars"][0]["json_schema"]
        rules.append(f"a{number}: %json {json.dumps(own, ensure_ascii=False)}")
        name = json.dumps(tool["name"], ensure_ascii=False)
        if form.key:
            before = json.dumps(f'{{"name": {name}, "{form.key}": ', ensure_ascii=False)
            one.append(f'{before} a{number} "}}"')
        else:
            one.append(f"{mark(form.opening)} {name} {mark(_ARGS)} a{number}")
    call, between = "call", f"{json.dumps(form.between)} " if form.between else ""
    if form.name == "hermes":
        call = f'{mark(form.opening)} "\\n" call "\\n" {mark(form.closing)}'
    start = f"{call} ({between}{call})*" if several else call
    if form.name == "mistral":
        start = f'{mark(form.opening)} "[" {start} "]"'
    lines = [f"start: {start}", f"call: {' | '.join(one)}", *rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}]})


class Calls:
    """Incremental parser of an answer into text and tool calls.

    The result does not depend on the division of the answer into pieces. Invalid calls remain
    text.
    """

    def __init__(self, form: Form, tools: Mapping[str, Any], *, several: bool = True) -> None:
        """Create a parser.

        Args:
          form: format of calls.
          tools: JSON schemas of the functions' parameters, by name. A format without marks allows
            no calls of other functions.
          several: False to drop calls after the first.
        """
        self._form, self._tools, self._several = form, tools, several
        self._text = ""
        self._told = 0  # characters of text returned so far
        self._ids: list[str] = []
        self._sent: list[int] = []  # characters returned of each call's arguments
        self.found: list[Call] = []

    def push(self, text: str, *, is_over: bool = False) -> tuple[str, list[Delta]]:
        """Parse the next piece; return the new text and the new parts of calls."""
        self._text += text
        content, calls = self._read(is_over)
        self.found = calls if self._several else calls[:1]
        deltas = []
        for index, call in enumerate(self.found):
            if index == len(self._ids):
                # Mistral's templates accept only ids of nine letters and digits.
                own = secrets.token_hex(12)
                self._ids.append(own[:9] if "mistral" in self._form.name else f"call_{own}")
                self._sent.append(len(call.arguments))
                deltas.append(Delta(index, call.arguments, call.name, self._ids[index]))
            elif more := call.arguments[self._sent[index] :]:
                self._sent[index] += len(more)
                deltas.append(Delta(index, more))
        new, self._told = content[self._told :], max(self._told, len(content))
        return new, deltas

    def shown(self) -> list[dict[str, Any]]:
        """Return the calls in OpenAI's form of complete answers."""
        return [
            _shown(number, call.name, call.arguments)
            for number, call in zip(self._ids, self.found, strict=True)
        ]

    def _read(self, is_over: bool) -> tuple[str, list[Call]]:
        """Return the text outside calls, and the calls, received so far."""
        form, text = self._form, self._text
        if form.name == "llama":
            return self._of_json(text, is_over)
        if form.name == "qwen_coder":
            content, marked = read_marked(text, self._tools, is_over=is_over)
            return content, [Call(*each) for each in marked]
        content, *parts = text.split(form.opening)
        found: list[Call] = []
        for number, part in enumerate(parts):
            body, closed, after = part.partition(form.closing) if form.closing else (part, "", "")
            own, rest = _of_part(form, part)
            if own and rest is None and closed:  # invalid JSON
                own, rest = _of_part(form, body)
            found += own
            if own:
                content += (rest or "").partition(form.closing)[2].lstrip() if form.closing else ""
            elif is_over or closed or number + 1 < len(parts):
                content += form.opening + body + closed + after
        held = 0 if is_over else _begun(content, form.opening)
        return content[: len(content) - held], found

    def _of_json(self, text: str, is_over: bool) -> tuple[str, list[Call]]:
        """Parse an answer that consists either of calls or of text."""
        body = text.removeprefix(self._form.opening).lstrip()
        if not body or self._form.opening.startswith(text):
            return (text if is_over else ""), []
        if not body.startswith("{"):
            return text, []
        calls, rest = _objects(body)
        if not calls or any(call.name not in self._tools for call in calls):
            return (text if is_over else ""), []
        return ((rest or "").strip() if is_over else ""), calls


def _of_part(form: Form, part: str) -> tuple[list[Call], str | None]:
    """Return the calls after a mark, and the rest; None if the last call is incomplete."""
    if form.name.startswith("mistral") and (head := _NAMED.match(part)) is not None:
        arguments, end = _arguments(part, head.end())
        return [Call(head[1], arguments)], None if end is None else part[end:]
    return _objects(part)


def _begun(text: str, mark: str) -> int:
    """Return the length of the longest suffix of a text that begins a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


def _objects(text: str) -> tuple[list[Call], str | None]:
    """Return the calls, as objects, at the start of a text, and the rest; see `_of_part`."""
    found: list[Call] = []
    at = 0
    while (start := _NEXT.match(text, at)) is not None:
        call, end = _object(text, start.end())
        if call is None:
            break
        found.append(call)
        if end is None:
            return found, None
        at = end
    return found, text[at:]


def _object(text: str, at: int) -> tuple[Call | None, int | None]:
    """Return the call at index `at`, and its object's end; None if it is incomplete."""
    head = _HEAD.match(text, at)
    if head is not None:
        arguments, end = _arguments(text, head.end())
        call = Call(head[1], arguments)
        return call, None if end is None else _end(text, at)
    end = _end(text, at)
    value = json.loads(text[at:end]) if end is not None else {}
    name, given = value.get("name"), value.get("arguments") or value.get("parameters") or {}
    if not isinstance(name, str):
        return None, None
    return Call(name, given if isinstance(given, str) else json.dumps(given)), end


def _arguments(text: str, at: int) -> tuple[str, int | None]:
    """Return the text of the object at index `at`, and its end; None if it is incomplete."""
    end = _end(text, at)
    return text[at:end], end


def _end(text: str, at: int) -> int | None:
    """Return the end of the JSON at a position; None if it is incomplete or not JSON."""
    try:
        return _JSON.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return None
