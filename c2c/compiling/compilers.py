"""Compilers of the event loop: linking, or Numba's own."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numba

__all__ = ["INNER", "OUTER", "compilers"]

_njit: Final[Any] = numba.njit  # its types know none of the options that are passed on
_KNOWN: Final = "0.68."  # versions of Numba that the whole loop was linked with


def compilers(version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of `numba.njit` for calls from compiled code, and from Python."""
    try:
        from c2c.compiling.linker import InnerCompiler, OuterCompiler

        inner, outer = {"pipeline_class": InnerCompiler}, {"pipeline_class": OuterCompiler}
        if not version.startswith(_KNOWN):
            _try(inner, outer)
    except Exception as error:  # noqa: BLE001 - whatever a Numba that is not known answers
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(
            f"c2c links functions with Numba {_KNOWN}*; with {version} it cannot ({reason}), and "
            "compiles the event loop as Numba does: the first run takes about three times as long",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return {}, {}
    return inner, outer


# An unknown Numba: its internals, which linking uses, are tried on three functions.
def _try(inner: dict[str, Any], outer: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True}
    within = _njit(**plain, **inner, no_cpython_wrapper=True)

    def leaf(x: int) -> int:
        if x < 0:
            raise ValueError
        return x + 1

    leaf_compiled = within(leaf)

    def branch(x: int) -> int:
        return int(leaf_compiled(x) * 2)

    branch_compiled = within(branch)

    def root(x: int) -> int:
        return int(leaf_compiled(x) + branch_compiled(x))

    linked = _njit(**plain, **outer)(root)
    total = linked(4)
    if total != 15:
        raise RuntimeError(f"linked functions returned {total} where 15 is right")
    try:
        linked(-1)
    except ValueError:
        return
    raise RuntimeError("linked functions passed no error on")


INNER, OUTER = compilers(numba.__version__)
