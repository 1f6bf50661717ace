"""Compiled entries of the loop, cached on disk under a key made of their sources' content.

There are two: the simulator's event loop, and the step that a live engine drives.

Numba's own cache looks only at the file that holds the entry function: after a change in a policy
it would go on answering with the old machine code. Here every change of a source, of Numba or of
NumPy leads to another cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import llvmlite
import numba
import numpy as np
from numba.core.caching import UserProvidedCacheLocator
from numba.core.errors import NumbaError

from c2c.compiling.cache_folder import is_damage, prune, writable
from c2c.compiling.decision import BY_ADDRESS, OPTIONS, implementations
from c2c.compiling.entries import Tables, decide_at, link
from c2c.compiling.fingerprint import fingerprint
from c2c.compiling.mistakes import policy_error
from c2c.compiling.on_demand import PARTS, Apart
from c2c.compiling.packed import pack
from c2c.errors import PolicyError

__all__ = [
    "Compiled",
    "KeyedLocator",
    "cache_dir",
    "cache_key",
    "compiled",
    "forget",
    "is_kept",
    "variant_key",
]

_USERS = "user"
_FROZEN = 1000  # objects; Python freezes some hundreds when it starts
_RULES = 1  # where the rules stand among the arguments of every entry


def _sources() -> list[Path]:
    package = Path(__file__).resolve().parent.parent
    files = [package / "cost" / name for name in ("attention.py", "contention.py")]
    files += [package / "draws.py", package / "workloads" / "routing.py"]
    for folder in ("compiling", "policies", "serving", "simulator"):
        files += sorted((package / folder).glob("*.py"))
    return files


def cache_key(sources: list[Path] | None = None) -> str:
    """Return a key of the content of all sources that the compiled code is made of."""
    digest = hashlib.sha256()
    for version in (platform.python_version(), numba.__version__, llvmlite.__version__):
        digest.update(version.encode())
    digest.update(np.__version__.encode())
    for path in _sources() if sources is None else sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def cache_dir() -> Path:
    """Return the folder of this version's machine code (env C2C_CACHE or the user's cache)."""
    user = os.environ.get("XDG_CACHE_HOME")
    default = (Path(user) if user else Path.home() / ".cache") / "c2c"
    return Path(os.environ.get("C2C_CACHE") or default) / "numba" / cache_key()


def _policies_in(values: Any) -> Iterator[type]:
    if implementations(type(values)):
        yield type(values)
    elif isinstance(values, tuple):
        for value in values:
            yield from _policies_in(value)


def variant_key(rules: Any) -> str | None:
    """Return a key of the users' policies among the rules: "" without any, None for unkeepable.

    Machine code of a policy that cannot be imported by name (of a notebook) is not kept on disk.
    """
    users = {p for p in _policies_in(rules) if not p.__module__.startswith("c2c.")}
    if not users:
        return ""
    digest = hashlib.sha256()
    for policy in sorted(users, key=lambda p: (p.__module__, p.__qualname__)):
        module = sys.modules.get(policy.__module__)
        if (
            policy.__module__ == "__main__"
            or getattr(module, policy.__qualname__, None) is not policy
        ):
            return None
        named: Any = policy
        digest.update(f"{policy.__module__}.{policy.__qualname__}{named._fields}".encode())
        for function in implementations(policy):
            digest.update(fingerprint(function))
    return digest.hexdigest()[:16]


class KeyedLocator(UserProvidedCacheLocator):
    """Cache files lie by module in the keyed folder, wherever the checkout is."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        config: Any = numba.config
        self._cache_path = str(Path(config.CACHE_DIR) / py_func.__module__)


@contextlib.contextmanager
def _numba_cache(folder: Path) -> Iterator[None]:
    config: Any = numba.config
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR = str(folder)
    config.CACHE_LOCATOR_CLASSES = f"{KeyedLocator.__module__}.{KeyedLocator.__qualname__}"
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before


@functools.cache
def _shared_folder() -> Path:
    folder = writable(cache_dir())
    prune(folder)
    return folder


@functools.cache
def _entry(function: Callable[..., int]) -> Any:
    with _numba_cache(_shared_folder()):
        return numba.njit(cache=True, **OPTIONS)(function)


@functools.cache
def _decisions(key: str | None) -> Any:
    folder = _shared_folder()
    if key:
        # Numba's index names classes: one folder for all would stop processes that lack a
        # user's module.
        folder = writable(folder / f"{_USERS}-{key}")
        prune(folder, f"{_USERS}-*")
    with _numba_cache(folder):
        return numba.njit(cache=key is not None, **BY_ADDRESS)(decide_at)


def is_kept(function: Callable[..., int]) -> bool:
    """Return whether an entry's machine code is on disk; that of a policy takes a moment."""
    return any((cache_dir() / function.__module__).glob(f"*.{function.__name__}-*.nbc"))


