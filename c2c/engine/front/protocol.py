"""What clients may send: OpenAI's fields, those that this engine knows; others are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from c2c.transformer.drawing import SCORED

__all__ = ["ChatRequest", "CompletionRequest", "ManageRequest", "Message", "SharedFields"]

Token = Annotated[StrictInt, Field(ge=0)]
_MOST_STOPS = 4
_MOST_CHOICES = 8


class StreamOptions(BaseModel):
    """Of a stream."""

    include_usage: bool = False


class SharedFields(BaseModel):
    """Fields of both kinds of completions."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)  # 0 and -1: all
    seed: int | None = Field(None, ge=0, lt=2**32)
    stop: (
        Annotated[str, Field(min_length=1, max_length=1000)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=1000)]],
            Field(max_length=_MOST_STOPS),
        ]
        | None
    ) = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """What is null is as if it were not there: clients send all their fields."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def unknown(self) -> list[str]:
        """Fields that were sent and mean nothing here."""
        return sorted(self.model_extra or {})


class CompletionRequest(SharedFields):
    """Of /v1/completions."""

    prompt: (
        str
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=_MOST_CHOICES)]
        | Annotated[
            list[Annotated[list[Token], Field(min_length=1)]],
            Field(min_length=1, max_length=_MOST_CHOICES),
        ]
    )
    echo: Literal[False] = False
    logprobs: int | None = Field(None, ge=0, le=SCORED)

    @property
    def scores(self) -> int | None:
        """How many of the likeliest tokens are told; None: no log-probabilities."""
        return self.logprobs

    @property
    def most_tokens(self) -> int | None:
        """New tokens at most, as sent."""
        return self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text, or tokens."""
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return list(given)


class Part(BaseModel):
    """Of a message: text, since models here see nothing else."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Of a chat; further fields go to the checkpoint's template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[Part] | None = None

    def plain(self) -> dict[str, Any]:
        """Return what a template sees: text parts joined."""
        found = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            found["content"] = "".join(part.text for part in self.content)
        return found


class ChatRequest(SharedFields):
    """Of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=SCORED)

    @property
    def scores(self) -> int | None:
        """How many of the likeliest tokens are told; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """New tokens at most, as sent."""
        return self.max_completion_tokens or self.max_tokens


class ManageRequest(BaseModel):
    """Of /admin/load, unload, pin and unpin."""

    model: str
