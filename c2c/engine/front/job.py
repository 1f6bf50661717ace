"""Jobs: requests in their model's tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from c2c.engine.front.answers import Shape
from c2c.engine.front.choices import Choice
from c2c.engine.front.dialects import (
    Dialect,
    Thought,
    answer_grammar,
    call_form,
    call_grammar,
    dialect_of,
    forced_dialect,
    takes_several,
    thought_of,
)
from c2c.engine.front.failures import ApiError, invalid
from c2c.engine.front.grammars import grammar_of
from c2c.engine.front.link import Link
from c2c.engine.front.parser import Parser
from c2c.engine.front.protocol import ChatRequest, CompletionRequest, Message, StreamOptions
from c2c.engine.front.scores import Written
from c2c.engine.front.served_model import Served
from c2c.errors import DataError, SettingError
from c2c.transformer.running.sampling_stages import BIASED
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.stop_text import StopText
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Chat", "Job", "chat_job", "text_job"]

_DEFAULT_TOKENS = 16  # OpenAI's default for a text; a chat may fill its context
_MOST_TOLD = 1 << 22  # log-probabilities of an answer: half a gigabyte
_INSTRUCTIONS = ("system", "developer")  # roles
_THINKING = {"enable_thinking", "thinking"}  # variables of templates
_SET_OTHERWISE = {  # template variables that other fields set
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "now",
    "strftime_now", "self",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chat:
    """Part of a job that only chats have."""

    asked: ChatRequest
    tokenizer: Tokenizer
    template: ChatTemplate
    dialect: Dialect | None
    thought: Thought

    @property
    def unused(self) -> list[str]:
        """Sent template variables without use."""
        body, names = self.asked, self.template.variables
        effort = {"reasoning_effort"} - names if body.reasoning_effort else ()
        more = {f"chat_template_kwargs.{n}" for n in body.chat_template_kwargs.keys() - names}
        return sorted(more.union(effort))

    def forced_calls(self) -> str:
        """Return the grammar of forced calls, else ""."""
        if self.dialect is None or not self.asked.is_forced:
            return ""
        several = self.asked.may_have_several and takes_several(self.template)
        tools = self.asked.callable_tools
        return call_grammar(tools, self.dialect, self.tokenizer, several=several)

    def whole(self, grammar: str) -> str:
        """Return a whole answer's grammar from that after the thought."""
        if self.dialect is None:
            return grammar
        is_call = self.asked.is_forced
        return answer_grammar(grammar, self.dialect, self.tokenizer, self.thought, is_call=is_call)

    def parser(self, *, is_formed: bool) -> Parser | None:
        """Return a parser; answers by grammar have forced calls alone."""
        if self.dialect is None:
            return None
        functions = [] if is_formed and not self.asked.is_forced else self.asked.callable_tools
        tools = {tool["name"]: tool.get("parameters") for tool in functions}
        several, thinks = self.asked.parallel_tool_calls, self.thought == "open"
        return Parser(self.dialect, tools, thinks=thinks, several=several)


