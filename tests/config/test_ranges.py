"""Ranges of settings: a value outside is refused by the name of its field, wherever a range is."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import c2c
import experiments
from c2c.errors import SettingError
from c2c.policies import DECISIONS
from c2c.policies.system import check_policy
from c2c.ranges import In, OneOf, limits
from c2c.serving import SystemSpec

VALUES = (math.nan, math.inf, -math.inf, -1.0, -1, 0, 0.5, 1.0, 1.5, 2**70, "no such choice")
# Checked where they are read (refusals/wrong_inputs.yaml, tests of commands), or of our own making.
READ = re.compile("(Run|Slo|Scale|Timeline|FleetPart|Failures|Generate|Serve|Endpoint)Conf|Hybrid"
                  "|Format|.*Settings")  # fmt: skip


def with_ranges() -> Iterator[type]:
    """Yield the types of our packages that have defaults and a field with a range."""
    for package in (c2c, experiments):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "__main__" in found.name:
                continue
            module = importlib.import_module(found.name)
            for one in vars(module).values():
                is_own = inspect.isclass(one) and one.__module__ == module.__name__
                if is_own and (is_dataclass(one) or hasattr(one, "_fields")) and has_range(one):
                    yield one


def has_range(kind: type) -> bool:
    needed = (p.default is p.empty for p in inspect.signature(kind).parameters.values())
    with contextlib.suppress(NameError):  # types that are there for mypy only
        return not any(needed) and bool(limits(kind))
    return False


def options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def may_be(hint: Any, value: Any) -> bool:
    """Return whether a value may be inside; what is no number or choice is left to others."""
    for option in options(hint):
        if get_origin(option) is Literal:
            inside = value in get_args(option)
        elif get_origin(option) is not Annotated:
            inside = option is not type(None)
        else:
            kind, *rules = get_args(option)
            (rule,) = [one for one in rules if isinstance(one, In | OneOf)]
            inside = is_in(rule, kind, value)
        if inside:
            return True
    return False


def is_in(rule: In | OneOf, kind: Any, value: Any) -> bool:
    if isinstance(rule, OneOf):
        return value in rule.choices
    if isinstance(value, str) or (kind is int and isinstance(value, float)):
        return False
    low, high = (float(eval(end, {"inf": math.inf})) for end in rule.interval[1:-1].split(", "))
    closed = rule.interval[0] == "[", rule.interval[-1] == "]"
    is_above = value >= low if closed[0] else value > low
    is_below = value <= high if closed[1] else value < high
    return (is_above and is_below) or (rule.or_inf and value == math.inf)


def made(kind: type, field: str, value: Any) -> None:
    """Make or read a setting of a type, with a value."""
    setting = next((name for name, point in DECISIONS.items() if point.knows(kind)), None)
    group = next((n for n, h in get_type_hints(SystemSpec).items() if h is kind), None)
    if setting is not None:
        check_policy(setting, kind()._replace(**{field: value}))  # type: ignore[attr-defined]
    elif group is not None:
        spec = SystemSpec(name="test")
        replace(spec, **{group: replace(getattr(spec, group), **{field: value})})
    else:
        replace(kind(), **{field: value})  # type: ignore[type-var]


def test_values_outside_a_range_are_refused_by_their_field() -> None:
    kinds = list(with_ranges())
    assert len(kinds) > 60
    wrong, tried = [], 0
    for kind in (one for one in kinds if not READ.fullmatch(one.__name__)):
        hints = get_type_hints(kind, include_extras=True)
        for field in limits(kind):
            for value in (one for one in VALUES if not may_be(hints[field], one)):
                tried += 1
                try:
                    made(kind, field, value)
                except SettingError as error:
                    if field in error.field:
                        continue
                wrong.append(f"{kind.__module__}.{kind.__name__}.{field}={value}")
    assert wrong == []
    assert tried > 1000


def test_every_number_of_a_policy_or_a_group_of_settings_has_a_range() -> None:
    kinds = {kind for point in DECISIONS.values() for kind in point.policies.values()}
    kinds |= {kind for kind in get_type_hints(SystemSpec).values() if is_dataclass(kind)}
    numbers = {
        (kind, name)
        for kind in kinds
        if kind.__module__.startswith("c2c.")
        for name in inspect.signature(kind).parameters
        if get_type_hints(kind)[name] in (int, float)
    }
    assert len(numbers) > 50
    assert [(kind, name) for kind, name in numbers if name not in limits(kind)] == []