def compiled(function: Callable[..., int], arguments: tuple[Any, ...]) -> Compiled:
    """Return an entry compiled, to be called with the same rules.

    Args:
      function: the entry: takes the rules as its second argument, returns a number.
      arguments: as it will be called with.

    Compiled code that was kept and cannot be read is deleted and made again, once.

    The first call on a machine takes tens of seconds, each policy not seen before a moment.

    Raises:
      PolicyError: a user's policy cannot be compiled; names it, the line and the reason.
    """
    with _no_collections():
        return _made_whole(lambda: Compiled(*_made(function, arguments)))


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Leave garbage be: the compiler makes a million objects that stay, looked through many times.

    A tenth of its time, for 160 MB until it is done. Then they count as old: a process that ends
    soon never looks through them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_freeze_count() < _FROZEN:  # what someone else froze is not thawed
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class Compiled:
    """An entry as machine code, for arguments of the types that it was made for."""

    __slots__ = ("_entry", "_packed")

    def __init__(self, entry: Any, packed: Callable[[int, Any], Any]) -> None:
        self._entry, self._packed = entry, packed

    def __call__(self, *given: Any) -> int:
        """Call it with arguments of those types."""
        return int(self._entry(*(self._packed(k, value) for k, value in enumerate(given))))

    def bound(self, *given: Any) -> Callable[[], int]:
        """Return the call with these very arguments, all of them tuples.

        It takes microseconds, where a call as of a function looks for what fits the types of its
        arguments. What is written into the arrays is seen on both sides.
        """
        packed = tuple(self._packed(k, value) for k, value in enumerate(given))
        kinds = tuple(cast("Any", numba.typeof)(value) for value in packed)
        return _Call(self._entry.overloads[kinds].entry_point, packed, self._packed)


class _Call:
    """A call with arguments at addresses, which live as long as it does."""

    __slots__ = ("_given", "_kept", "_point")

    def __init__(self, point: Callable[..., int], given: tuple[Any, ...], kept: Any) -> None:
        self._point, self._given, self._kept = point, given, kept

    def __call__(self) -> int:
        return self._point(*self._given)


def _made_whole[T](make: Callable[[], T]) -> T:
    try:
        return make()
    except (PolicyError, NumbaError):
        raise
    except Exception as error:
        if not is_damage(error):
            raise
        folder = _shared_folder()
        warnings.warn(
            f"compiled code in {folder} is damaged ({type(error).__name__}: {error}); it is "
            "compiled again", stacklevel=3,
        )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        forget()
        return make()


def forget() -> None:
    """Forget what this process has compiled or read; what is on disk stays."""
    for cached in (_entry, _part, _decisions, _shared_folder):
        cached.cache_clear()


def _made(
    function: Callable[..., int], arguments: tuple[Any, ...]
) -> tuple[Any, Callable[[int, Any], Any]]:
    """Return the entry with machine code for such arguments, and what makes them of values."""
    tables = _linked(arguments[_RULES])
    entry, typeof = _entry(function), cast("Any", numba.typeof)
    parts = Apart()
    known: dict[int, tuple[Any, Any]] = {}  # packing takes milliseconds; most stay what they are

    def packed(place: int, value: Any) -> Any:
        if not hasattr(value, "_fields"):
            return value
        if place not in known or known[place][0] is not value:
            if place == _RULES:
                known[place] = (
                    value,
                    pack(value._replace(system=tables.system, own=tables.own, apart=parts)),
                )
            else:
                known[place] = value, pack(value)
        return known[place][1]

    parts = _parts(arguments, [typeof(packed(k, value)) for k, value in enumerate(arguments)])
    known.pop(_RULES)
    entry.compile(tuple(typeof(packed(k, value)) for k, value in enumerate(arguments)))
    return entry, packed


@functools.cache
def _part(name: str) -> Any:
    with _numba_cache(_shared_folder()):
        return numba.njit(cache=True, **BY_ADDRESS)(PARTS[name].function)


def _parts(arguments: tuple[Any, ...], kinds: list[Any]) -> Apart:
    """Return the addresses of the parts that the rules' system needs, made or read."""
    known = {type(value): kind for value, kind in zip(arguments, kinds, strict=True)}
    others = (*arguments[:_RULES], *arguments[_RULES + 1 :])
    known |= {type(part): _kind_of(part) for value in others for part in _tuples_in(value)}
    values = {type(value): value for value in arguments}
    found = {}
    for name, part in PARTS.items():
        if part.takes() <= known.keys() and part.is_needed(values):
            compiled, wanted = _part(name), part.kinds(known)
            compiled.compile(wanted)
            made = compiled.overloads[wanted]
            found[name] = int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))
    return Apart(**found)


def _tuples_in(value: Any) -> Iterator[Any]:
    if hasattr(value, "_fields"):
        yield from (part for part in value if hasattr(part, "_fields"))


def _kind_of(value: Any) -> Any:
    return cast("Any", numba.typeof)(pack(value))


def _linked(rules: Any) -> Tables:
    """Return the tables of the rules' policies, their machine code made or read."""

    def address_of(is_outside: bool, kinds: tuple[Any, ...]) -> int:
        decisions = _decisions(variant_key(rules) if is_outside else "")
        decisions.compile(kinds)
        made = decisions.overloads[kinds]
        return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))

    try:
        return link(rules.system, rules.own, address_of)
    except NumbaError as error:
        raise policy_error(error, rules) from error
