"""Tool calls in Qwen3-Coder's format: `<function=name>`, with `<parameter=name>` before each value.

A value is bare text; its parameter's JSON schema decides whether that is a string or JSON. Strings
are streamed, other values are sent once complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["read_marked"]


def _begun(mark: str) -> str:
    """Return a pattern that matches every prefix of a mark, even the empty one."""
    return "".join(f"(?:{re.escape(letter)}" for letter in mark) + ")?" * len(mark)


_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^<>\s]+)>")
_NEXT = re.compile(r"<parameter=([^<>\n]+)>\n?|</function>|(?=</?tool_call>|<function=)")
_VALUE_ENDS = re.compile(r"\n?</parameter>|\n(?=<parameter=|</function>)")
_CALL_ENDS = re.compile(r"\s*(?:</tool_call>\s*)?")
# Text at the end that may be the beginning of a mark.
_HELD = re.compile(
    rf"(?:<tool_call>\s*)?(?:<function=[^<>\s]*|{_begun('<function=')})\Z"
    rf"|(?:{_begun('<tool_call>')}|{_begun('</tool_call>')})\Z"
)
_HELD_VALUE = re.compile(
    rf"(?:\n?{_begun('</parameter>')}|\n{_begun('<parameter=')}|\n{_begun('</function>')})\Z"
)
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}  # of Python


def read_marked(
    text: str, schemas: Mapping[str, Any], *, is_over: bool
) -> tuple[str, list[tuple[str, str]]]:
    """Return the text outside calls, and each call's function with its arguments as JSON.

    The result for a prefix of a text is a prefix of the result for the text.

    Args:
      text: text of the answer so far.
      schemas: schema of each function's parameters, by function name.
      is_over: whether the text is complete.
    """
    content, at = "", 0
    found: list[tuple[str, str]] = []

    def stripped(part: str) -> str:
        return part.rstrip() if found else part

    while (head := _FUNCTION.search(text, at)) is not None:
        content += stripped(text[at : head.start()])
        arguments, end = _arguments(text, head.end(), schemas.get(head[1]), is_over=is_over)
        found.append((head[1], arguments))
        if end is None:
            return content, found
        over = _CALL_ENDS.match(text, end)
        assert over is not None  # it also matches ""
        at = over.end()
    return content + stripped(_free(text[at:], _HELD, is_over=is_over)), found


def _free(text: str, held: re.Pattern[str], *, is_over: bool) -> str:
    """Return a text without a possible beginning of a mark at its end."""
    begun = None if is_over else held.search(text)
    return text if begun is None else text[: begun.start()]


def _arguments(text: str, at: int, schema: Any, *, is_over: bool) -> tuple[str, int | None]:
    """Return a call's arguments from index `at`, and their end; None if they are incomplete."""
    told = "{"
    while (mark := _NEXT.search(text, at)) is not None:
        if mark[1] is None:
            return told + "}", mark.end()
        told += f"{', ' if len(told) > 1 else ''}{_string(mark[1])}: "
        types = _types(_property(schema, mark[1]), schema)
        ends = _VALUE_ENDS.search(text, mark.end())
        if ends is None:
            if types == {"string"}:
                told += _string(_free(text[mark.end() :], _HELD_VALUE, is_over=is_over))[:-1]
            return told, None
        told += _json(text[mark.end() : ends.start()], types)
        at = ends.end()
    return told, None


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(value: str, types: set[str]) -> str:
    """Return a value as JSON: unchanged if it is JSON of one of these types, else a string."""
    bare = value.strip()
    bare = _WORDS.get(bare, bare)
    try:
        kinds = _kinds(json.loads(bare, parse_constant=_refuse)) - {"string"}
    except (ValueError, RecursionError):
        kinds = set()
    return bare if kinds & types else _string(value)


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are no JSON


def _kinds(value: Any) -> set[str]:
    """Return the names of a value's types in JSON schema."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    names = {int: {"integer", "number"}, str: {"string"}, list: {"array"}, dict: {"object"}}
    return names.get(type(value), {"null"})


def _property(schema: Any, name: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def _types(schema: Any, root: Any) -> set[str]:
    """Return the types of a parameter by its schema; {"string"} if that names none."""
    found: set[str] = set()
    seen: set[int] = set()  # references may be cyclic
    left = [schema]
    while left:
        each = left.pop()
        if not isinstance(each, Mapping) or id(each) in seen:
            continue
        seen.add(id(each))
        given = each.get("type")
        named = {name for name in [given, *_several(given)] if isinstance(name, str)}
        values = [*_several(each.get("enum")), *([each["const"]] if "const" in each else [])]
        found |= named or set[str]().union(*map(_kinds, values))
        left += [s for key in ("anyOf", "oneOf", "allOf") for s in _several(each.get(key))]
        if isinstance(each.get("$ref"), str):
            left.append(_at(root, each["$ref"]))
    return found or {"string"}


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(root: Any, reference: str) -> Any:
    """Return the target of a reference within a schema; None if it does not exist."""
    for key in reference.removeprefix("#").split("/")[1:]:
        root = root.get(key) if isinstance(root, Mapping) else None
    return root
