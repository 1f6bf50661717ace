"""Request fields that are not supported: refused by name, or without effect, by `fields.toml`.

`table` prints all fields for docs/engine/api.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from c2c.engine.front.failures import invalid
from c2c.engine.front.protocol import FIELDS, OUR_NAMES, ChatRequest, CompletionRequest

__all__ = ["NO_EFFECT", "REFUSED", "check", "table", "unknown"]

_MOST_SHOWN = 60  # characters of a value that is refused

REFUSED: Final[Mapping[str, list[Any]]] = FIELDS["refused"]
"""Fields that are not supported, and their values that have no effect and are accepted."""

NO_EFFECT: Final = frozenset(FIELDS["no_effect"]["fields"])
"""Fields without effect on an answer."""

_INSTEAD: Final[Mapping[str, str]] = FIELDS["instead"]


def check(asked: ChatRequest | CompletionRequest) -> None:
    """Check that every field of a request is supported.

    Raises:
      ApiError: a field or value is not supported, or two fields contradict each other.
    """
    for param, message in asked.conflicts():
        raise invalid(param, message)
    other = CompletionRequest if isinstance(asked, ChatRequest) else ChatRequest
    for name, value in (asked.model_extra or {}).items():
        if name in REFUSED or (name.startswith("guided_") and name not in NO_EFFECT):
            fine = REFUSED.get(name, [])
            if value not in fine:
                hint = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise invalid(name, f"{_shown(value)} {_allowed(fine)}{hint}")
        elif name in other.model_fields and value and value != other.model_fields[name].default:
            raise invalid(name, f"{_shown(value)}: not a field of this endpoint")


def unknown(asked: ChatRequest | CompletionRequest) -> list[str]:
    """Return the sent fields that are neither supported, refused nor known to be without effect."""
    known = {*REFUSED, *NO_EFFECT, *ChatRequest.model_fields, *CompletionRequest.model_fields}
    return sorted((asked.model_extra or {}).keys() - known)


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table of all fields."""
    yield "| field | of | effect |"
    yield "| --- | --- | --- |"
    rows: dict[tuple[str, str], list[str]] = {}
    for kind in ("text", "chat"):
        for pair in (FIELDS["both"] | FIELDS[kind]).items():
            rows.setdefault(pair, []).append(kind)
    for (name, description), kinds in sorted(rows.items()):
        yield f"| `{name}` | {', '.join(kinds)} | {description} |"
    for name, ours in sorted(OUR_NAMES.items()):
        yield f"| `{name}` | text, chat | as `{ours}` |"
    unbuilt = [
        f"`{name}`"
        + (f" ({' or '.join(f'`{_shown(v)}`' for v in fine)})" if fine else "")
        + (f": `{_INSTEAD[name]}`" if name in _INSTEAD else "")
        for name, fine in sorted(REFUSED.items())
    ]
    yield (
        f"| {', '.join(unbuilt)} | text, chat | refused, as not supported; values in brackets have "
        "no effect and are accepted, and after a colon is the field to use instead |"
    )
    none = ", ".join(f"`{name}`" for name in sorted(NO_EFFECT))
    yield f"| {none} | text, chat | no effect |"


def _allowed(fine: Sequence[Any]) -> str:
    if not fine:
        return "is not supported, expected none"
    return f"is not supported, expected none or {' or '.join(map(_shown, fine))}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