@dataclass(frozen=True, slots=True)
class Job:
    """A request to a model; `asked` has its sampling defaults."""

    asked: ChatRequest | CompletionRequest
    served: Served
    prompts: Sequence[tuple[int, ...]]
    chat: Chat | None = None

    @property
    def echoes(self) -> bool:
        """True if an answer begins with its prompt."""
        return isinstance(self.asked, CompletionRequest) and self.asked.echo

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        eos = frozenset[int]() if self.asked.ignore_eos else self.served.eos
        return eos | frozenset(self.asked.stop_token_ids)

    @property
    def rooms(self) -> list[int]:
        """Limits of new tokens, of each prompt."""
        default = _DEFAULT_TOKENS if self.chat is None else None
        return [self.served.room(ids, self.asked.most_tokens, default) for ids in self.prompts]

    def check(self, max_open: int) -> None:
        """Check limits; an engine serves at most `max_open` choices.

        Raises:
          ApiError: a field exceeds its limit.
        """
        body, rooms = self.asked, self.rooms
        if body.n > max_open:
            raise _beyond("n", f"{body.n} choices", f"{max_open} (max_open)")
        places = sum(rooms) + (sum(map(len, self.prompts)) if self.echoes else 0)
        numbers = body.n * places * (1 + (body.scores or 0))
        if body.scores is not None and numbers > _MOST_TOLD:
            most = f"{_MOST_TOLD}; ask for fewer tokens"
            raise _beyond("logprobs", f"up to {numbers} numbers", most)
        self.served.check_tokens(body.stop_token_ids, "stop_token_ids")
        self.served.check_tokens(map(int, body.logit_bias), "logit_bias")
        if body.min_tokens > min(rooms):
            raise _beyond("min_tokens", str(body.min_tokens), str(min(rooms)))
        biased = len(body.logit_bias) + len(self.ends) * (body.min_tokens > 0)
        if biased > BIASED:
            field = "logit_bias" if body.logit_bias else "stop_token_ids"
            amount = f"{biased} tokens, including end tokens that min_tokens bars"
            raise _beyond(field, amount, str(BIASED))

    def grammar(self) -> tuple[str, str]:
        """Return an answer's grammar and field, see `grammar_of`.

        Raises:
          ApiError: an invalid grammar, or no tokenizer.
        """
        grammar, field = grammar_of(self.asked)
        calls = "" if self.chat is None else self.chat.forced_calls()
        if calls and grammar:
            raise invalid("tool_choice", "forced calls allow no other grammar or response_format")
        if grammar and self.served.tokenizer is None:
            raise invalid("model", f"{self.served.info.name} has no tokenizer for grammars")
        return (calls, "tools") if calls else (grammar, field)

    def shape(self) -> Shape:
        """Return the answer's form for chats or texts."""
        body, tokenizer = self.asked, self.served.tokenizer
        return Shape(
            model=body.model,
            is_chat=self.chat is not None,
            has_tokens=body.return_token_ids or tokenizer is None,
            has_scores=body.scores is not None,
            written=Written(tokenizer, body.return_tokens_as_token_ids),
            options=body.stream_options or StreamOptions(),
        )

    def choices(
        self, link: Link, gate: asyncio.Semaphore, grammar: str, more: Mapping[str, Any]
    ) -> list[Choice]:
        """Return an answer's choices, not yet begun; `more` are fields of their requests."""
        body, chat, tokenizer, ends = self.asked, self.chat, self.served.tokenizer, self.ends
        grammar = chat.whole(grammar) if chat is not None and grammar else grammar
        goes_on = not isinstance(body, ChatRequest) or body.continue_final_message
        marks = frozenset[int]()
        if chat is not None and chat.dialect is not None:
            marks = chat.dialect.specials(chat.tokenizer)
        fields = {
            "model": body.model, "stop": tuple(sorted(ends)), "least": body.min_tokens,
            "scores": body.scores, "prompt_scores": body.scores if self.echoes else None,
            "grammar": grammar, "calls_tool": isinstance(body, ChatRequest) and body.has_tools,
            **more,
        }  # fmt: skip

        def choice(number: int, k: int, ids: tuple[int, ...], room: int) -> Choice:
            decoder = None
            if tokenizer is not None:
                decoder = tokenizer.stream(
                    skip_special_tokens=body.skip_special_tokens, exceptions=marks,
                    after=ids if goes_on and not self.echoes else (),
                )  # fmt: skip
            # at least 1 token, also if only the prompt is scored
            settings = {"ids": ids, "new": max(1, room), **body.sampling(k)}
            return Choice(
                link=link,
                gate=gate,
                index=number * body.n + k,
                prompt=number,
                decoder=decoder,
                stop=StopText(
                    body.stops, is_kept=body.include_stop_str_in_output, least=body.min_tokens
                ),
                hidden=frozenset() if body.include_stop_str_in_output else ends,
                parser=None if chat is None else chat.parser(is_formed=bool(grammar)),
                echo=ids if self.echoes else (),
                only_echo=room == 0,
                fields=fields | settings,
            )

        prompts = enumerate(zip(self.prompts, self.rooms, strict=True))
        return [choice(number, k, *one) for number, one in prompts for k in range(body.n)]


def _beyond(field: str, value: str, most: str) -> ApiError:
    return invalid(field, f"{value}, expected at most {most}")


