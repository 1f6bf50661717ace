"""Searches that Numba repeats while it compiles, done once.

Each array that code reads makes Numba look for an implementation that no array has, and then for
new ones among all modules that could bring any; each size of a type is asked of LLVM through a
module written for it; each call of LLVM tells the clocks of all functions that are being compiled;
each of four passes finds anew where every variable lives. What is found is the same here, or found
when it is asked. A tenth of the compile time goes, and three hundredths with the variables.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from llvmlite.binding import ffi
from numba.core import transforms
from numba.core.base import BaseContext
from numba.core.ir import Inst, Loc, Var
from numba.core.postproc import PostProcessor, VariableLifetime

from c2c.compiling.ours import MODULES

__all__ = ["install"]

_Context: Final[Any] = BaseContext  # Numba brings no types for it
_Instruction: Final[Any] = Inst
_REFRESH: Final[Any] = _Context.refresh
_SIZE_OF: Final[Any] = _Context.get_abi_sizeof
_Processor: Final[Any] = PostProcessor
_Lifetimes: Final[Any] = VariableLifetime
_POST_PROCESS: Final[Any] = _Processor.run
_Transforms: Final[Any] = transforms
_LIST: Final[Any] = _Instruction._rec_list_vars
_NO_VARIABLES: Final = {
    str, int, float, bool, type(None), Loc, BuiltinFunctionType, FunctionType,
}  # fmt: skip


def _refresh(self: Any) -> None:
    if "_c2c_registered" not in self.__dict__:
        _REFRESH(self)  # imports all modules that register anything
        self._c2c_registered = {}
    known = self._c2c_registered
    for context in (self, self.typing_context):
        for registry, loader in list(context._registries.items()):
            counts = [len(getattr(registry, name)) for name in loader.registry_items]
            if known.get(registry) != counts:
                context.install_registry(registry)
                known[registry] = counts


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


def _post_process(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    function = self.func_ir
    known = function.func_id
    if emit_dels or known.is_generator or not known.modname.startswith(MODULES):
        _POST_PROCESS(self, emit_dels, extend_lifetimes)
        return
    # All but what lives where a block begins, which only Numba's object mode asks.
    function.blocks = _Transforms.canonicalize_cfg(function.blocks)
    function.variable_lifetime = _Lifetimes(function.blocks)  # finds what it is asked


def install() -> None:
    """Put them in place of Numba's own; they answer as before.

    Numba no longer tells how long LLVM's lock was held.
    """
    _Context.refresh = _refresh
    _Context.get_abi_sizeof = _size_of
    _Instruction._rec_list_vars = _list_variables
    _Processor.run = _post_process
    lock: Any = ffi.lib._lock
    for acquire, release in list(lock._cblist):
        ffi.unregister_lock_callback(acquire, release)
