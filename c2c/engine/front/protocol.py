"""Supported request fields; `fields.toml` has the others, too."""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictFloat,
    StrictInt,
    model_validator,
)

from c2c.transformer.running.sampling_stages import BIASED, SCORED

__all__ = [
    "FIELDS", "OUR_NAMES", "ChatRequest", "CompletionRequest", "Message", "Prompts", "SharedFields",
    "StreamOptions", "Token",
]  # fmt: skip

_MOST_VALUES = 1 << 17  # of a schema or of all tools; their check takes seconds a million
_MOST_STOPS = 64
_GREEDY = 1e-9  # for top_p=0
_MOST_CHOICES, _MOST_PROMPTS = 128, 2048
_First = Field(fail_fast=True)  # reports the first fault, not a million
_Several = Field(min_length=1, max_length=_MOST_PROMPTS)

Token = Annotated[StrictInt, Field(ge=0)]
TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[StrictFloat, Field(ge=-100, le=100)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Grammar = Annotated[str, Field(min_length=1, max_length=1 << 16)]
Tokens = Annotated[list[Token], _First, Field(min_length=1)]
Prompts = (
    str
    | Tokens
    | Annotated[list[str], _First, _Several]
    | Annotated[list[Tokens], _First, _Several]
)
Choices = Annotated[list[Grammar], _First, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1)]
Scores = Annotated[int, Field(ge=0, le=SCORED)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]