def text_job(served: Served, request: CompletionRequest, param: str = "prompt") -> Job:
    """Return a text completion's job.

    Raises:
      ApiError: a prompt is empty, too long, or has unknown tokens.
    """
    bos = request.add_special_tokens is not False
    prompts = [served.encoded(prompt, param, add_special_tokens=bos) for prompt in request.prompts]
    return Job(served.with_defaults(request), served, prompts)


def chat_job(served: Served, request: ChatRequest) -> Job:
    """Return a chat's job, by the checkpoint's template.

    Raises:
      ApiError: no template, rejected messages or fields, or an unknown form of tool calls.
    """
    request, tokenizer, name = served.with_defaults(request), served.tokenizer, served.info.name
    template = None if tokenizer is None else tokenizer.template(has_tools=request.has_tools)
    if template is None or tokenizer is None:
        raise invalid("model", f"{name} has no chat template")
    dialect = dialect_of(template.source)
    if dialect is not None and request.is_forced:
        dialect = forced_dialect(dialect)
    has_thoughts = dialect is not None and dialect.thought[1] in template.source
    writes = request.is_forced or "tool_calls" in template.source
    if request.has_tools and writes and not (dialect and dialect.has_calls):
        raise invalid("tools", f"the form of calls in the chat template of {name} is unknown")
    variables = _variables(request, template, name, has_thoughts=has_thoughts)
    messages = _messages(request.messages, template)
    form = call_form(template) if any("tool_calls" in one for one in messages) else dict
    text = _rendered([form(one) for one in messages], request, tokenizer, variables)
    for message in messages:
        role = message["role"]
        if role in _INSTRUCTIONS and message["content"].strip() not in text:
            why = f"the chat template of {name} leaves out a message of role {role!r}"
            raise invalid("messages", why)
    thought: Thought = "closed"
    if dialect is not None and has_thoughts:
        goes_on = messages[-1]["content"] if request.continue_final_message else None
        thought = thought_of(dialect, text, goes_on=goes_on)
    bos = bool(request.add_special_tokens)
    ids = served.encoded(text, "messages", add_special_tokens=bos)
    return Job(request, served, [ids], Chat(request, tokenizer, template, dialect, thought))


def _variables(
    request: ChatRequest, template: ChatTemplate, name: str, *, has_thoughts: bool
) -> dict[str, Any]:
    variables, more = request.for_template, request.chat_template_kwargs
    for field in variables.keys() - template.variables - {"reasoning_effort"}:
        raise invalid(field, f"not used by the chat template of {name}")
    for field in more.keys() & (_SET_OTHERWISE | variables.keys()):
        raise invalid("chat_template_kwargs", f"{field} is set elsewhere")
    thinks = request.thinking if request.enable_thinking is None else request.enable_thinking
    if thinks is None:
        return {**variables, **more}
    names = template.variables & _THINKING
    if not names and thinks != has_thoughts:
        raise invalid("thinking", f"{thinks}: the chat template of {name} has no choice")
    for field in names & more.keys():
        if more[field] != thinks:
            why = f"{thinks}: expected {more[field]}, as chat_template_kwargs.{field}"
            raise invalid("thinking", why)
    return {**variables, **dict.fromkeys(names, thinks), **more}


def _rendered(
    messages: Sequence[Mapping[str, Any]],
    request: ChatRequest,
    tokenizer: Tokenizer,
    variables: Mapping[str, Any],
) -> str:
    goes_on, opens = request.continue_final_message, request.add_generation_prompt

    try:
        return tokenizer.apply_chat(
            messages,
            add_generation_prompt=not goes_on if opens is None else opens,
            continue_final_message=goes_on,
            **variables,
        )
    except (DataError, SettingError) as error:
        raise ApiError(400, str(error), param="messages") from None


def _messages(messages: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    result = [message.plain() for message in messages]
    if "developer" not in template.source:
        for message in result:
            if message["role"] == "developer":
                message["role"] = "system"
    leading = list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, result))
    if len(leading) > 1:
        texts = [message["content"] for message in leading if message["content"]]
        result = [leading[0] | {"content": "\n\n".join(texts)}, *result[len(leading) :]]
    return result
