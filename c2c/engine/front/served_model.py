"""Served models in the front."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from c2c.engine.front.failures import ApiError, invalid, without_paths
from c2c.engine.front.protocol import ChatRequest, CompletionRequest
from c2c.engine.messages import ModelInfo
from c2c.models import read_json_object
from c2c.transformer import describe
from c2c.transformer.text.tokenizer import Tokenizer

__all__ = ["Served", "served_models", "shown"]

_log = logging.getLogger("c2c.engine.front")
_MOST_CHARACTERS = 1 << 22  # of a text; more for a long context, 8 a token
_DRAWS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A served model.

    Attributes:
      eos: tokens that end a text.
      longest: a token's most characters; None: no limit.
      sampling: defaults, of generation_config.json.
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
                raise invalid(param, f"{self.info.name} has no tokenizer: send token ids")
            self._check_text(prompt, param)
            prompt = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        if not prompt:
            raise invalid(param, "expected at least one token")
        self.check_tokens(prompt, param)
        self._check_length(len(prompt), param)
        return tuple(prompt)

    def with_defaults[R: (ChatRequest, CompletionRequest)](self, request: R) -> R:
        """Return a request with the model's default sampling."""
        defaults = {n: v for n, v in self.sampling.items() if n not in request.model_fields_set}
        return request.model_copy(update=defaults)

    def room(self, ids: Sequence[int], max_tokens: int | None, default: int | None) -> int:
        """Return the limit of new tokens.

        Raises:
          ApiError: prompt and requested tokens exceed the context.
        """
        rest_tokens = self.info.context - len(ids)
        if max_tokens is not None and max_tokens > rest_tokens:
            why = f"{len(ids)} prompt tokens and {max_tokens} new ones exceed the context of"
            raise _too_long("max_tokens", f"{why} {self.info.context} tokens")
        return (
            max_tokens
            if max_tokens is not None
            else min(rest_tokens, rest_tokens if default is None else default)
        )

    def check_tokens(self, tokens: Iterable[int], param: str) -> None:
        """Raise ApiError if a token is unknown."""
        for token in tokens:
            if token >= self.info.vocab:
                raise invalid(param, f"token {token}: expected below {self.info.vocab}")

    def _check_text(self, text: str, param: str) -> None:
        """Raise ApiError for long texts before encoding: seconds a megabyte."""
        if len(text) > (most := max(_MOST_CHARACTERS, 8 * self.info.context)):
            raise invalid(param, f"expected at most {most} characters")
        if self.longest is not None:
            self._check_length(-(-len(text) // self.longest), param)

    def _check_length(self, tokens: int, param: str) -> None:
        if tokens >= self.info.context:
            raise _too_long(param, f"the prompt exceeds the context of {self.info.context} tokens")


def _too_long(field: str, why: str) -> ApiError:
    return invalid(field, why, code="context_length_exceeded")


def served_models(
    infos: Sequence[ModelInfo], *, has_own_sampling: bool = False
) -> dict[str, Served]:
    """Return the served models, with default sampling if asked for."""
    result = {}
    for info in infos:
        if info.failed:
            continue
        described = describe(Path(info.path))
        tokenizer = described.tokenizer
        longest = None if tokenizer is None else tokenizer.spelling.longest()
        result[info.name] = Served(
            info=info, tokenizer=tokenizer, eos=frozenset(described.eos_ids), longest=longest,
            sampling=_sampling(Path(info.path)) if has_own_sampling else {},
        )  # fmt: skip
    return result


def shown(info: ModelInfo) -> dict[str, Any]:
    """Return the description of a model for clients."""
    entry = {
        "id": info.name, "object": "model", "created": 0, "owned_by": "c2c",
        "max_model_len": info.context, "status": "failed" if info.failed else "ready",
    }  # fmt: skip
    return entry | ({"reason": without_paths(info.failed, info.path)} if info.failed else {})


def _sampling(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / "generation_config.json"
    config = read_json_object(file) if file.is_file() else {}
    settings = {name: config[name] for name in _DRAWS if config.get(name) is not None}
    if config.get("do_sample") is False:
        settings["temperature"] = 0.0
    result = {}
    for name, value in settings.items():
        try:
            request = CompletionRequest.model_validate({"model": "any", "prompt": [0], name: value})
        except ValidationError:
            _log.warning("%s: %s=%.40r is no valid sampling setting: ignored", file, name, value)
        else:
            result[name] = getattr(request, name)
    return result
