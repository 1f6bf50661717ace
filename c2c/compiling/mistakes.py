"""One-line errors for mistakes in a user's policies."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from c2c.compiling.decision import implementations, outside
from c2c.errors import DataError, PolicyError

__all__ = ["policy_error"]

# Lines of Numba's report that name no reason.
_NOISE = re.compile(
    r"(\^|No match\.|During|raised from|<source elided>|def |With argument|Overload|- |Rejected|"
    r"There are|>>>|Use|File|\()"
)
# What the check of a decision's type says (`c2c.compiling.guard`).
_SAID = re.compile(r"policy (\w+): (.+?, line \d+: .+)")


def policy_error(error: Exception, rules: Any) -> Exception:
    """Return the error as an outside policy's, with line and reason.

    Without such a policy, or for a DataError, return it unchanged.
    """
    policies = outside(rules.system)
    if not policies or isinstance(error, DataError):
        return error
    if any(kind.__name__ == "NumbaError" for kind in type(error).__mro__):
        return _of_compiler(error, policies)
    names = ", ".join(sorted({type(p).__name__ for p in policies}))
    files = {f.__code__.co_filename: name for name, f in _functions(policies)}
    frames = traceback.extract_tb(error.__traceback__)
    if frame := next((f for f in reversed(frames) if f.filename in files), None):
        reason = (
            f"{Path(frame.filename).name}, line {frame.lineno}: {type(error).__name__}: {error}"
        )
        return PolicyError(files[frame.filename], reason)
    if isinstance(error, RuntimeError):
        return PolicyError(names, str(error))
    return PolicyError(
        names, f"{type(error).__name__}: {error} (compiled=False runs it where a debugger can look)"
    )


def _functions(policies: list[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for policy in policies:
        for function in implementations(type(policy)):
            yield type(policy).__name__, function


def _of_compiler(error: Exception, policies: list[Any]) -> Exception:
    if match := _SAID.search(str(error)):
        return PolicyError(match[1], match[2])
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for k, line in enumerate(lines):
        place = re.match(r'File "(.+)", line (\d+)', line)
        if place is None:
            continue
        if name := _at(place[1], int(place[2]), policies):
            where = f"{Path(place[1]).name}, line {place[2]}"
            return PolicyError(name, f"{where}: {_reason(lines, k, error)}")
    return error


def _at(file: str, line: int, policies: list[Any]) -> str | None:
    best: tuple[int, str] | None = None
    for name, function in _functions(policies):
        source = Path(function.__code__.co_filename)
        path = Path(file)  # Numba shortens it, relative to where the process runs
        if path.name != source.name or (path.exists() and path.resolve() != source.resolve()):
            continue
        behind = line - function.__code__.co_firstlineno
        distance = behind if behind >= 0 else 1_000_000 - behind
        if best is None or distance < best[0]:
            best = (distance, name)
    return best[1] if best else None


def _reason(lines: list[str], index: int, error: Exception) -> str:
    if "NRT required" in str(error):
        return "it allocates (an array, list or text), which a compiled policy may not"
    if called := re.search(r"Untyped global name '(\w+)':.*class 'function'", str(error)):
        return f"{called[1]} is called without the decorator c2c.policies.jitable"
    for line in lines[max(0, index - 3) : index]:
        if called := re.search(r"resolving callee type: Function\((.+?)(?: at 0x\w+>)?\)$", line):
            return f"Numba has no {called[1].strip('<>')} for these types"
    return next(
        (x for x in reversed(lines[:index]) if not _NOISE.match(x)), "Numba cannot compile it"
    )
