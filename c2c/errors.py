"""Errors that users see."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "BackendError",
    "DataError",
    "PolicyError",
    "SettingError",
    "check_keys",
    "located",
    "refuse",
    "unknown_name",
]

_LISTED = 12  # names; of more, only those close to what was given


class SettingError(ValueError):
    """A setting that cannot work: its field, value, what is allowed, a hint.

    >>> print(SettingError("mig.sm_count", 0, "a number above 0"))
    mig.sm_count=0: expected a number above 0.
    """

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        super().__init__(f"{field}={value!r}: expected {allowed}. {hint}".rstrip())
        self.field = field
        self.value = value
        self.allowed = allowed
        self.hint = hint


def refuse(*rules: tuple[Any, ...]) -> None:
    """Raise SettingError for the first broken rule."""
    for holds, *details in rules:
        if holds:
            raise SettingError(*details)


def check_keys(settings: Mapping[Any, Any], choices: Iterable[str], where: str) -> None:
    """Raise SettingError for an unknown key."""
    names = list(choices)
    for key, value in settings.items():
        if key not in names:
            raise unknown_name(f"{where}.{key}", value, names, str(key), "a key among")


def unknown_name(
    field: str, value: object, choices: Iterable[object], name: object = None, kind: str = "one of"
) -> SettingError:
    """Return the error for an unknown name, with the known or the closest ones.

    >>> print(unknown_name("link", "fast", ["datasheet", "measured"]))
    link='fast': expected one of datasheet, measured.
    >>> print(unknown_name("sead", 4, ["seed", *map(str, range(20))], "sead", "a key among"))
    sead=4: expected a key that exists (of 21). Did you mean seed?
    """
    names = sorted({str(one) for one in choices})
    near = difflib.get_close_matches(str(value if name is None else name), names, n=3)
    if len(names) <= _LISTED or not near:
        return SettingError(field, value, f"{kind} {', '.join(names) or '(none found)'}")
    noun = kind.removesuffix(" among") if kind.endswith(" among") else "a name"
    hint = f"Did you mean {' or '.join(near)}?"
    return SettingError(field, value, f"{noun} that exists (of {len(names)})", hint)


class DataError(ValueError):
    """A file or table that cannot be used: its name, the fault, a hint.

    >>> print(DataError("trace.csv", "no column 'arrival_s'"))
    trace.csv: no column 'arrival_s'.
    """

    def __init__(self, source: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{source}: {problem}. {hint}".rstrip())
        self.source = source
        self.problem = problem


def located(error: Exception, function: Callable[..., Any]) -> str:
    """Return file, line and reason of a function's error."""
    file = function.__code__.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    line = next(f.lineno for f in reversed(frames) if f.filename == file)
    owner = error.obj if isinstance(error, AttributeError) else None
    names = getattr(getattr(owner, "dtype", None), "names", None) or getattr(owner, "_fields", ())
    hint = f"; it has {', '.join(names)}" if names else ""
    return f"{Path(file).name}, line {line}: {type(error).__name__}: {error}{hint}"


class PolicyError(DataError):
    """A policy that cannot decide: its name and the fault.

    >>> print(PolicyError("Mine", "place returned 7, of 3 rows"))
    policy Mine: place returned 7, of 3 rows.
    """

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(f"policy {policy}", problem)
        self.policy = policy


class BackendError(ValueError):
    """An event that the serving loop cannot have caused.

    >>> print(BackendError("StepEnd", "device", 3, "a device that was told to run"))
    StepEnd.device=3: expected a device that was told to run.
    """

    def __init__(self, event: str, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{event}.{field}={value!r}: expected {allowed}.")
        self.event = event
        self.field = field
        self.value = value
