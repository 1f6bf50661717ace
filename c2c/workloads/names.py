"""Column names: matches, units, likely fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["UNITS", "alike", "likely", "unit_of"]

# Units of time: number per second, and words for it at the end of a column's name.
UNITS: Mapping[str, float] = {
    "s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "min": 1 / 60, "h": 1 / 3600, "d": 1 / 86_400
}  # fmt: skip
_WORDS: Mapping[str, str] = {
    "s": r"s|secs?|seconds?",
    "ms": r"ms|msecs?|millis?|milliseconds?",
    "us": r"us|µs|μs|usecs?|micros?|microseconds?",
    "ns": r"ns|nsecs?|nanos?|nanoseconds?",
    "min": r"mins?|minutes?",
    "h": r"h|hrs?|hours?",
    "d": r"days?",
}
_ZERO = r"( ?(since|from|after|utc|gmt|unix|epoch|rel|relative|start)\b.*)?"
_JOINED = r"(?:time|stamp|arrival|epoch)(ms|us|ns|msec|usec|nsec|sec|millis|micros|nanos)"

# Patterns of names in words. The first that fits any column chooses among several.
_LENGTH = r"tok|len"
_PROMPT = r"prompt|input|prefill|context|\b(in|ctx|isl)\b"
_OUTPUT = r"output|decode|completion|generat|response|answer|reply|\b(out|gen|osl)\b"
_WEAK = r"request|query|question"  # of a length only where no word says output
_COUNT = r"((n|num|no|count|total) )?"
_OF = r"( (id|name))?$"
_AT = r"( (unix|epoch|utc))?$"
_LOOKS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": (
        rf"^(?=.*tok)(?=.*({_PROMPT}))",
        rf"^(?=.*({_LENGTH}))(?=.*({_PROMPT}))",
        rf"^{_COUNT}(in|input|prompt|prefill|context|ctx|isl)$",
        rf"^(?=.*({_LENGTH}))(?=.*({_WEAK}))(?!.*({_OUTPUT}))",
    ),
    "output_tokens": (
        rf"^(?=.*tok)(?=.*({_OUTPUT}))",
        rf"^(?=.*({_LENGTH}))(?=.*({_OUTPUT}))",
        rf"^{_COUNT}(out|output|decode|completion|generated|gen|osl)$",
    ),
    "model": (
        rf"^(model|llm){_OF}",
        rf"model|llm|^(service|svc){_OF}|deployment|endpoint|adapter|^lora{_OF}",
    ),
    "arrival_s": (
        "arriv",
        rf"time ?stamp|\bts\b|^t$|^(date ?)?time([mun]s)?{_AT}|creat|"
        rf"(start(ed)?|submit(ted)?|sent|send|received?|invocation)( at| time)?{_AT}",
    ),
}
# A count or a duration is no model's name; a rate, a limit or a part is no length.
_PART = (
    r"(?<!gene)rate|time|latency|throughput|speed|\bper\b|cache|limit|max|detail|char|byte|word|"
    r"\bid\b|\b[mun]?s$|\bsec"
)
_UNLIKE: Mapping[str, str] = {
    "model": rf"time|latency|count|^num|{_LENGTH}|size|rate|price|cost|byte",
    "prompt_tokens": _PART,
    "output_tokens": _PART,
    "arrival_s": r"\bend|finish|first|last|complet|respon|output|decode|done|stop|duration|latency|"
    rf"elapsed|inter|gap|delta|diff|rate|count|cache|\bid\b|{_LENGTH}",
}


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _in_words(name: str) -> str:
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[^\W_]+", parted)).casefold()


def unit_of(name: str) -> str | None:
    """Return the unit of time (a key of `UNITS`) that a column's name ends in, or None.

    >>> [unit_of(name) for name in ("arrival_time_us", "timestamp (ms)", "startUnixNano", "when")]
    ['us', 'ms', 'ns', None]
    """
    words = _in_words(name)
    joined = re.search(rf"{_JOINED}$", words)
    for unit, spelled in _WORDS.items():
        of_joined = joined and re.fullmatch(spelled, joined[1])
        if of_joined or re.search(rf"(?:^|\s)(?:{spelled}){_ZERO}$", words):
            return unit
    return None


def alike(name: str, present: Iterable[str]) -> list[str]:
    """Return the columns of this name, else those equal up to case and spelling."""
    present = list(present)
    plain = _plain(name)
    return [c for c in present if c == name] or [c for c in present if _plain(c) == plain]


def likely(field: str, columns: Iterable[str]) -> list[str]:
    """Return a field's likeliest column names, in order."""
    names = {column: _said(field, column) for column in columns}
    fit = {c: n for c, n in names.items() if not re.search(_UNLIKE[field], n)}
    for looks in _LOOKS[field]:
        if result := [column for column, name in fit.items() if re.search(looks, name)]:
            return result
    return []


def _said(field: str, column: str) -> str:
    last, whole = _in_words(column.rsplit(".", 1)[-1]), _in_words(column)
    every = (looks for patterns in _LOOKS.values() for looks in patterns)
    name = last if any(re.search(looks, last) for looks in every) else whole
    unit = unit_of(name) if field == "arrival_s" else None
    return re.sub(rf"\s(?:in )?(?:{_WORDS[unit]}){_ZERO}$", "", name) if unit else name