_FILE = resources.files("c2c.engine.front") / "fields.toml"
FIELDS: Final[Mapping[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
"""Tables of fields.toml."""

OUR_NAMES: Final[Mapping[str, str]] = FIELDS["as"]
"""Fields of other APIs, and the fields here that do the same."""


def _bounded(value: Any) -> Any:
    budget, inner = _MOST_VALUES, [value]
    while inner:
        one = inner.pop()
        if isinstance(one, dict | list):
            budget -= len(one)
            if budget < 0:
                raise ValueError(f"expected at most {_MOST_VALUES} values")
            inner += one.values() if isinstance(one, dict) else one
    return value


_Bounded = BeforeValidator(_bounded)
Schema = Annotated[str | dict[str, JsonValue] | None, _Bounded]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # no effect: chunks are not padded
    continuous_usage_stats: bool = False


class JsonSchema(BaseModel):
    """JSON schema of `response_format`; name and description are ignored."""

    model_config = ConfigDict(extra="allow")

    schema_: Annotated[dict[str, JsonValue] | None, _Bounded] = Field(None, alias="schema")


class ResponseFormat(BaseModel):
    """Structure of an answer, by OpenAI's names."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """Structure of an answer, by vLLM's names."""

    model_config = ConfigDict(extra="forbid")

    json_: Schema = Field(None, alias="json")
    json_object: bool | None = None
    regex: Grammar | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    effects = FIELDS["both"] | FIELDS["chat" if issubclass(model, ChatRequest) else "text"]
    for name, field in schema["properties"].items():
        field["description"] = effects[name]


class SharedFields(BaseModel):
    """Fields of chat and text completions."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, json_schema_extra=_describe)

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: Share = 1.0
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    min_p: Share = 0.0
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=_MOST_STOPS)] | None = None
    max_tokens: Count | None = None
    stop_token_ids: list[Token] = Field([], max_length=BIASED)
    include_stop_str_in_output: bool = False
    min_tokens: int = Field(0, ge=0)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[TokenKey, Bias] = Field({}, max_length=BIASED)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    response_format: ResponseFormat | None = None
    guided_json: Schema = None
    guided_json_object: bool | None = None
    guided_regex: Grammar | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_whitespace_pattern: Grammar | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_our_names(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        result = {name: value for name, value in fields.items() if value is not None}
        for name in result.keys() & OUR_NAMES.keys():
            ours, value = OUR_NAMES[name], result.pop(name)
            is_free = ours == "max_tokens" and value == -1  # llama.cpp's: no limit
            if not is_free and result.setdefault(ours, value) != value:
                raise ValueError(f"{name}: {value}, expected {result[ours]}, as {ours}")
        form = result.get("format")  # Ollama's
        if form == "json" or isinstance(form, dict):
            schema = {} if form == "json" else {"json_schema": {"schema": form}}
            kind = "json_schema" if schema else "json_object"
            del result["format"]
            result.setdefault("response_format", {"type": kind} | schema)
        if isinstance(thinking := result.get("thinking"), dict):  # Anthropic's
            result["thinking"] = thinking.get("type") != "disabled"
        return result

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def sampling(self, choice: int) -> dict[str, Any]:
        """Return a choice's fields of `Draws`; random without a seed."""
        seed = secrets.randbits(64) if self.seed is None else self.seed
        return {
            "temperature": self.temperature,
            "seed": (seed + choice) % 2**64,
            "top_k": max(0, self.top_k),
            "top_p": max(self.top_p, _GREEDY),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": {int(token): bias for token, bias in self.logit_bias.items()},
        }

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield fields that contradict others, and the reasons."""
        yield from ()


class CompletionRequest(SharedFields):
    """Body of /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0)
    echo: bool = False
    best_of: Count | None = None
    logprobs: Scores | None = None

    @property
    def scores(self) -> int | None:
        """Likeliest tokens to report; None: no log-probabilities."""
        return self.logprobs

    @property
    def most_tokens(self) -> int | None:
        """Limit of new tokens, if sent."""
        return self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """Prompts, each a text or tokens."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or isinstance(prompt[0], int):
            return [prompt]
        return list(prompt)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield fields that contradict others, and the reasons."""
        if self.max_tokens == 0 and not self.echo:
            yield "max_tokens", "0: expected at least 1 without echo"
        if self.best_of not in (None, self.n):
            yield (
                "best_of",
                f"{self.best_of}: expected {self.n}, as n; ranking of choices is not supported",
            )


class Part(BaseModel):
    """Part of a message, text only."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Chat message; further fields go to the template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | Annotated[list[Part], _First] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the template's input: joined texts, arguments as objects."""
        result = {name: value for name, value in self.model_dump().items() if value is not None}
        if isinstance(self.content, list):
            result["content"] = "".join(part.text for part in self.content)
        result.setdefault("content", "")
        for name in ("tool_calls", "function_call"):  # empty ones of clients that send all fields
            if result.get(name) in ([], {}):
                del result[name]
        calls = result.get("tool_calls")
        calls = (
            [c.get("function") for c in calls if isinstance(c, dict)]
            if isinstance(calls, list)
            else []
        )
        for call in (*calls, result.get("function_call")):
            if isinstance(call, dict):
                call["arguments"] = _object(call.get("arguments"))
        return result


def _object(arguments: Any) -> Any:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    try:
        value = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class Function(BaseModel):
    """Callable function; further fields go to the template."""

    model_config = ConfigDict(extra="allow")

    name: str


class Tool(BaseModel):
    """Tool of a chat."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class Named(BaseModel):
    """A function by name."""

    name: str


class NamedTool(BaseModel):
    """Function that `tool_choice` forces."""

    type: Literal["function"]
    function: Named


class _Allowed(BaseModel):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(BaseModel):
    """Functions that `tool_choice` allows."""

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class ChatRequest(SharedFields):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], _First, Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Scores | None = None
    tools: Annotated[list[Tool], _First, _Bounded] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools = "auto"
    parallel_tool_calls: bool = True
    documents: list[dict[str, JsonValue]] | None = None
    reasoning_effort: str | None = None
    thinking: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def scores(self) -> int | None:
        """Likeliest tokens to report; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """Limit of new tokens, if sent."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def _choice(self) -> tuple[str, set[str] | None]:
        if isinstance(self.tool_choice, NamedTool):
            return "named", {self.tool_choice.function.name}
        if isinstance(self.tool_choice, AllowedTools):
            allowed = self.tool_choice.allowed_tools
            return allowed.mode, {tool.function.name for tool in allowed.tools}
        return self.tool_choice, None

    @property
    def is_forced(self) -> bool:
        """True if the answer must be tool calls."""
        return self._choice[0] in ("required", "named")

    @property
    def may_have_several(self) -> bool:
        """True if several forced calls are allowed."""
        return self._choice[0] == "required" and self.parallel_tool_calls

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """Functions that may be called."""
        mode, names = self._choice
        functions = [tool.function.model_dump() for tool in self.tools or [] if mode != "none"]
        return [tool for tool in functions if names is None or tool["name"] in names]

    @property
    def has_tools(self) -> bool:
        """True if the template gets tools."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def for_template(self) -> dict[str, Any]:
        """Template variables from fields of some templates."""
        tools = self.tools if self.tools and self.has_tools else []
        if isinstance(self.tool_choice, AllowedTools):
            names = self._choice[1] or ()
            tools = [tool for tool in tools if tool.function.name in names]
        variables = {
            "tools": [tool.model_dump() for tool in tools],
            "documents": self.documents,
            "reasoning_effort": self.reasoning_effort,
        }
        return {name: value for name, value in variables.items() if value}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield fields that contradict others, and the reasons."""
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            yield "max_tokens", f"{both[0]}: expected {both[1]}, as max_completion_tokens, or none"
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs", f"{self.top_logprobs}: expected logprobs=true with it"
        names = self._choice[1] or set()
        if (self.is_forced or names) and not self.callable_tools:
            yield "tool_choice", "expected a function in tools"
        if None is not self.thinking != self.enable_thinking is not None:
            yield (
                "thinking",
                f"{self.thinking}: expected {self.enable_thinking}, as enable_thinking",
            )
        if self.continue_final_message and self.add_generation_prompt:
            yield "add_generation_prompt", "expected false with continue_final_message=true"
