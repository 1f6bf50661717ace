"""Compilation of inner functions without their own machine code."""

# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder

from c2c.compiling.passes import FewPasses, OwnFlags, make_small, optimise

__all__ = ["InnerCompiler", "OuterCompiler"]

MODULES: Final = "c2c."  # all other code is compiled as Numba does it
SYMBOLS: Final = "_ZN3c2c"  # as compiled functions are called
_Library: Final[Any] = JITCodeLibrary  # Numba brings no types for it
_Compiler: Final[Any] = CompilerBase
# How symbols of small formulas begin, which are inlined as always.
_FORMULAS: Final = f"{SYMBOLS}4cost"
_COUNTING: Final = "NRT_"  # of functions that count references


class _NoMachineCode:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing: only the outermost function's is used."""


# Numba makes machine code of every function with its callees, although inner ones are only linked
# into their callers. Here they remain the front end's output, and the outermost function links each
# once: half the compile time, and faster code.
class _OwnLibrary(_Library):  # type: ignore[misc]
    def _optimize_functions(self, module: Any) -> None:
        if _counts_references(module):
            super()._optimize_functions(module)
        else:
            make_small(module, self._codegen)

    def _optimize_final_module(self) -> None:
        if _counts_references(self._final_module):
            super()._optimize_final_module()
        else:
            optimise(self._final_module, self._codegen)


def _counts_references(module: Any) -> bool:
    return any(function.name.startswith(_COUNTING) for function in module.functions)


class _InnerLibrary(_OwnLibrary):
    @property
    def codegen(self) -> Any:
        return _NoMachineCode(self._codegen)

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        self._ensure_finalized()
        return 0  # Numba's word for "not here"

    def alone(self) -> Any:
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        module = self.alone().clone()
        for library in _called(self):
            module.link_in(_module(library), preserve=True)
        return module


class _Linked:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._reload_init = library._reload_init

    def _get_module_for_linking(self) -> Any:
        return _module(self._library)


class _OuterLibrary(_OwnLibrary):
    def finalize(self) -> None:
        self._linking_libraries = [_Linked(library) for library in _called(self)]
        super().finalize()


def _module(library: Any) -> Any:
    return _kept_apart(library.alone() if isinstance(library, _InnerLibrary) else _shared(library))


def _kept_apart(module: Any) -> Any:
    """Prevent inlining, unless requested: copies would be most of the code."""
    for function in module.functions:
        is_ours = function.name.startswith(SYMBOLS) and not function.name.startswith(_FORMULAS)
        if is_ours and not function.is_declaration:
            attributes = b" ".join(function.attributes)
            if b"alwaysinline" not in attributes and b"noinline" not in attributes:
                function.add_function_attribute("noinline")
    return module


def _shared(library: Any) -> Any:
    return library._get_module_for_linking()


def _called(library: Any) -> Iterator[Any]:
    seen: set[Any] = set()
    waiting = list(library._linking_libraries)
    while waiting:
        dependency = waiting.pop(0)
        if dependency in seen:
            continue
        seen.add(dependency)
        yield dependency
        if isinstance(dependency, _InnerLibrary):
            waiting += dependency._linking_libraries


class _OwnCompiler(_Compiler):  # type: ignore[misc]
    library: Any

    def compile_extra(self, func: Any) -> Any:
        self.state.flags = OwnFlags(self.state.flags)
        return super().compile_extra(func)

    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        if state.func_id.modname.startswith(MODULES):
            return [FewPasses()]
        builder: Any = DefaultPassBuilder
        return [builder.define_nopython_pipeline(state)]


class InnerCompiler(_OwnCompiler):
    """Compiler for functions that only compiled code calls."""

    library = _InnerLibrary


class OuterCompiler(_OwnCompiler):
    """Compiler for functions that Python calls."""

    library = _OuterLibrary
