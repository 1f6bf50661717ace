"""Compiled entries of the loop, cached by their sources."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from c2c.compiling.addresses import LOOP, Linked
from c2c.compiling.cache_folder import prune, user_cache, writable
from c2c.compiling.decision import DecisionPoint, implementations, outside
from c2c.compiling.entries import Tables, link
from c2c.compiling.fingerprint import fingerprint
from c2c.compiling.kept import Made, address_of, native, read
from c2c.compiling.mistakes import policy_error
from c2c.compiling.on_demand import PARTS, Apart
from c2c.compiling.packing import as_array, kind_of, pack, words

__all__ = ["Compiled", "cache_dir", "cache_key", "compiled", "forget", "is_kept", "variant_key"]

_USERS = "user"
_FROZEN = 1000  # objects; Python freezes some hundreds when it starts


def _sources() -> list[Path]:
    package = Path(__file__).resolve().parent.parent
    files = [package / "cost" / name for name in ("attention.py", "contention.py")]
    files += [package / "draws.py", package / "jit.py", package / "workloads" / "routing.py"]
    for folder in ("compiling", "policies", "serving", "simulator"):
        files += sorted((package / folder).rglob("*.py"))
    return files


def cache_key(sources: list[Path] | None = None) -> str:
    """Return a key of all sources."""
    digest = hashlib.sha256()
    for text in (platform.python_version(), version("numba"), version("llvmlite"), np.__version__):
        digest.update(text.encode())
    for path in _sources() if sources is None else sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


@functools.cache
def _loaded_key() -> str:
    return cache_key()


def cache_dir() -> Path:
    """Return the folder of this version's machine code."""
    return user_cache() / "numba" / _loaded_key()


def variant_key(rules: Any) -> str | None:
    """Return a key of users' policies: "" without any, None if one has no import."""
    users = {type(policy) for policy in outside(rules)}
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


@functools.cache
def _shared_folder() -> Path:
    folder = writable(cache_dir())
    prune(folder)
    return folder


@functools.cache
def _users_folder(key: str) -> Path:
    folder = writable(_shared_folder() / f"{_USERS}-{key}")
    prune(folder, f"{_USERS}-*")
    return folder


def is_kept(function: Callable[..., int]) -> bool:
    """True if an entry's machine code is on disk."""
    return any(cache_dir().glob(f"{function.__name__}-*.o"))


def compiled(function: Callable[..., int], arguments: tuple[Any, ...]) -> Compiled:
    """Return an entry compiled for rules of given types; damaged machine code is made anew.

    Args:
      function: entry that takes the loop's `w` and returns a number.
      arguments: of later calls.

    Raises:
      PolicyError: a policy cannot be compiled; with name, line and reason.
    """
    with _no_collections():
        return _made(function, arguments)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Pause garbage collection, a tenth of the compile time for 160 MB until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _age()
            gc.enable()


@functools.cache  # once a process: the count walks all objects
def _age() -> None:
    if gc.get_freeze_count() < _FROZEN:  # what someone else froze is not thawed
        gc.freeze()
        gc.unfreeze()


class Compiled:
    """An entry as machine code."""

    __slots__ = ("_call", "_known", "_parts", "_tables")

    def __init__(self, call: Callable[[int], int], tables: Tables, parts: Apart) -> None:
        self._call, self._tables, self._parts = call, tables, parts
        # Packing takes a millisecond; most arguments stay what they are.
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, *arguments: Any) -> int:
        """Call the entry with arguments of those types."""
        array = self._words(arguments)  # lives until the call has ended
        return self._call(array.ctypes.data)

    def bound(self, *arguments: Any) -> Callable[[], int]:
        """Return a call (1 us) with these tuples; arrays are shared."""
        array, call = self._words(arguments), self._call
        address, references = array.ctypes.data, (array, tuple(self._known.values()))

        def again(_lives: Any = references) -> int:
            return call(address)

        return again

    def _words(self, arguments: tuple[Any, ...]) -> np.ndarray:
        numbers: list[int] = []
        loop, *others = arguments
        for place, value in enumerate((*loop, *others)):
            if not hasattr(value, "_fields"):
                numbers += words(value)
                continue
            if place not in self._known or self._known[place][0] is not value:
                is_rules = value is loop.rules
                linked = _with_addresses(value, self._tables, self._parts) if is_rules else value
                self._known[place] = value, pack(linked)
            numbers.append(self._known[place][1].at)
        return as_array(numbers)


