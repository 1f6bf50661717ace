"""Anthropic's messages and OpenAI's responses as chats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from c2c.engine.front.failures import ApiError, invalid
from c2c.engine.front.protocol import ChatRequest

__all__ = ["MessagesRequest", "ResponsesRequest", "chat_of"]

type Json = dict[str, Any]

_NOT_SHOWN = {"n", "logprobs", "top_logprobs", "return_token_ids", "stream_options"}
_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")


def chat_of(fields: dict[str, Any]) -> ChatRequest:
    """Return a chat from its fields."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(errors) from None


class _Converted(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(description="name of a served model")
    stream: StrictBool = False
    temperature: float | None = None
    top_p: float | None = None

    def _same(self, *others: str) -> dict[str, Any]:
        more = self.model_extra or {}
        for name in sorted(more.keys() & _NOT_SHOWN):
            if more[name]:
                raise _refused(name, more[name], "none in this API")
        names = {"model", "stream", "temperature", "top_p", *others, *(more.keys() - _NOT_SHOWN)}
        return {name: getattr(self, name) for name in names}

    def _chat(self, fields: Json, converted: Json) -> ChatRequest:
        for name, value in converted.items():
            if value is None or fields.get(name) in (None, value):
                continue
            raise invalid(name, f"{ascii(fields[name])[:60]}: not a field of this endpoint")
        return chat_of(fields | {n: v for n, v in converted.items() if v is not None})


class MessagesRequest(_Converted):
    """Body of /v1/messages and /v1/messages/count_tokens."""

    messages: list[Json] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    stop_sequences: list[str] | None = None
    output_config: Json | None = None
    thinking: Json | None = None

    def chat(self) -> ChatRequest:
        """Return the chat; thinking is the template's."""
        fields = self._same("max_tokens", "stop_sequences")
        for name in ("context_management", "metadata", "service_tier", "container"):
            fields.pop(name, None)
        system = [{"role": "system", "content": _text(self.system, "system")}] * bool(self.system)
        turns = (turn for message in self.messages for turn in _turns(message))
        choice = self.tool_choice or {"type": "auto"}
        modes: dict[Any, Any] = {
            "auto": "auto", "any": "required", "none": "none", "tool": _named(choice.get("name")),
        }  # fmt: skip
        if choice.get("type") not in modes:
            raise _refused("tool_choice", choice.get("type"), "auto, any, tool or none")
        messages = [*system, *turns]
        match messages[-1:]:
            case [{"role": "assistant", "content": str(text), **more}] if text and not more:
                fields.setdefault("continue_final_message", True)
        converted = {
            "messages": messages, "tool_choice": modes[choice["type"]],
            "tools": [_tool(tool, ("custom", None), "input_schema") for tool in self.tools or ()],
            "parallel_tool_calls": not choice.get("disable_parallel_tool_use", False),
        }  # fmt: skip
        if self.thinking and self.thinking.get("type") in ("enabled", "disabled"):
            thinks = self.thinking["type"] == "enabled"
            names = ("enable_thinking", "thinking")
            converted["chat_template_kwargs"] = dict.fromkeys(names, thinks)
        config = self.output_config or {}
        converted["reasoning_effort"] = config.get("effort")
        return self._chat(fields, converted | _form(config.get("format"), "output_config"))


class ResponsesRequest(_Converted):
    """Body of /v1/responses."""

    input: str | list[Json]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: list[Json] | None = None
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    reasoning: Json | None = None
    text: Json | None = None
    background: Literal[False] | None = None
    conversation: None = None
    previous_response_id: None = None
    prompt: None = None
    truncation: Literal["disabled"] | None = None

    def chat(self) -> ChatRequest:
        """Return the request as a chat."""
        fields = self._same("parallel_tool_calls")
        fields.pop("max_tool_calls", None)
        if "message.output_text.logprobs" in (fields.pop("include", None) or ()):
            raise _refused("include", "message.output_text.logprobs", "none in this API")
        system = [{"role": "system", "content": self.instructions}] * bool(self.instructions)
        items = self.input
        messages = [{"role": "user", "content": items}] if isinstance(items, str) else _items(items)
        text = self.text or {}
        converted = {
            "messages": [*system, *messages], "max_tokens": self.max_output_tokens,
            "tools": [_tool(tool, ("function",), "parameters") for tool in self.tools or ()],
            "tool_choice": _choice(self.tool_choice),
            "reasoning_effort": (self.reasoning or {}).get("effort"),
            "verbosity": text.get("verbosity"),
        }  # fmt: skip
        return self._chat(fields, converted | _form(text.get("format"), "text"))

    def shown(self) -> dict[str, Any]:
        """Return the fields that an answer repeats."""
        names = (
            "model", "instructions", "max_output_tokens", "parallel_tool_calls", "temperature",
            "top_p", "tool_choice", "reasoning",
        )  # fmt: skip
        more = {"tools": self.tools or [], "text": self.text or {"format": {"type": "text"}}}
        return {name: getattr(self, name) for name in names} | more | {"truncation": "disabled"}


def _refused(field: str, value: Any, allowed: str) -> ApiError:
    return invalid(field, f"{ascii(value)[:60]}, expected {allowed}")


def _text(content: Any, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") not in _TEXTS:
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise _refused(field, kind, "content of type text")
    return "".join(str(part.get("text", "")) for part in parts)


def _named(name: Any) -> Json:
    return {"type": "function", "function": {"name": name}}


def _tool(tool: Json, kinds: tuple[str | None, ...], schema: str) -> dict[str, Any]:
    if tool.get("type") not in kinds:
        raise _refused("tools", tool.get("type"), "functions of the client alone")
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": function | {"parameters": tool.get(schema) or {}}}


def _form(form: Any, field: str) -> dict[str, Any]:
    if form is None:
        return {}
    if not isinstance(form, Mapping):
        raise _refused(field, form, "a format as an object")
    if form.get("type") != "json_schema":
        return {"response_format": dict(form)}
    fields = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **fields}}}


