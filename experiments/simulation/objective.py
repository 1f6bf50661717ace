"""Objective of a run for a sweeper: a field of its summary, or arithmetic on several.

`ttft_p99_s`, `attainment_both`, `run_utilisation_link_mean`: the path in summary.json joined by
`_`. `objective='ttft_p99_s + 2 * tpot_p99_s'` and `max(a, b)` work too; a list has several
objectives.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from c2c.errors import SettingError
from c2c.runs import summary_fields

__all__ = ["check_objective", "known_fields", "objective_of"]

type Value = float | None

_LONGEST = 300  # characters; deep nesting would exhaust the parser
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "log": math.log, "max": max, "min": min, "sqrt": math.sqrt,
}  # fmt: skip
_ALLOWED = (
    f"fields of summary.json, numbers, + - * / ** and {', '.join(sorted(_FUNCTIONS))} of them"
)


def check_objective(objective: Any, fields: Callable[[], Sequence[str]]) -> None:
    """Raise unless every run can have the objective."""
    if objective is None:
        return
    trees = [_parsed(one) for one in _several(objective)]
    names = fields()
    for tree in trees:
        for name in _names(tree):
            if name not in names:
                near = difflib.get_close_matches(name, names, n=3)
                hint = f"Did you mean {' or '.join(near)}?" if near else ""
                raise SettingError("objective", name, f"{_ALLOWED} (docs/metrics.md)", hint)


def objective_of(objective: Any, summary: Mapping[str, Any]) -> Value | tuple[Value, ...]:
    """Return the objective's value, or a list of them."""
    if objective is None:
        return None
    fields = summary_fields(summary)
    values = tuple(_value(_parsed(one), fields) for one in _several(objective))
    return values if isinstance(objective, list | tuple) else values[0]


def known_fields() -> list[str]:
    """Return a summary's fields, from a run of two requests."""
    from c2c.config import build, load, simulate

    tiny = ["workload=poisson", "workload.requests=2", "catalog=dense6"]
    return list(summary_fields(simulate(build(load(tiny)), compiled=False).summary))


def _several(objective: Any) -> list[Any]:
    several = list(objective) if isinstance(objective, list | tuple) else [objective]
    if not several:
        raise SettingError("objective", objective, _ALLOWED)
    return several


def _parsed(text: Any) -> ast.expr:
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise SettingError("objective", text, f"{_ALLOWED}, in at most {_LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SettingError("objective", text, _ALLOWED) from None
    _check(tree, text)
    return tree


def _check(tree: ast.expr, text: str) -> None:
    match tree:
        case ast.Name():
            return
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return
        case ast.BinOp() if type(tree.op) in _BINARY:
            parts = [tree.left, tree.right]
        case ast.UnaryOp() if type(tree.op) in _UNARY:
            parts = [tree.operand]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and tree.args:
            parts = tree.args
        case _:
            raise SettingError("objective", text, f"{_ALLOWED}, not {ast.unparse(tree)!r}")
    for part in parts:
        _check(part, text)


def _names(tree: ast.expr) -> Iterator[str]:
    functions = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions:
            yield node.id


def _value(tree: ast.expr, fields: Mapping[str, Value]) -> Value:
    try:
        value = float(_compute(tree, fields))
    except (_NoValue, ArithmeticError, ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None


class _NoValue(Exception):
    pass


def _compute(tree: ast.expr, fields: Mapping[str, Value]) -> Any:
    match tree:
        case ast.Name(id=name):
            if (value := fields.get(name)) is None:
                raise _NoValue(name)
            return float(value)
        case ast.Constant(value=int() | float() as number):
            return float(number)  # a power of integers could grow without bound
        case ast.BinOp():
            return _BINARY[type(tree.op)](_compute(tree.left, fields), _compute(tree.right, fields))
        case ast.UnaryOp():
            return _UNARY[type(tree.op)](_compute(tree.operand, fields))
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_compute(a, fields) for a in tree.args))
    raise AssertionError(ast.dump(tree))  # _check let it pass
