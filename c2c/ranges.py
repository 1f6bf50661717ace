"""Ranges and choices of settings as annotations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from c2c.errors import SettingError

__all__ = [
    "AboveZero",
    "BelowOne",
    "Count",
    "Finite",
    "FromZero",
    "In",
    "Index",
    "OneOf",
    "Share",
    "SomeShare",
    "allowed",
    "check_fields",
    "check_value",
    "limits",
    "typed",
]

_UNITS: Final = {
    "s": "seconds", "seconds": "seconds", "hours": "hours", "bytes": "bytes", "gbps": "GB/s",
    "rps": "requests a second",
}  # fmt: skip
_PLAIN: Final[Mapping[Any, str]] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a string",
    NoneType: "null",
}  # fmt: skip


@dataclass(frozen=True)
class In:
    """An interval of numbers, such as `In("(0, 1]")`; only a closed end `inf]` allows infinity.

    Attributes:
      interval: its ends may be powers such as 2**31.
      noun: the quantity in errors; "": by the field.
      or_inf: whether infinity is allowed.
    """

    interval: str
    noun: str = ""
    or_inf: bool = False

    def fits(self, value: Any, kind: Any) -> bool:
        """Return whether a number is of the kind and in range."""
        if not _is_number(value, kind):
            return False
        low, high = _bounds(self.interval)
        is_above = value > low if self.interval[0] == "(" else value >= low
        is_below = value < high if self.interval[-1] == ")" else value <= high
        return bool((is_above and is_below) or (self.or_inf and value == math.inf))

    def words(self, field: str, kind: Any) -> str:
        """Return a field's allowed values in words."""
        unit = _UNITS.get(re.split(r"[._]", field)[-1]) if kind is float else None
        noun, (low, high) = self.noun or unit or _PLAIN[kind], self.interval[1:-1].split(", ")
        if low == "-inf":
            text = noun
        elif high == "inf":
            text = f"{noun} above {low}" if self.interval[0] == "(" else f"{noun}, at least {low}"
        elif kind is int and self.interval[0] == "[":
            text = f"{noun} from {low} to {high}" + " - 1" * (self.interval[-1] == ")")
        else:
            text = f"{noun} in {self.interval}"
        return f"{text}, or inf" if self.or_inf or self.interval.endswith("inf]") else text


class OneOf:
    """Choices, such as `OneOf("copy", "stream")`."""

    def __init__(self, *choices: str | int) -> None:
        self.choices = choices

    def fits(self, value: Any, _kind: Any) -> bool:
        """Return whether a value is a choice."""
        return any(type(value) is type(one) and value == one for one in self.choices)

    def words(self, _field: str, _kind: Any) -> str:
        """Return the allowed values in words."""
        return "one of " * (len(self.choices) > 1) + ", ".join(map(str, self.choices))


Count = Annotated[int, In("(0, inf)")]
Index = Annotated[int, In("[0, inf)")]
AboveZero = Annotated[float, In("(0, inf)")]
FromZero = Annotated[float, In("[0, inf)")]
Share = Annotated[float, In("[0, 1]", "a share")]
SomeShare = Annotated[float, In("(0, 1]", "a share")]
Finite = Annotated[float, In("(-inf, inf)", "a finite number")]
BelowOne = Annotated[float, In("[0, 1)", "a share")]


def check_fields(settings: Any, where: str = "", schema: Any = None) -> None:
    """Raise SettingError for a field outside its range."""
    kind: Any = schema or type(settings)
    for field, hint in _ruled(kind).items():
        value = getattr(settings, field) if schema is None else settings[field]
        check_value(value, hint, f"{where}.{field}" if where else field, field)


def limits(schema: Any) -> dict[str, str]:
    """Return the ranges of a type's fields, in words."""
    return {field: allowed(hint, field) for field, hint in _ruled(schema).items()}


def allowed(hint: Any, field: str = "") -> str:
    """Return a field's allowed values in words."""
    phrases = []
    for kind, rule in map(_parted, _options(hint)):
        if (item := _item(kind)) is not None:
            words = allowed(item, field).replace("a whole number", "whole numbers")
            phrases.append(words.replace("a number", "numbers").replace("a share", "shares"))
        else:
            phrases.append(rule.words(field, kind) if rule else _PLAIN.get(kind, str(kind)))
    return ", or ".join(dict.fromkeys(phrases))


def typed(value: Any, hint: Any, where: str) -> Any:
    """Return a value in its field's type."""
    kinds = [kind for kind, _ in map(_parted, _options(hint))]
    is_number = _is_number(value, float) and value == value
    is_whole = is_number and (_is_number(value, int) or float(value).is_integer())
    if is_whole and int in kinds:
        result: Any = int(value)
    elif is_number and float in kinds:
        result = float(value)
    elif type(value) in kinds and not isinstance(value, float):
        result = value
    else:
        raise SettingError(where, value, allowed(hint, where))
    check_value(result, hint, where)
    return result


def check_value(value: Any, hint: Any, where: str, field: str = "") -> None:
    """Raise SettingError for a value outside its range."""
    for kind, rule in map(_parted, _options(hint)):
        if (item := _item(kind)) is not None:
            if isinstance(value, Mapping):
                for key, one in value.items():
                    check_value(one, item, f"{where}.{key}", field or where)
                return
            scalar, limit = _parted(item)
            if isinstance(value, Iterable) and all(limit.fits(one, scalar) for one in value):
                return
        elif rule.fits(value, kind) if rule else isinstance(value, kind):
            return
    raise SettingError(where, value, allowed(hint, field or where))


@cache
def _ruled(schema: Any) -> dict[str, Any]:
    hints = get_type_hints(schema, include_extras=True)
    return {name: hint for name, hint in hints.items() if any(map(_has_rule, _options(hint)))}


def _has_rule(option: Any) -> bool:
    kind, rule = _parted(option)
    return rule is not None or _item(kind) is not None


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _parted(option: Any) -> tuple[Any, Any]:
    if get_origin(option) is Literal:
        return str, OneOf(*get_args(option))
    if get_origin(option) is not Annotated:
        return option, None
    rules = [rule for rule in option.__metadata__ if isinstance(rule, In | OneOf)]
    return option.__origin__, rules[0] if rules else None


def _item(kind: Any) -> Any:
    arguments = [a for a in get_args(kind) if a is not ...]
    return arguments[-1] if arguments and get_origin(arguments[-1]) is Annotated else None


def _is_number(value: Any, kind: Any) -> bool:
    if type(value) is int or (type(value) is float and kind is not int):
        return True  # asking an abstract class takes ten times as long
    return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)


@cache
def _bounds(interval: str) -> list[float]:
    ends = (end.partition("**") for end in interval[1:-1].split(", "))
    return [float(base) ** int(power or 1) for base, _, power in ends]
