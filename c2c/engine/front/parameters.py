"""Request fields: supported, refused by name, or without effect.

Supported fields are those of the request models (`c2c.engine.front.protocol`), with descriptions.
This module has the other fields of OpenAI's and vLLM's schemas, and those of other APIs that would
change an answer. `check` refuses by these tables,
`table` prints them for docs/engine/api.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from c2c.engine.front.failures import ApiError
from c2c.engine.front.protocol import OUR_NAMES, ChatRequest, CompletionRequest

__all__ = ["INSTEAD", "NO_EFFECT", "REFUSED", "check", "table", "unknown"]

_MOST_SHOWN = 60  # characters of a value that is refused

REFUSED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType({
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "detokenize": (True,),
    "do_sample": (True,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "format": ("",),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_path": (),
    "max_length": (),
    "mirostat": (0,),
    "modalities": (["text"],),
    "num_beams": (1,),
    "options": ({},),
    "prediction": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "structural_tag": (),
    "suffix": ("",),
    "system": ("",),
    "tfs_z": (1,),
    "thinking_token_budget": (),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "typ_p": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
    "xtc_probability": (0,),
})  # fmt: skip
"""Fields that are not supported, and their values that have no effect and are accepted."""

INSTEAD: Final[Mapping[str, str]] = MappingProxyType({
    "do_sample": "temperature", "format": "response_format", "max_length": "max_tokens",
    "system": "messages",
})  # fmt: skip
"""Refused fields of other APIs, and the fields here that do the same."""

NO_EFFECT: Final = frozenset({
    "cache_salt", "guided_decoding_backend", "media_io_kwargs", "metadata",
    "mm_processor_kwargs", "prompt_cache_key", "prompt_cache_retention",
    "request_id", "safety_identifier", "service_tier", "spaces_between_special_tokens",
    "store", "user",
})  # fmt: skip
"""Fields without effect on an answer."""


def check(asked: ChatRequest | CompletionRequest) -> None:
    """Check that every field of a request is supported.

    Raises:
      ApiError: a field or value is not supported, or two fields contradict each other.
    """
    for param, message in asked.conflicts():
        raise ApiError(400, f"{param}: {message}", param=param)
    other = CompletionRequest if isinstance(asked, ChatRequest) else ChatRequest
    for name, value in (asked.model_extra or {}).items():
        if name in REFUSED or (name.startswith("guided_") and name not in NO_EFFECT):
            fine = REFUSED.get(name, ())
            if value not in fine:
                hint = f"; use {INSTEAD[name]}" if name in INSTEAD else ""
                message = f"{name}: {_shown(value)} {_allowed(fine)}{hint}"
                raise ApiError(400, message, param=name)
        elif name in other.model_fields and value and value != other.model_fields[name].default:
            raise ApiError(
                400, f"{name}: {_shown(value)}: not a field of this endpoint", param=name
            )


def unknown(asked: ChatRequest | CompletionRequest) -> list[str]:
    """Return the sent fields that are neither supported, refused nor known to be without effect."""
    known = {*REFUSED, *NO_EFFECT, *ChatRequest.model_fields, *CompletionRequest.model_fields}
    return sorted((asked.model_extra or {}).keys() - known)


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table of all fields."""
    yield "| field | of | effect |"
    yield "| --- | --- | --- |"
    rows: dict[tuple[str, str], list[str]] = {}
    for kind, model in (("text", CompletionRequest), ("chat", ChatRequest)):
        for name, field in model.model_fields.items():
            rows.setdefault((name, field.description or ""), []).append(kind)
    for (name, description), kinds in sorted(rows.items()):
        yield f"| `{name}` | {', '.join(kinds)} | {description} |"
    for name, ours in sorted(OUR_NAMES.items()):
        yield f"| `{name}` | text, chat | as `{ours}` |"
    unbuilt = [
        f"`{name}`"
        + (f" ({' or '.join(f'`{_shown(v)}`' for v in fine)})" if fine else "")
        + (f": `{INSTEAD[name]}`" if name in INSTEAD else "")
        for name, fine in sorted(REFUSED.items())
    ]
    yield (
        f"| {', '.join(unbuilt)} | text, chat | refused, as not supported; values in brackets have "
        "no effect and are accepted, and after a colon is the field to use instead |"
    )
    none = ", ".join(f"`{name}`" for name in sorted(NO_EFFECT))
    yield f"| {none} | text, chat | no effect |"


def _allowed(fine: tuple[Any, ...]) -> str:
    if not fine:
        return "is not supported, expected none"
    return f"is not supported, expected none or {' or '.join(map(_shown, fine))}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
