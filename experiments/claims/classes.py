"""Frozen classes of claims (`classes.yaml`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from c2c.errors import DataError, SettingError
from experiments.claims.load import load_claims

__all__ = [
    "Class",
    "ClassName",
    "Reading",
    "Reclassified",
    "class_of",
    "classes",
    "computed_in_full",
    "readings",
    "readings_of",
    "reclassified",
    "relabelled",
]

CLASSES_PATH = Path(__file__).with_name("classes.yaml")
READINGS_PATH = Path(__file__).with_name("readings.yaml")

ClassName = Literal[
    "input", "unprinted", "identity", "rule", "repeat_of", "follows_from", "calibrates",
    "not_comparable", "predicted",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A claim's class, with repeated claims or the calibrated setting."""

    name: ClassName
    of: tuple[str, ...] = ()
    knob: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclassified:
    """A change of a claim's class after the freeze."""

    claim: str
    was: ClassName
    date: date
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A setting that a paper leaves open: default and alternatives."""

    name: str
    asks: str
    claims: tuple[str, ...]
    default: Any
    rule: str
    alternatives: tuple[Any, ...]


@cache
def classes() -> Mapping[str, Class]:
    """Return the classes by claim id."""
    out: dict[str, Class] = {}
    systems = _mapping(CLASSES_PATH)
    systems.pop("reclassified", None)
    older = systems.pop("older", None) or {}
    for system, by_class in (*systems.items(), *older.items()):
        for name, entry in _classes_of(system, by_class):
            if name in out or name not in load_claims():
                raise DataError(CLASSES_PATH.name, f"{name}: expected a claim, once")
            out[name] = entry
        missing = {c.id for c in load_claims().values() if c.system == system} - out.keys()
        if missing and system in systems:
            raise DataError(CLASSES_PATH.name, f"no class of {', '.join(sorted(missing))}")
    for name, entry in out.items():
        if lost := [other for other in entry.of if other not in load_claims()]:
            raise DataError(CLASSES_PATH.name, f"{name}: no claim {', '.join(lost)}")
    return out


def class_of(claim_id: str) -> Class | None:
    """Return a claim's class, or None if its figure decides."""
    return classes().get(claim_id)


@cache
def reclassified() -> tuple[Reclassified, ...]:
    """Return the classes changed after the freeze."""
    out = []
    for entry in _mapping(CLASSES_PATH).get("reclassified") or ():
        try:
            change = Reclassified(**entry)  # its values are checked below
        except TypeError as error:
            raise DataError(CLASSES_PATH.name, f"reclassified: {error}") from error
        day: Any = change.date
        is_whole = change.claim in classes() and change.was in get_args(ClassName)
        if not (is_whole and isinstance(day, date) and str(change.why).strip()):
            raise DataError(
                CLASSES_PATH.name, f"reclassified {change.claim}: expected a claim, was, date, why"
            )
        out.append(change)
    return tuple(out)


@cache
def relabelled() -> frozenset[str]:
    """Return older figures' claims with classes set after results."""
    older = _mapping(CLASSES_PATH).get("older") or {}
    return frozenset(name for system in older for name, _ in _classes_of(system, older[system]))


@cache
def readings(system: str) -> Mapping[str, Reading]:
    """Return a system's readings by name."""
    systems = _systems()
    if system not in systems:
        raise SettingError("system", system, f"one of {', '.join(systems)}")
    out = {}
    for name, entry in systems[system].items():
        try:
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()
            }
            reading = Reading(name=name, **values)
        except TypeError as error:
            raise DataError(READINGS_PATH.name, f"{system}.{name}: {error}") from error
        others = set(map(str, reading.alternatives)) - {str(reading.default)}
        if not str(reading.rule).strip() or len(others) < 2:
            raise DataError(
                READINGS_PATH.name, f"{system}.{name}: expected a rule and two alternatives"
            )
        for start in reading.claims:
            if not any(_starts(c.id, system, start) for c in load_claims().values()):
                raise DataError(READINGS_PATH.name, f"{system}.{name}: no claim {start}")
        out[name] = reading
    return out


def readings_of(claim_id: str) -> tuple[Reading, ...] | None:
    """Return a claim's readings, or None."""
    system = claim_id.split(".", 1)[0]
    if system not in _systems():
        return None
    matches = tuple(
        r for r in readings(system).values() if any(_starts(claim_id, system, s) for s in r.claims)
    )
    return matches or (None if system in computed_in_full() else ())


@cache
def computed_in_full() -> frozenset[str]:
    """Return the systems whose figures compute every alternative."""
    return frozenset(_mapping(READINGS_PATH)["public"])


@cache
def _systems() -> Mapping[str, Mapping[str, Any]]:
    return {name: entry for name, entry in _mapping(READINGS_PATH).items() if name != "public"}


def _starts(claim_id: str, system: str, start: str) -> bool:
    return claim_id.startswith(f"{system}.{start}")


def _classes_of(system: str, by_class: Mapping[str, Any]) -> Iterator[tuple[str, Class]]:
    for name, entries in by_class.items():
        if name not in get_args(ClassName):
            raise DataError(CLASSES_PATH.name, f"{system}.{name}: expected a class")
        class_name = cast("ClassName", name)
        for entry in entries:
            detail: Any = entries[entry] if isinstance(entries, Mapping) else ()
            is_knob = name == "calibrates"
            if isinstance(detail, str) != is_knob:
                raise DataError(CLASSES_PATH.name, f"{system}.{entry}: expected a knob in words")
            yield (
                f"{system}.{entry}",
                Class(
                    name=class_name,
                    of=() if is_knob else tuple(f"{system}.{other}" for other in detail),
                    knob=detail if is_knob else "",
                ),
            )


def _mapping(path: Path) -> dict[str, Any]:
    result = yaml.safe_load(path.read_bytes())
    if not isinstance(result, dict):
        raise DataError(path.name, "expected a mapping")
    return result
