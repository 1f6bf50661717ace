"""Chat templates: from messages to the text a model was trained on.

Templates come with checkpoints, that is, from strangers: they run in Jinja's sandbox and see plain
data only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from c2c.errors import DataError, SettingError

__all__ = ["ChatTemplate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A checkpoint's chat template; renders what transformers' apply_chat_template renders.

    `special_tokens` are what the template sees under names like bos_token. A name that is missing
    is undefined in the template: empty where it is printed, an error where it is added to a text.

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
          messages: mappings with a "role" and what the template wants beside it, mostly "content".
          add_generation_prompt: whether to end with the opening of the assistant's answer.
          continue_final_message: whether to end with the last message's content, so that the answer
            goes on with it.
          tools: JSON schemas of functions the model may call.
          documents: that the model may quote.
          now: what strftime_now shows; the current local time if None.
          variables: further ones that the template knows, such as enable_thinking.

        Raises:
          SettingError: messages that are not mappings with a role, or not JSON.
          DataError: the template refuses them or fails.
        """
        seen: dict[str, Any] = {**self.special_tokens, **variables}
        seen |= {"messages": messages, "tools": tools, "documents": documents}
        try:
            # Rebuilt, so that no method of a caller's object is within the template's reach.
            seen = json.loads(json.dumps(seen))
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError("messages", messages, f"what JSON can hold ({error})") from None
        for index, message in enumerate(seen["messages"]):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise SettingError(f"messages[{index}]", message, 'a mapping with a "role"')
        seen["add_generation_prompt"] = add_generation_prompt
        seen["strftime_now"] = (now or datetime.now().astimezone()).strftime
        mark = secrets.token_hex(16)  # where the last message's content ends
        if continue_final_message:
            last = seen["messages"][-1]
            if not isinstance(last.get("content"), str):
                raise SettingError("messages[-1]", last, "a content that is a text, to go on with")
            last["content"] += mark
        try:
            text = _compiled(self.source).render(seen)
        except RecursionError:
            raise DataError("chat template", "calls itself without end") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise DataError("chat template", f"does not take these messages: {error}") from error
        if continue_final_message and mark not in text:
            raise DataError("chat template", "does not write the last message as it is")
        return text.rpartition(mark)[0] if continue_final_message else text

    @property
    def variables(self) -> frozenset[str]:
        """Names that the template looks up."""
        return _variables(self.source)


class _GenerationBlocks(Extension):
    """{% generation %} … {% endgeneration %}, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (the base class's protocol)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=32)
def _variables(source: str) -> frozenset[str]:
    return frozenset(find_undeclared_variables(_environment().parse(source)))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
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
    """Jinja's own filter escapes for HTML; a prompt is not HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)
