"""Unsupported request fields, refused or without effect by `fields.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from c2c.engine.front.failures import invalid
from c2c.engine.front.protocol import FIELDS, ChatRequest, CompletionRequest

__all__ = ["NO_EFFECT", "REFUSED", "check", "unknown"]

_MOST_SHOWN = 60  # characters of a value that is refused

REFUSED: Final[Mapping[str, list[Any]]] = FIELDS["refused"]
"""Fields that are not supported, and their values that have no effect and are accepted."""

NO_EFFECT: Final = frozenset(FIELDS["no_effect"]["fields"])
"""Fields without effect on an answer."""

_INSTEAD: Final[Mapping[str, str]] = FIELDS["instead"]


def check(request: ChatRequest | CompletionRequest) -> None:
    """Check a request's fields.

    Raises:
      ApiError: an unsupported field or value, or a contradiction.
    """
    for param, message in request.conflicts():
        raise invalid(param, message)
    other = CompletionRequest if isinstance(request, ChatRequest) else ChatRequest
    for name, value in (request.model_extra or {}).items():
        if name in REFUSED or (name.startswith("guided_") and name not in NO_EFFECT):
            fine = REFUSED.get(name, [])
            if value not in fine:
                hint = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
                allowed = " or ".join(["none", *map(_shown, fine)])
                raise invalid(name, f"{_shown(value)} is not supported, expected {allowed}{hint}")
        elif name in other.model_fields and value and value != other.model_fields[name].default:
            raise invalid(name, f"{_shown(value)}: not a field of this endpoint")


def unknown(request: ChatRequest | CompletionRequest) -> list[str]:
    """Return the sent fields that are not known."""
    names = {*REFUSED, *NO_EFFECT, *ChatRequest.model_fields, *CompletionRequest.model_fields}
    return sorted((request.model_extra or {}).keys() - names)


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
