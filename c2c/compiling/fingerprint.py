"""Digest of a user's policy."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = ["fingerprint"]

_LIBRARIES: Final = ("c2c", "math", "numba", "numpy")


def fingerprint(function: Callable[..., Any]) -> bytes:
    """Return a digest of a function's code and values."""
    return _of_function(function, set())


def _is_library(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in _LIBRARIES


def _of_function(function: Any, seen: set[Any]) -> bytes:
    if function in seen:
        return b""
    seen.add(function)
    digest = hashlib.sha256()
    _add_code(function.__code__, digest)
    for name, member in _frozen(function):
        value = getattr(member, "py_func", member)
        if isinstance(value, types.FunctionType):
            if not _is_library(value.__module__):
                digest.update(name.encode() + _of_function(value, seen))
        elif isinstance(value, np.ndarray):
            digest.update(name.encode() + str(value.dtype).encode() + value.tobytes())
        elif isinstance(value, types.ModuleType):
            digest.update(name.encode() + _of_module(value, seen))
        else:
            digest.update(f"{name}={value!r}".encode())
    return digest.digest()


def _frozen(function: Any) -> Iterator[tuple[str, Any]]:
    closure = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, closure, strict=True):
        yield f"<{name}>", cell.cell_contents
    scope = function.__globals__
    for name in sorted(set(_names(function.__code__))):
        if name in scope:
            yield name, scope[name]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _of_module(module: types.ModuleType, seen: set[Any]) -> bytes:
    file = getattr(module, "__file__", None) or ""
    if not file or module in seen or _is_library(module.__name__) or "site-packages" in file:
        return b""
    seen.add(module)
    digest = hashlib.sha256(Path(file).read_bytes())
    for name, value in sorted(vars(module).items()):
        if isinstance(value, types.ModuleType):
            digest.update(name.encode() + _of_module(value, seen))
        elif isinstance(value, types.FunctionType) and not _is_library(value.__module__):
            digest.update(name.encode() + _of_function(value, seen))
    return digest.digest()


def _add_code(code: types.CodeType, digest: Any) -> None:
    constants = [k for k in code.co_consts if not isinstance(k, types.CodeType)]
    digest.update(code.co_code + repr((code.co_names, code.co_varnames, constants)).encode())
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            _add_code(inner, digest)
