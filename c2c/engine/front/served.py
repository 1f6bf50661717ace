"""The models as the front knows them: tokenizers, context, and prompts as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from c2c.engine.front.failures import ApiError
from c2c.engine.messages import ModelInfo
from c2c.errors import DataError, SettingError
from c2c.transformer import describe
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Served", "served_models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model that is served.

    Attributes:
      info: what the engine says of it.
      tokenizer: None where it has none.
      eos: tokens that end a text.
      longest: characters that a token stands for at most; None where there is no such number.
    """

    info: ModelInfo
    tokenizer: Tokenizer | None
    eos: frozenset[int]
    longest: int | None

    def encoded(self, prompt: str | Sequence[int], param: str = "prompt") -> tuple[int, ...]:
        """Return a prompt's tokens.

        Raises:
          ApiError: it is empty, too long, or not of this model's vocabulary.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ApiError(
                    400, f"{self.info.name} has no tokenizer: send token ids", param=param
                )
            self._check_text(prompt, param)
            prompt = self.tokenizer.encode(prompt)
        if not prompt:
            raise ApiError(400, "the prompt is empty", param=param)
        for token in prompt:
            if token >= self.info.vocab:
                raise ApiError(400, f"token {token} is not among {self.info.vocab}", param=param)
        self._check_length(len(prompt), param)
        return tuple(prompt)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return a chat's tokens, by the checkpoint's template.

        Raises:
          ApiError: there is none, or it refuses the messages.
        """
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise ApiError(400, f"{self.info.name} has no chat template", param="model")
        try:
            text = self.tokenizer.apply_chat(messages)
        except (DataError, SettingError) as error:
            raise ApiError(400, str(error), param="messages") from None
        self._check_text(text, "messages")
        return self.encoded(self.tokenizer.encode(text, add_special_tokens=False), "messages")

    def room(self, ids: Sequence[int], asked: int | None, default: int | None) -> int:
        """Return how many new tokens there may be.

        Raises:
          ApiError: more were asked for than the context has room for.
        """
        left = self.info.context - len(ids)
        if asked is not None and asked > left:
            raise ApiError(
                400,
                f"the context is {self.info.context} tokens: {len(ids)} of the prompt and {asked} "
                "new ones are more",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return asked if asked is not None else min(left, left if default is None else default)

    def _check_text(self, text: str, param: str) -> None:
        """Refuse what cannot fit before it is encoded, which takes seconds a megabyte."""
        if self.longest is not None:
            self._check_length(-(-len(text) // self.longest), param)

    def _check_length(self, tokens: int, param: str) -> None:
        if tokens >= self.info.context:
            raise ApiError(
                400,
                f"the context is {self.info.context} tokens, the prompt is longer",
                param=param,
                code="context_length_exceeded",
            )


def served_models(infos: Sequence[ModelInfo]) -> dict[str, Served]:
    """Return the models that are served, with their tokenizers."""
    found = {}
    for info in infos:
        if info.failed:
            continue
        described = describe(Path(info.path))
        tokenizer = described.tokenizer
        longest = None if tokenizer is None else tokenizer.spelling.longest()
        found[info.name] = Served(
            info=info, tokenizer=tokenizer, eos=frozenset(described.eos_ids), longest=longest
        )
    return found
