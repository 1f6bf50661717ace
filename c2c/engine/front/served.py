"""Served models in the front: tokenizers, chat templates, limits and default sampling."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from c2c.engine.front.dialects import (
    Dialect,
    Thought,
    answer_grammar,
    call_grammar,
    dialect_of,
    forced_dialect,
    takes_several,
    thought_of,
)
from c2c.engine.front.failures import ApiError, without_paths
from c2c.engine.front.grammars import grammar_of
from c2c.engine.front.parser import Parser
from c2c.engine.front.protocol import ChatRequest, CompletionRequest, Message
from c2c.engine.messages import ModelInfo
from c2c.errors import DataError, SettingError
from c2c.models import read_json_object
from c2c.transformer import describe
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Served", "served_models", "shown"]

_log = logging.getLogger("c2c.engine.front")
_MOST_CHARACTERS = 1 << 22  # of a text; more for a long context, 8 a token
_DRAWS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

_INSTRUCTIONS = ("system", "developer")  # roles
_THINKING = {"enable_thinking", "thinking"}  # variables of templates

_SET_OTHERWISE = {  # template variables that other fields set
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "now",
    "strftime_now", "self",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A served model.

    Attributes:
      info: the engine's description of the model.
      tokenizer: tokenizer of the model; None if it has none.
      eos: tokens that end a text.
      longest: most characters of a token; None if unlimited.
      sampling: request fields by default, from generation_config.json.
    """

    info: ModelInfo
    tokenizer: Tokenizer | None
    eos: frozenset[int]
    longest: int | None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def encoded(
        self,
        prompt: str | Sequence[int],
        param: str = "prompt",
        *,
        add_special_tokens: bool = True,
    ) -> tuple[int, ...]:
        """Return a prompt's tokens.

        Raises:
          ApiError: the prompt is empty, too long, or has tokens outside the vocabulary.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ApiError(
                    400, f"{self.info.name} has no tokenizer: send token ids", param=param
                )
            self._check_text(prompt, param)
            prompt = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        if not prompt:
            raise ApiError(400, f"{param}: expected at least one token", param=param)
        self.check_tokens(prompt, param)
        self._check_length(len(prompt), param)
        return tuple(prompt)

    def chat(self, asked: ChatRequest) -> tuple[tuple[int, ...], Thought]:
        """Return a chat's tokens, by the checkpoint's template, and the thought at their end.

        Raises:
          ApiError: there is no template, it does not accept the messages or another field, or its
            calls of tools have an unknown form.
        """
        template = self._template(asked)
        if template is None or self.tokenizer is None:
            raise ApiError(400, f"{self.info.name} has no chat template", param="model")
        own, more = asked.for_template, asked.chat_template_kwargs
        for name in own.keys() - template.variables - {"reasoning_effort"}:
            raise ApiError(
                400, f"{name}: not used by the chat template of {self.info.name}", param=name
            )
        for name in more.keys() & (_SET_OTHERWISE | own.keys()):
            raise ApiError(
                400, f"chat_template_kwargs: {name} is set elsewhere", param="chat_template_kwargs"
            )
        dialect = self.dialect(asked)
        has_thoughts = dialect is not None and dialect.thought[1] in template.source
        writes = asked.is_forced or "tool_calls" in template.source
        if asked.has_tools and writes and not (dialect and dialect.has_calls):
            why = f"the form of calls in the chat template of {self.info.name} is unknown"
            raise ApiError(400, f"tools: {why}", param="tools")
        thinks = asked.thinking if asked.enable_thinking is None else asked.enable_thinking
        names = template.variables & _THINKING
        if thinks is not None and not names and thinks != has_thoughts:
            why = f"the chat template of {self.info.name} has no choice"
            raise ApiError(400, f"thinking: {thinks}: {why}", param="thinking")
        if thinks is not None:
            own |= dict.fromkeys(names, thinks)
        messages = _messages(asked.messages, template)
        opens, tokenizer = asked.add_generation_prompt, self.tokenizer

        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return tokenizer.apply_chat(
                messages,
                add_generation_prompt=not asked.continue_final_message if opens is None else opens,
                continue_final_message=asked.continue_final_message,
                **own,
                **more,
            )

        try:
            try:
                text = render(messages)
            except DataError:  # some templates, as DeepSeek's, take arguments of calls as text
                text = render([_with_texts(message) for message in messages])
        except (DataError, SettingError) as error:
            raise ApiError(400, str(error), param="messages") from None
        for message in messages:
            if message["role"] in _INSTRUCTIONS and message["content"].strip() not in text:
                raise ApiError(
                    400,
                    f"messages: the chat template of {self.info.name} leaves out a message of role "
                    f"{message['role']!r}",
                    param="messages",
                )
        ids = self.encoded(text, "messages", add_special_tokens=bool(asked.add_special_tokens))
        goes_on = messages[-1]["content"] if asked.continue_final_message else None
        if dialect is None or not has_thoughts:
            return ids, "closed"
        return ids, thought_of(dialect, text, goes_on=goes_on)

    def grammar(self, asked: ChatRequest | CompletionRequest) -> tuple[str, str]:
        """Return the grammar of an answer and its field, see `grammar_of`.

        Raises:
          ApiError: the grammar is invalid, or the model has no tokenizer.
        """
        grammar, field = grammar_of(asked)
        if isinstance(asked, ChatRequest) and asked.is_forced and (own := self.dialect(asked)):
            if grammar:
                raise ApiError(
                    400,
                    "tool_choice: forced calls allow no other grammar or response_format",
                    param="tool_choice",
                )
            assert self.tokenizer is not None  # a dialect needs a template
            several = asked.may_have_several
            if several and (template := self._template(asked)) is not None:
                several = takes_several(template)
            return call_grammar(asked.callable_tools, own, self.tokenizer, several=several), "tools"
        if grammar and self.tokenizer is None:
            raise ApiError(400, f"{self.info.name} has no tokenizer for grammars", param="model")
        return grammar, field

    def as_its_checkpoint(
        self, asked: ChatRequest | CompletionRequest
    ) -> ChatRequest | CompletionRequest:
        """Return a request with the checkpoint's sampling parameters for those not sent."""
        given = {n: v for n, v in self.sampling.items() if n not in asked.model_fields_set}
        return asked.model_copy(update=given)

    def dialect(self, asked: ChatRequest | CompletionRequest) -> Dialect | None:
        """Return the dialect of an answer; None if all of it is text."""
        if not isinstance(asked, ChatRequest) or (template := self._template(asked)) is None:
            return None
        own = dialect_of(template.source)
        return forced_dialect(own) if own is not None and asked.is_forced else own

    def after_thought(
        self, asked: ChatRequest | CompletionRequest, grammar: str, thought: Thought
    ) -> str:
        """Return the grammar of a whole answer from that of what follows its thought."""
        own = self.dialect(asked)
        if own is None or not isinstance(asked, ChatRequest) or self.tokenizer is None:
            return grammar
        return answer_grammar(grammar, own, self.tokenizer, thought, is_call=asked.is_forced)

    def parser(
        self, asked: ChatRequest | CompletionRequest, thought: Thought, *, is_formed: bool
    ) -> tuple[Callable[[], Parser | None], frozenset[int]]:
        """Return a factory of parsers, and special tokens that must stay in the text.

        Args:
          asked: request.
          thought: state of the thought at the prompt's end.
          is_formed: whether the answer follows a grammar; then it has calls only if they are
            forced.
        """
        own = self.dialect(asked)
        if own is None or not isinstance(asked, ChatRequest) or self.tokenizer is None:
            return lambda: None, frozenset()
        given = [] if is_formed and not asked.is_forced else asked.callable_tools
        tools = {tool["name"]: tool.get("parameters") for tool in given}
        several, thinks = asked.parallel_tool_calls, thought == "open"
        kept = own.specials(self.tokenizer)
        return lambda: Parser(own, tools, thinks=thinks, several=several), kept

    def unused(self, asked: ChatRequest) -> list[str]:
        """Return the sent template variables that the template does not use."""
        template = self._template(asked)
        known = frozenset[str]() if template is None else template.variables
        effort = {"reasoning_effort"} - known if asked.reasoning_effort else ()
        more = {f"chat_template_kwargs.{n}" for n in asked.chat_template_kwargs.keys() - known}
        return sorted(more.union(effort))

    def _template(self, asked: ChatRequest) -> ChatTemplate | None:
        """Return the chat template of a request; None if the model has none."""
        if self.tokenizer is None:
            return None
        return self.tokenizer.template(has_tools=asked.has_tools)

    def room(self, ids: Sequence[int], asked: int | None, default: int | None) -> int:
        """Return the limit of new tokens.

        Raises:
          ApiError: prompt and requested tokens exceed the context.
        """
        left = self.info.context - len(ids)
        if asked is not None and asked > left:
            raise ApiError(
                400,
                f"max_tokens: {len(ids)} prompt tokens and {asked} new ones exceed the context of "
                f"{self.info.context} tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return asked if asked is not None else min(left, left if default is None else default)

    def check_tokens(self, tokens: Iterable[int], param: str) -> None:
        """Raise ApiError if a token is outside the model's vocabulary."""
        for token in tokens:
            if token >= self.info.vocab:
                raise ApiError(
                    400, f"{param}: token {token}: expected below {self.info.vocab}", param=param
                )

    def _check_text(self, text: str, param: str) -> None:
        """Raise ApiError for too long a text before encoding it, which costs seconds a megabyte."""
        if len(text) > (most := max(_MOST_CHARACTERS, 8 * self.info.context)):
            raise ApiError(400, f"{param}: expected at most {most} characters", param=param)
        if self.longest is not None:
            self._check_length(-(-len(text) // self.longest), param)

    def _check_length(self, tokens: int, param: str) -> None:
        if tokens >= self.info.context:
            raise ApiError(
                400,
                f"{param}: the prompt exceeds the context of {self.info.context} tokens",
                param=param,
                code="context_length_exceeded",
            )


def _with_texts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have their arguments as JSON texts."""
    found: dict[str, Any] = json.loads(json.dumps(message))
    calls = found.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(own := function.get("arguments"), dict):
            function["arguments"] = json.dumps(own, ensure_ascii=False)
    return found


def _messages(given: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Return messages for a template: its role for instructions, and the leading ones as one."""
    found = [message.plain() for message in given]
    if "developer" not in template.source:
        for message in found:
            if message["role"] == "developer":
                message["role"] = "system"
    leading = list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, found))
    if len(leading) > 1:
        texts = [message["content"] for message in leading if message["content"]]
        found = [leading[0] | {"content": "\n\n".join(texts)}, *found[len(leading) :]]
    return found


def served_models(
    infos: Sequence[ModelInfo], *, has_own_sampling: bool = False
) -> dict[str, Served]:
    """Return the served models, with tokenizers and, if asked for, default sampling parameters."""
    found = {}
    for info in infos:
        if info.failed:
            continue
        described = describe(Path(info.path))
        tokenizer = described.tokenizer
        longest = None if tokenizer is None else tokenizer.spelling.longest()
        found[info.name] = Served(
            info=info, tokenizer=tokenizer, eos=frozenset(described.eos_ids), longest=longest,
            sampling=_sampling(Path(info.path)) if has_own_sampling else {},
        )  # fmt: skip
    return found


def shown(info: ModelInfo) -> dict[str, Any]:
    """Return the description of a model for clients."""
    found = {
        "id": info.name, "object": "model", "created": 0, "owned_by": "c2c",
        "max_model_len": info.context, "status": "failed" if info.failed else "ready",
    }  # fmt: skip
    return found | ({"reason": without_paths(info.failed, info.path)} if info.failed else {})


def _sampling(checkpoint: Path) -> dict[str, Any]:
    """Return the sampling defaults of a checkpoint's generation_config.json as request fields.

    Values that requests do not allow are left out and logged.
    """
    file = checkpoint / "generation_config.json"
    config = read_json_object(file) if file.is_file() else {}
    given = {name: config[name] for name in _DRAWS if config.get(name) is not None}
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    found = {}
    for name, value in given.items():
        try:
            asked = CompletionRequest.model_validate({"model": "any", "prompt": [0], name: value})
        except ValidationError:
            _log.warning("%s: %s=%.40r is no valid sampling setting: ignored", file, name, value)
        else:
            found[name] = getattr(asked, name)
    return found