def _call(number: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": number, **_named(name), "function": {"name": name, "arguments": arguments}}


def _turns(message: Json) -> Iterable[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    texts, thoughts, calls = [], [], []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_result":
            answer = _text(block.get("content"), "messages")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": answer}
        elif kind == "tool_use":
            calls.append(_call(block.get("id"), block.get("name"), block.get("input")))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            texts.append(_text([block], "messages"))
    more: dict[str, Any] = {"reasoning_content": "".join(thoughts)} if thoughts else {}
    more |= {"tool_calls": calls} if calls else {}
    if texts or more:
        yield {"role": role, "content": "".join(texts), **more}


def _items(items: Iterable[Json]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []

    def model() -> dict[str, Any]:
        if not result or result[-1]["role"] != "assistant":
            result.append({"role": "assistant", "content": ""})
        return result[-1]

    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "assistant":
            model()["content"] += _text(item.get("content"), "input")
        elif kind == "message":
            content = _text(item.get("content"), "input")
            result.append({"role": item.get("role"), "content": content})
        elif kind == "function_call":
            call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
            model().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            answer = _text(item.get("output"), "input")
            result.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": answer})
        elif kind == "reasoning":
            thought = _text(item.get("content"), "input")
            if thought:
                result.append({"role": "assistant", "content": "", "reasoning_content": thought})
        else:
            raise _refused(
                "input", kind, "message, function_call, function_call_output or reasoning"
            )
    return result


def _choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function":
        return _named(choice.get("name"))
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [_named(tool.get("name")) for tool in tools] if isinstance(tools, list) else tools
        allowance = {"mode": choice.get("mode", "auto"), "tools": named}
        return {"type": "allowed_tools", "allowed_tools": allowance}
    raise _refused("tool_choice", choice.get("type"), "function or allowed_tools")
