"""Endpoints without generation: `/tokenize`, `/detokenize` and `/version`."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from c2c.engine.front.conversions import chat_of
from c2c.engine.front.failures import invalid
from c2c.engine.front.job import chat_job
from c2c.engine.front.parameters import check
from c2c.engine.front.protocol import Message, Token
from c2c.engine.front.served_model import Served

__all__ = ["Texts"]


class TokenizeRequest(BaseModel):
    """Body of /tokenize: a text or a chat."""

    model_config = ConfigDict(extra="allow")

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either prompt or messages")
        return self


class DetokenizeRequest(BaseModel):
    """Body of /detokenize."""

    model: str
    tokens: Annotated[list[Token], Field(fail_fast=True)]


class Texts:
    """Endpoints in vLLM's form."""

    def __init__(self, find: Callable[[str], Served]) -> None:
        """Create the endpoints; `find` returns a served model."""
        self._find = find

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """Return the tokens that a completion would compute."""
        served = self._find(body.model)
        ids = await asyncio.to_thread(_ids, served, body)
        names = None
        if body.return_token_strs and served.tokenizer is not None:
            names = [served.tokenizer.spelling.name(token) for token in ids]
        return {
            "count": len(ids), "max_model_len": served.info.context, "tokens": ids,
            "token_strs": names,
        }  # fmt: skip

    async def detokenize(self, body: DetokenizeRequest) -> dict[str, str]:
        """Return the text of tokens, special tokens included."""
        served = self._find(body.model)
        served.check_tokens(body.tokens, "tokens")
        if served.tokenizer is None:
            raise invalid("model", f"{body.model} has no tokenizer")
        return {"prompt": await asyncio.to_thread(served.tokenizer.decode, body.tokens)}

    async def version(self) -> dict[str, str]:
        """Return the version of c2c."""
        return {"version": importlib.metadata.version("c2c")}


def _ids(served: Served, body: TokenizeRequest) -> tuple[int, ...]:
    if body.messages is None:
        bos = body.add_special_tokens is not False
        return served.encoded(body.prompt or "", add_special_tokens=bos)
    fields = body.model_dump(exclude_none=True, exclude={"prompt", "return_token_strs"})
    chat = chat_of(fields)
    check(chat)
    return chat_job(served, chat).prompts[0]
