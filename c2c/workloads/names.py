"""Column names: matches up to case and spelling, and names that resemble a field's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["alike", "like_fields", "plain_name"]

_LENGTH = r"tok|len|size"
_PROMPT = r"prompt|input|prefill|context|request|query|question"
_OUTPUT = r"output|decode|completion|generat|response|answer|reply"
_LOOKS: Mapping[str, str] = {
    "prompt_tokens": rf"({_PROMPT}).*({_LENGTH})|({_LENGTH}).*({_PROMPT})|^({_PROMPT})$|^isl$",
    "output_tokens": rf"({_OUTPUT}).*({_LENGTH})|({_LENGTH}).*({_OUTPUT})|^({_OUTPUT})$|^osl$",
    "model": r"model|llm|^service(id|name)?$|deployment|endpoint|adapter|^lora(id|name)?$",
    "arrival_s": r"arriv|timestamp|^time(m?s)?$|^date(time)?$|start(ed)?(at|time)|created",
}
# A count or a duration is no model's name; a rate or a limit is no length.
_UNLIKE: Mapping[str, str] = {
    "model": rf"time|latency|count|^num|{_LENGTH}|rate|price|cost|byte",
    "prompt_tokens": r"(?<!gene)rate|time|latency|persec|cached|limit|max",
    "output_tokens": r"(?<!gene)rate|time|latency|persec|limit|max",
}


def plain_name(name: str) -> str:
    """Return a name in lower case, with letters and digits only."""
    return re.sub(r"[\W_]", "", name.casefold())


def alike(name: str, present: Iterable[str]) -> list[str]:
    """Return the columns of this exact name; if none, those equal up to case and spelling."""
    present = list(present)
    plain = plain_name(name)
    return [c for c in present if c == name] or [c for c in present if plain_name(c) == plain]


def like_fields(columns: Iterable[str], fields: Iterable[str]) -> dict[str, str]:
    """Return field -> first column whose name resembles the field's."""
    found: dict[str, str] = {}
    columns = list(columns)
    for field in fields:
        for column in columns:
            plain, unlike = plain_name(column), _UNLIKE.get(field)
            likely = re.search(_LOOKS[field], plain) and column not in found.values()
            if likely and not (unlike and re.search(unlike, plain)):
                found[field] = column
                break
    return found
