"""Pieces of a jax function, compiled and placed one by one as kernels are.

Values are numbered: arguments, constants and every array that one piece passes to another. A value
is written once: its number is its version, and no reader sees it overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from c2c.cost.kernel_graph import Transfer
from c2c.errors import SettingError

__all__ = ["Piece", "Pieces", "Update", "cut", "routes_of"]

# Primitives after which a kernel would end: products, moves of data and loops.
_ENDS: Final = frozenset(
    {
        "dot_general",
        "ragged_dot_general",
        "scatter",
        "scatter-add",
        "gather",
        "while",
        "scan",
        "sort",
    }
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Equations that are compiled together.

    Attributes:
      name: its last equation's number and name.
      takes: numbers of the values that it reads.
      gives: numbers of the values that it returns.
      run: function from arrays to arrays; compiled at its first call on a device.
    """

    name: str
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    run: Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """A value that is an earlier value with a part overwritten, such as a cache after a step.

    Attributes:
      operand: number of the earlier value.
      parts: numbers of the indices and of the values written there.
      run: function from the earlier value and `parts` to the later one, equal to it in every bit.
    """

    operand: int
    parts: tuple[int, ...]
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A function in pieces.

    Attributes:
      pieces: pieces in program order.
      given: numbers of the arguments' leaves, in order.
      constants: arrays that the function closes over, by number.
      results: numbers of the results, in order.
      nbytes: bytes of each value, by number.
      updates: number of a value -> update that makes it from an earlier value.
      same: number of a value behind a compiler barrier -> number of the equal value before it.
    """

    pieces: tuple[Piece, ...]
    given: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[int, ...]
    nbytes: Mapping[int, int]
    updates: Mapping[int, Update]
    same: Mapping[int, int]

    def transfers(self) -> tuple[Transfer, ...]:
        """Return the transfers between pieces, with their bytes."""
        maker = {value: k for k, piece in enumerate(self.pieces) for value in piece.gives}
        moved: dict[tuple[int, int], int] = {}
        for target, piece in enumerate(self.pieces):
            for value in piece.takes:
                if value in maker:
                    pair = maker[value], target
                    moved[pair] = moved.get(pair, 0) + self.nbytes[value]
        return tuple(Transfer(*pair, nbytes) for pair, nbytes in sorted(moved.items()))


def cut(function: Callable[..., Any], *arguments: Any) -> Pieces:
    """Return a function in pieces, traced with arguments of these shapes.

    Raises:
      SettingError: the function computes nothing, or returns an argument or a constant.
    """
    import jax
    from jax.extend import core

    closed: Any = jax.make_jaxpr(function)(*arguments)
    jaxpr = closed.jaxpr
    numbers: dict[Any, int] = {}

    def number(variable: Any) -> int:
        return numbers.setdefault(variable, len(numbers))

    given = tuple(map(number, jaxpr.invars))
    constants = {number(v): x for v, x in zip(jaxpr.constvars, closed.consts, strict=True)}
    groups = _groups(jaxpr.eqns)
    made_by = {v for group in groups for e in group for v in e.outvars}
    if not groups or any(isinstance(v, core.Literal) or v not in made_by for v in jaxpr.outvars):
        raise SettingError(
            "function", getattr(function, "__name__", "?"), "a function that computes its results"
        )
    wanted = set(jaxpr.outvars)
    needed: list[set[Any]] = []
    for group in reversed(groups):
        needed.append(set(wanted))
        wanted |= {v for e in group for v in e.invars if not isinstance(v, core.Literal)}
    pieces = []
    updates: dict[int, Update] = {}
    same: dict[int, int] = {}
    unknown = jaxpr.debug_info.with_unknown_names()

    def compiled(takes: list[Any], gives: list[Any], equations: list[Any]) -> Any:
        part = jaxpr.replace(
            constvars=[], invars=takes, outvars=gives, eqns=equations, debug_info=unknown
        )
        return jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, ())))

    for k, (group, live) in enumerate(zip(groups, reversed(needed), strict=True)):
        inside = {v for e in group for v in e.outvars}
        takes = list(
            dict.fromkeys(
                v for e in group for v in e.invars
                if not isinstance(v, core.Literal) and v not in inside
            )
        )  # fmt: skip
        gives = [v for e in group for v in e.outvars if v in live]
        if not gives:
            continue
        update = _update_of(group[-1], takes, gives)
        if update:
            gives += [v for v in update[1:] if v in inside and v not in gives]
        barriers = [e for e in group if e.primitive.name == "optimization_barrier"]
        behind = {o: v for e in barriers for o, v in zip(e.outvars, e.invars, strict=True)}
        same |= {number(v): number(behind[v]) for v in gives if behind.get(v) in takes}
        run = compiled(takes, gives, group)
        if update:
            last = compiled(list(dict.fromkeys(update)), group[-1].outvars, group[-1:])
            operand, *parts = map(number, dict.fromkeys(update))
            updates[number(group[-1].outvars[0])] = Update(operand, tuple(parts), last)
        pieces.append(
            Piece(f"{k}.{group[-1].primitive.name}", tuple(map(number, takes)),
                  tuple(map(number, gives)), run)
        )  # fmt: skip
    nbytes = {
        at: int(np.prod(v.aval.shape, dtype=np.int64)) * v.aval.dtype.itemsize
        for v, at in numbers.items()
    }
    return Pieces(
        tuple(pieces), given, constants, tuple(map(number, jaxpr.outvars)), nbytes, updates,
        same,
    )  # fmt: skip


def _update_of(equation: Any, takes: Sequence[Any], gives: Sequence[Any]) -> list[Any]:
    """Return operand, indices and updates if a piece ends by writing into one of its inputs."""
    from jax.extend import core

    if equation.primitive.name != "scatter" or equation.outvars[0] not in gives:
        return []  # a scatter that adds might round differently when it is compiled alone
    if any(isinstance(v, core.Literal) for v in equation.invars):
        return []
    return list(equation.invars) if equation.invars[0] in takes else []


def _groups(equations: Sequence[Any]) -> list[list[Any]]:
    """Split equations after each that ends a kernel or calls one that does."""
    groups: list[list[Any]] = [[]]
    for equation in equations:
        groups[-1].append(equation)
        if _ends(equation):
            groups.append([])
    return [group for group in groups if group]


def _ends(equation: Any) -> bool:
    if equation.primitive.name in _ENDS:
        return True
    inner = equation.params.get("jaxpr")
    inner = getattr(inner, "jaxpr", inner)
    return inner is not None and any(map(_ends, getattr(inner, "eqns", ())))


def routes_of(pieces: Pieces, gpu_of: Sequence[int]) -> Mapping[int, frozenset[int]]:
    """Return the other GPUs that read each value of a piece, by the value's number."""
    home = {v: gpu_of[k] for k, piece in enumerate(pieces.pieces) for v in piece.gives}
    readers: dict[int, set[int]] = {v: set() for v in home}
    for k, piece in enumerate(pieces.pieces):
        for value in piece.takes:
            if value in home and gpu_of[k] != home[value]:
                readers[value].add(gpu_of[k])
    return {value: frozenset(gpus) for value, gpus in readers.items()}
