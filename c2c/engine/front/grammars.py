"""Llguidance's grammars of structured outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from c2c.engine.front.ends import has_end
from c2c.engine.front.failures import ApiError, invalid
from c2c.engine.front.protocol import SharedFields
from c2c.engine.front.trials import MOST_CHARACTERS

__all__ = ["FORMS", "MOST_ITEMS", "grammar_of", "schema_grammar"]

# JSON on one line, as models with free white space may never end an answer.
_ONE_LINE: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
MOST_ITEMS = 5_000
"""Most items of an array that a schema counts: llguidance writes a rule for each."""

_OBJECT: Mapping[str, Any] = {"type": "object"}
_MOST_SHOWN = 300
_LARGEST = 10**18 - 1
_NO_BOUND = 1 << 24  # items that no answer has room for
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}
_ONE_SCHEMA = (
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else",
)  # fmt: skip
_SCHEMAS = ("items", "prefixItems", "anyOf", "oneOf", "allOf")
_ITEMS = ("minItems", "maxItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")

FORMS = {
    "guided_json": "json", "guided_json_object": "json_object", "guided_regex": "regex",
    "guided_choice": "choice", "guided_grammar": "grammar",
}  # fmt: skip
"""Fields of vLLM's requests, with the kind of grammar."""


def grammar_of(request: SharedFields) -> tuple[str, str]:
    """Return an answer's grammar, as llguidance has it ("": free), and its field."""
    forms = list(_forms(request))
    if len(forms) > 1:
        names = " and ".join(sorted({name for name, *_ in forms}))
        raise ApiError(400, f"{names}: expected only one of them", param=forms[1][0])
    space = request.guided_whitespace_pattern
    if space and not any(kind.startswith("json") for _, kind, _ in forms):
        raise invalid(
            "guided_whitespace_pattern", "expected JSON as the answer's structure with it"
        )
    for name, kind, value in forms:
        return _compiled(name, kind, value, space), name
    return "", ""


def _forms(request: SharedFields) -> Iterator[tuple[str, str, Any]]:
    form = request.response_format
    if form is not None and form.json_schema is not None and form.type != "json_schema":
        raise invalid("response_format", f"{form.type}: expected json_schema, as it has one")
    if form is not None and form.type == "json_object":
        yield "response_format", "json_object", True
    elif form is not None and form.type == "json_schema":
        if form.json_schema is None:
            raise invalid("response_format", "expected json_schema with a schema")
        yield "response_format", "json", form.json_schema.schema_ or _OBJECT
    if request.structured_outputs is not None:
        options = request.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        for kind, value in options.items():
            if value is not False:
                yield "structured_outputs", kind, value
    for name, kind in FORMS.items():
        value = getattr(request, name)
        if value is not None and value is not False:
            yield name, kind, value


def _compiled(name: str, kind: Any, value: Any, space: str | None) -> str:
    import llguidance

    if kind in ("json", "json_object"):
        return schema_grammar(_OBJECT if kind == "json_object" else value, name, space)
    if kind == "choice":  # not by grammar_from, whose escapes its grammars refuse
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
        return llguidance.LLMatcher.grammar_from_lark(f"start: {texts}")
    try:
        return llguidance.grammar_from(kind, value)
    except ValueError as error:
        raise invalid(name, error) from None


def schema_grammar(schema: Any, name: str, space: str | None = None) -> str:
    """Return a JSON schema's grammar."""
    import llguidance

    more: Any = {"whitespace_pattern": space} if space else _ONE_LINE
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(document, dict):
            raise ValueError("expected a schema as a JSON object")
        text = json.dumps(_bounded(document))
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{len(text)} characters, expected at most {MOST_CHARACTERS}")
        if not has_end(document):
            raise ValueError("its references lead in a circle, so no value ends")
        return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=more)
    except (ValueError, RecursionError) as error:
        raise invalid(name, str(error)[:_MOST_SHOWN]) from None


def _bounded(schema: Any) -> Any:
    """Return a schema with integers of at most 18 digits, as models may never end."""
    if not isinstance(schema, dict):  # true and false are also schemas
        return schema
    result = dict(schema)
    for name, value in schema.items():
        if name in _ONE_SCHEMA and isinstance(value, dict):
            result[name] = _bounded(value)
        elif name in _SCHEMAS and isinstance(value, list):
            result[name] = [_bounded(part) for part in value]
        elif name in _NAMED_SCHEMAS and isinstance(value, dict):
            result[name] = {key: _bounded(part) for key, part in value.items()}
        elif name == "maxItems" and isinstance(value, int | float) and value >= _NO_BOUND:
            del result[name]
        elif name in _ITEMS and isinstance(value, int | float) and value > MOST_ITEMS:
            raise ValueError(f"{name}: {value}, expected at most {MOST_ITEMS}")
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds and "number" not in kinds and not _BOUNDS & schema.keys():
        result |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    return result
