"""Ends of recursive JSON schemas: a finite value exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["has_end", "target"]

_MOST_PASSES = 64  # over all references; each passes at least one end on


def has_end(schema: Mapping[str, Any]) -> bool:
    """Return whether references leave a finite value.

    Other faults count as ends, and so do references that are not `#/...`; more than 64 passes count
    as none.

    >>> tree = {"properties": {"child": {"$ref": "#"}}}
    >>> has_end(tree), has_end(tree | {"type": "object", "required": ["child"]})
    (True, False)
    """
    ended: set[str] = set()  # references
    return any(_ends(schema, schema, ended, set()) for _ in range(_MOST_PASSES))


def _ends(schema: Any, root: Mapping[str, Any], ended: set[str], visited: set[str]) -> bool:
    """Return whether a value ends if `ended` references do; adds to `ended` and `visited`."""
    if not isinstance(schema, dict):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in ended:
        inner = target(reference, root)
        if inner is not None:
            if reference in visited:
                return False
            visited.add(reference)
            if not _ends(inner, root, ended, visited):
                return False
        ended.add(reference)
    for name in ("anyOf", "oneOf"):
        options = _list(schema, name)
        if options and not any(_ends(option, root, ended, visited) for option in options):
            return False
    needed = list(_list(schema, "allOf"))
    if schema.get("type") == "object":
        properties = schema.get("properties")
        names = [n for n in _list(schema, "required") if isinstance(n, str)]
        needed += (
            [properties[name] for name in names if name in properties]
            if isinstance(properties, dict)
            else []
        )
    least = schema.get("minItems", 0)
    if schema.get("type") == "array" and isinstance(least, int):
        first = _list(schema, "prefixItems")
        needed += first[: max(0, least)]
        needed += [schema.get("items")] if least > len(first) else []
    inner = [_ends(one, root, ended, visited) for one in needed]  # all, as a pass adds their ends
    return all(inner)


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema of a `#/$defs/node`; None if none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    result: Any = root
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(result, list) and name.isdigit() and int(name) < len(result):
            result = result[int(name)]
        elif isinstance(result, dict) and name in result:
            result = result[name]
        else:
            return None
    return result