def _with_addresses(rules: Any, tables: Tables, parts: Apart) -> Any:
    return rules._replace(system=tables.system, own=tables.own, apart=parts)


def forget() -> None:
    """Forget loaded machine code; files stay."""
    for cached in (_shared_folder, _users_folder, read):
        cached.cache_clear()


def _made(function: Callable[..., int], arguments: tuple[Any, ...]) -> Compiled:
    loop, *others = arguments
    key = variant_key(loop.rules)
    tables = _linked(loop, key)
    values = [loop._replace(rules=_with_addresses(loop.rules, tables, Apart())), *others]
    kinds = [*map(kind_of, values)]
    parts = _parts(arguments, values, kinds)
    address = address_of(
        _shared_folder(), function.__name__, kinds, lambda: _builder().entry(function, values)
    )
    call = native(address) if key == "" else functools.partial(_builder().raising(), address)
    return Compiled(call, tables, parts)


def _builder() -> Any:
    from c2c.compiling import builder

    return builder


def _parts(arguments: tuple[Any, ...], instances: list[Any], kinds: list[str]) -> Apart:
    values = {type(part): part for value in arguments for part in _tuples_in(value)}
    samples: dict[Any, Any] = {kind: kind() for kind in (bool, int, float)}
    samples |= {type(part): part for value in instances for part in _tuples_in(value)}
    texts = {type(value): kind for value, kind in zip(instances, kinds, strict=True)}
    addresses = {}
    for name, part in PARTS.items():
        if samples.keys() >= set(part.takes()) and part.is_needed(values):
            takes = [samples[kind] for kind in part.takes()]
            signature = [texts.get(kind) or kind_of(samples[kind]) for kind in part.takes()]
            make = functools.partial(_part, part.function, takes)
            addresses[name] = address_of(_shared_folder(), part.function.__name__, signature, make)
    return Apart(**addresses)


def _part(function: Callable[..., Any], takes: list[Any]) -> Made:
    return cast("Made", _builder().part(function, takes))


def _tuples_in(value: Any) -> Iterator[Any]:
    if hasattr(value, "_fields"):
        yield value
        for part in value:
            yield from _tuples_in(part)


def _linked(loop: Any, key: str | None) -> Tables:
    rules = loop.rules
    nowhere = Tables(
        type(rules.system)(*(Linked(0) for _ in rules.system)),
        type(rules.own)(*(0 for _ in rules.own)),
        (),
    )
    # Of the types that machine code meets, before there are addresses.
    unlinked = loop._replace(rules=_with_addresses(rules, nowhere, Apart()))

    def decision(point: DecisionPoint, policy: Any, memory: Any) -> int:
        if getattr(getattr(policy, "traits", None), "is_default", False):
            return 0  # the loop calls it directly
        folder: Path | None = _shared_folder()
        if outside(policy):
            folder = None if key is None else _users_folder(str(key))
            _builder().raising()  # from now on what its code calls of Numba's is found
        kinds = [kind_of(policy), kind_of(memory)]
        kinds += [kind_of(unlinked)] if LOOP in point.signature.takes else []
        return address_of(
            folder, point.__name__, kinds,
            lambda: cast("Made", _builder().decision(point, policy, memory, unlinked)),
        )  # fmt: skip

    try:
        return link(rules.system, rules.own, decision)
    except Exception as error:
        problem = policy_error(error, rules)
        if problem is error:
            raise
        raise problem from error
