"""Chat templates."""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateRuntimeError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from c2c.errors import DataError, SettingError

__all__ = ["ChatTemplate"]

_MOST_STEPS = 1_000_000  # loop iterations and macro calls in a chat
_MOST_CHARACTERS = 1 << 25  # of an intermediate text
_MOST_BITS = 1 << 16  # of a power


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A checkpoint's chat template, rendered like transformers' apply_chat_template.

    `special_tokens` are variables such as bos_token. A missing name is undefined: empty if printed,
    an error if added to a text.

    >>> template = ChatTemplate(source="{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<user>Hi'
    """  # noqa: E501 (a template is one line)

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            _compiled(self.source)
        except TemplateSyntaxError as error:
            raise DataError("chat template", f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise DataError("chat template", "nests too deeply to be compiled") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """Render a chat.

        Args:
          messages: mappings with "role" and the template's fields.
          add_generation_prompt: whether to append an answer's opening.
          continue_final_message: whether to continue the last message.
          now: for strftime_now; None: local time.
          variables: such as enable_thinking.

        Raises:
          SettingError: messages without role, or not JSON.
          DataError: the template fails or rejects them.
        """
        seen: dict[str, Any] = {**self.special_tokens, **variables}
        seen |= {"messages": messages, "tools": tools, "documents": documents}
        try:
            # Rebuilt, so that no method of a caller's object is within the template's reach.
            seen = json.loads(json.dumps(seen))
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError("messages", messages, f"JSON values ({error})") from None
        for index, message in enumerate(seen["messages"]):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise SettingError(f"messages[{index}]", message, 'a mapping with a "role"')
        seen["add_generation_prompt"] = add_generation_prompt
        seen["strftime_now"] = (now or datetime.now().astimezone()).strftime
        mark = secrets.token_hex(16)  # marks the end of the last message's content
        if continue_final_message:
            last = seen["messages"][-1]
            if not isinstance(last.get("content"), str):
                raise SettingError("messages[-1]", last, "a content that is a text")
            last["content"] += mark
        try:
            _steps.left = _MOST_STEPS
            text = _compiled(self.source).render(seen)
        except RecursionError:
            raise DataError("chat template", "recurses without end") from None
        except MemoryError:
            raise DataError("chat template", "runs out of memory") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise DataError("chat template", f"does not take these messages: {error}") from error
        if continue_final_message and mark not in text:
            raise DataError("chat template", "changes the last message, which has to be continued")
        return text.rpartition(mark)[0] if continue_final_message else text

    @property
    def variables(self) -> frozenset[str]:
        """Names of the template's variables."""
        return _variables(self.source)


class _GenerationBlocks(Extension):
    tags = {"generation"}  # noqa: RUF012 (the base class's protocol)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    environment = _environment()
    tree = _Joins().visit(environment.parse(source))
    for loop in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        counted = nodes.Call(nodes.ImportedName(f"{__name__}._count"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(counted, lineno=loop.lineno))
    # Jinja says `Template.from_code` of what it compiled from a tree; a text is compiled alike.
    code = environment.compile(tree)
    return Template.from_code(environment, code, environment.make_globals(None))


_steps = threading.local()


def _count() -> None:
    _steps.left -= 1
    if _steps.left < 0:
        raise TemplateRuntimeError(f"it takes more than {_MOST_STEPS} steps")


def _concat(parts: Iterable[str]) -> str:
    texts, length = [], 0
    for part in parts:
        texts.append(part)
        length += len(part)
        if length > _MOST_CHARACTERS:
            raise TemplateRuntimeError(f"it writes more than {_MOST_CHARACTERS} characters")
    return "".join(texts)


def _joined(*parts: Any) -> str:
    return _concat(map(str, parts))


class _Joins(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (the base class's protocol)
        self.generic_visit(node)
        call = nodes.Call(nodes.ImportedName(f"{__name__}._joined"), node.nodes, [], None, None)
        return call.set_lineno(node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded loops and products: templates are untrusted."""

    intercepted_binops = frozenset({"+", "*", "**"})
    concat = staticmethod(_concat)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if isinstance(x, str | list | tuple) else x for x in (left, right)]
        if operator == "+":
            are_sized = all(x is not y for x, y in zip(sizes, (left, right), strict=True))
            is_large = are_sized and sum(sizes) > _MOST_CHARACTERS
        elif not all(isinstance(x, int) for x in sizes):
            is_large = False
        elif operator == "*" and sizes != [left, right]:
            is_large = math.prod(sizes) > _MOST_CHARACTERS
        elif operator == "*":
            is_large = left.bit_length() + right.bit_length() > _MOST_BITS
        else:
            is_large = abs(sizes[1]) * abs(sizes[0]).bit_length() > _MOST_BITS
        if is_large:
            raise TemplateRuntimeError(f"{operator} exceeds the size limit")
        return super().call_binop(context, operator, left, right)


@lru_cache(maxsize=32)
def _variables(source: str) -> frozenset[str]:
    return frozenset(find_undeclared_variables(_environment().parse(source)))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)
