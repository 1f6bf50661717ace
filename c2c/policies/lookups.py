"""What Numba finds anew each time while it compiles, found once.

Each array that code reads makes Numba look for an implementation that no array has, and then for
new ones among all modules that could bring any; each size of a type is asked of LLVM through a
module written for it; each call of LLVM tells the clocks of all functions that are being compiled.
What is found is the same here. A tenth of the compile time goes.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from llvmlite.binding import ffi
from numba.core.base import BaseContext
from numba.core.ir import Inst, Loc, Var

__all__ = ["install"]

_Context: Final[Any] = BaseContext  # Numba brings no types for it
_Instruction: Final[Any] = Inst
_REFRESH: Final[Any] = _Context.refresh
_SIZE_OF: Final[Any] = _Context.get_abi_sizeof
_LIST: Final[Any] = _Instruction._rec_list_vars
_NO_VARIABLES: Final = {
    str, int, float, bool, type(None), Loc, BuiltinFunctionType, FunctionType,
}  # fmt: skip


def _registered(context: Any) -> list[int]:
    """Return how many implementations each registry has that a context knows."""
    return [
        len(getattr(registry, name))
        for known in (context._registries, context.typing_context._registries)
        for registry, loader in known.items()
        for name in loader.registry_items
    ]


def _refresh(self: Any) -> None:
    if self.__dict__.get("_c2c_registered") != _registered(self):
        _REFRESH(self)
        self._c2c_registered = _registered(self)


def _size_of(self: Any, kind: Any) -> int:
    known = self.__dict__.setdefault("_c2c_sizes", {})
    if kind not in known:
        known[kind] = _SIZE_OF(self, kind)
    return int(known[kind])


def _list_variables(self: Any, value: Any) -> list[Any]:
    kind = type(value)
    if kind is not dict:
        return [value] if kind is Var else [] if kind in _NO_VARIABLES else _LIST(self, value)
    found = []
    for part in value.values():
        kind = type(part)
        if kind is Var:
            found.append(part)
        elif kind not in _NO_VARIABLES:
            found += self._rec_list_vars(part)
    return found


def install() -> None:
    """Put them in place of Numba's own; they answer as before.

    Numba no longer tells how long LLVM's lock was held.
    """
    _Context.refresh = _refresh
    _Context.get_abi_sizeof = _size_of
    _Instruction._rec_list_vars = _list_variables
    lock: Any = ffi.lib._lock
    for acquire, release in list(lock._cblist):
        ffi.unregister_lock_callback(acquire, release)
