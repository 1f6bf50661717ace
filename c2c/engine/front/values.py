"""Bare values of tool calls as JSON, by schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from c2c.engine.front.ends import target

__all__ = ["json_of", "types_of"]

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}  # of Python


def json_of(value: str, types: set[str]) -> str:
    """Return JSON of these types unchanged, else a string."""
    bare = value.strip()
    bare = _WORDS.get(bare, bare)
    try:
        kinds = _kinds(json.loads(bare, parse_constant=_refuse)) - {"string"}
    except (ValueError, RecursionError):
        literal = _literal(bare) if types & {"array", "object"} else None
        kinds = _kinds(literal) - {"null"}
        bare = json.dumps(literal, ensure_ascii=False)
    return bare if kinds & types else json.dumps(value, ensure_ascii=False)


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list | dict) else None


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are no JSON


def _kinds(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    names = {int: {"integer", "number"}, str: {"string"}, list: {"array"}, dict: {"object"}}
    return names.get(type(value), {"null"})


def types_of(schema: Any, name: str) -> set[str]:
    """Return a parameter's types; {"string"} if unknown."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    queue = [properties.get(name)] if isinstance(properties, Mapping) else []
    kinds: set[str] = set()
    seen: set[int] = set()  # references may be cyclic
    while queue:
        node = queue.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        type_name = node.get("type")
        named = {name for name in [type_name, *_several(type_name)] if isinstance(name, str)}
        values = [*_several(node.get("enum")), *([node["const"]] if "const" in node else [])]
        kinds |= named or set[str]().union(*map(_kinds, values))
        queue += [s for key in ("anyOf", "oneOf", "allOf") for s in _several(node.get(key))]
        if isinstance(node.get("$ref"), str):
            queue.append(target(node["$ref"], schema))
    return kinds or {"string"}


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
