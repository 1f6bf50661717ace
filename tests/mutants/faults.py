"""Small faults in a Python source: an operator swapped, a bound off by one, a statement dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Fault", "faults_of"]

_SWAPPED: Final[dict[type, Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_OTHERS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
# The tables that nearly every function of the loop gets: swapped, nothing works.
_TABLES: Final = ("fleet", "rules", "s", "self", "state")
# Told to people only: their text and numbers are no behaviour.
_SAID: Final = ("log", "_log", "logger", "warnings", "print")


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one place of a source.

    Attributes:
      path: of the source, from the root of the checkout.
      line: where it is, from 1.
      kind: of the code that changes, as `ast` names it.
      within: names of the function, and of its class, around it.
      before: the text there.
      after: the text instead.
      start: offset of that text in the source, in characters.
    """

    path: str
    line: int
    kind: str
    within: str
    before: str
    after: str
    start: int

    def put(self, source: str) -> str:
        """Return the source with the fault in it."""
        assert source.startswith(self.before, self.start), f"{self.path} has changed"
        return source[: self.start] + self.after + source[self.start + len(self.before) :]


def faults_of(path: str, source: str) -> list[Fault]:
    """Return all faults that can be put into the functions of a source, in its order."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:  # ast counts bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    result: list[Fault] = []
    for within, node, after in _places(ast.parse(source), ""):
        start = offset(node.lineno, node.col_offset)
        before = source[start : offset(node.end_lineno, node.end_col_offset)]
        kind = type(node).__name__
        result.append(Fault(path, node.lineno, kind, within, before, after, start))
    return result


def _places(node: ast.AST, within: str) -> Iterator[tuple[str, Any, str]]:
    """Yield, of each fault below a node, the function, the node that changes and its new text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        within = f"{within}.{node.name}".lstrip(".")
        children: list[ast.AST] = list(node.body)  # not decorators, defaults or types
        if isinstance(node, ast.ClassDef):
            children = [
                c for c in children if isinstance(c, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    elif isinstance(node, ast.Module):
        children = [
            c
            for c in node.body
            if isinstance(c, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    elif isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or _is_said(node):
        return
    else:
        yield from ((within, place, text) for place, text in _changed(node))
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _places(child, within)


def _is_said(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    name = ast.unparse(node.value.func)
    return name.split(".")[0] in _SAID


def _changed(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield places at a node, or at one below it, and their text with a fault."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _SWAPPED:
            other = ast.Compare(left, [_SWAPPED[type(op)]()], [right])
            yield node, f"({ast.unparse(other)})"
        case ast.BoolOp(op, values):
            yield node, f"({ast.unparse(ast.BoolOp(_SWAPPED[type(op)](), values))})"
        case ast.BinOp(left, op, right) if type(op) in _SWAPPED:
            yield node, f"({ast.unparse(ast.BinOp(left, _SWAPPED[type(op)](), right))})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            yield node, repr(value + 1)
        case ast.Call(ast.Name(name), [_, *_]) if name in _OTHERS:
            yield node.func, _OTHERS[name]
        case ast.Call(_, [first, second, *_]) if (
            ast.unparse(first) != ast.unparse(second)
            and not any(isinstance(each, ast.Starred) for each in (first, second))
            and not {ast.unparse(first), ast.unparse(second)} & {*_TABLES}
            and ast.unparse(node.func) != "isinstance"
        ):
            swapped = [second, first, *node.args[2:]]
            yield node, ast.unparse(ast.Call(node.func, swapped, node.keywords))
        case ast.Expr(ast.Call() | ast.Await(ast.Call())):
            yield node, "pass"
        case ast.AugAssign(target, op, value) if type(op) in _SWAPPED:
            yield node, ast.unparse(ast.AugAssign(target, _SWAPPED[type(op)](), value))
            yield node, "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield test, f"(not ({ast.unparse(test)}))"
