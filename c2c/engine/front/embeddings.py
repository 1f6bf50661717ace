"""Embeddings of texts, in OpenAI's form."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from c2c.engine.front.choices import Choice
from c2c.engine.front.failures import invalid
from c2c.engine.front.protocol import CompletionRequest, Prompts

__all__ = ["EmbeddingsRequest"]


class EmbeddingsRequest(BaseModel):
    """Body of /v1/embeddings."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: None = None
    user: str | None = None

    def completion(self) -> CompletionRequest:
        """Return a one-token completion whose scores have the embedding."""
        draw: dict[str, Any] = {"max_tokens": 1, "logprobs": 0, "temperature": 0.0}
        return CompletionRequest(model=self.model, prompt=self.input, **draw)

    def answer(self, choices: Sequence[Choice], tokens: int) -> dict[str, Any]:
        """Return the embeddings of the choices' prompts."""
        if not all(choice.embedding for choice in choices):
            why = "the setting linear of this engine gives no embeddings, expected staged"
            raise invalid("model", f"{self.model}: {why}")
        rows = [
            {"object": "embedding", "index": choice.index, "embedding": self._shown(choice)}
            for choice in choices
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": rows, "model": self.model, "usage": usage}

    def _shown(self, choice: Choice) -> str | list[float]:
        if self.encoding_format == "base64":
            return base64.b64encode(choice.embedding).decode()
        return list(memoryview(choice.embedding).cast("f"))
