"""Parts filled by a mechanism: `system.start`, `system.layout`."""

from __future__ import annotations

import importlib
import math
import pkgutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import c2c.systems
from c2c.config.plug_ins import plug_ins
from c2c.errors import DataError, SettingError, located, unknown_name
from c2c.ranges import check_fields
from c2c.serving import SystemSpec
from c2c.systems.mechanism import Context, Mechanism

__all__ = ["is_by_mechanism", "mechanisms_of", "with_parts"]

_PARTS: Final = ("start", "layout")


def is_by_mechanism(value: object) -> bool:
    """Return whether a mechanism fills a part."""
    return isinstance(value, str | Mapping)


# A mechanism is the `SYSTEM` of a module and has the module's name: a package of `c2c.systems`, an
# installed plug-in or a file of `code`.
def mechanisms_of(run: Mapping[str, Any]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that a run's settings name, at most one a part.

    Raises:
      SettingError: an unknown mechanism.
    """
    choices = {part: run["system"][part] for part in _PARTS}
    return tuple(
        _found(part, value, _paths(run))
        for part, value in choices.items()
        if is_by_mechanism(value)
    )


def with_parts(
    mechanisms: Sequence[Mechanism], context: Context
) -> tuple[SystemSpec, tuple[str, ...]]:
    """Return a context's system with mechanisms' parts, and their notes.

    Raises:
      SettingError: a mechanism's invalid setting.
      DataError: an outside mechanism fails.
    """
    notes: tuple[str, ...] = ()
    for mechanism in mechanisms:
        settings = _settings(mechanism, context.run["system"][mechanism.part])
        inner = replace(context, settings=settings)
        notes += mechanism.notes(inner)
        context = replace(context, system=_prepared(mechanism, inner))
    system, layout = context.system, context.system.layout
    if layout is not None and system.start and system.starts_active:
        notes += (f"system.start: engines of {layout.name} start on demand, none is there before",)
        context = replace(context, system=replace(system, starts_active=False))
    window_s = getattr(context.system.vary, "window_s", math.inf)
    if layout is not None and window_s < layout.switch_s:
        warnings.warn(
            f"system.vary.window_s={window_s}: shorter than a switch, {layout.switch_s} s",
            stacklevel=2,
        )
    return context.system, notes


def _paths(run: Mapping[str, Any]) -> dict[str, str]:
    packages = [
        m.name for m in pkgutil.iter_modules(c2c.systems.__path__, "c2c.systems.") if m.ispkg
    ]
    paths = [
        *packages,
        *(m.__name__ for m in plug_ins().values()),
        *(Path(f).stem for f in run["code"]),
    ]
    result: dict[str, str] = {}
    for path in paths:
        name = path.rpartition(".")[2]
        if result.setdefault(name, path) != path and _system(path) and _system(result[name]):
            raise DataError(f"mechanism {name}", f"both {result[name]} and {path} define it")
    return result


def _system(path: str) -> Mechanism | None:
    system = getattr(importlib.import_module(path), "SYSTEM", None)
    return system if isinstance(system, Mechanism) else None


def _named(value: str | Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, str):
        name, _, way = value.partition("/")
        return name, {"way": way} if way else {}
    return value.get("mechanism"), {k: v for k, v in value.items() if k != "mechanism"}


def _found(part: str, value: str | Mapping[str, Any], paths: Mapping[str, str]) -> Mechanism:
    name, _ = _named(value)
    result = _system(paths[name]) if name in paths else None
    if result is not None and result.part == part:
        return result
    if name in paths and result is None and "." not in paths[name]:  # a file of the user's
        raise DataError(f"mechanism {name}", "its module has no SYSTEM that is a Mechanism")
    systems = {n: s for n, path in paths.items() if (s := _system(path)) and s.part == part}
    if not isinstance(value, str):
        raise unknown_name(f"system.{part}.mechanism", name, systems)
    ways = [f"{n}/{way}" for n, system in systems.items() for way in system.ways]
    raise unknown_name(f"system.{part}", value, [*systems, *ways])


def _settings(mechanism: Mechanism, value: str | Mapping[str, Any]) -> Any:
    from hydra_zen import builds
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from c2c.config.refusals import as_setting_error

    part, options = mechanism.part, _named(value)[1]
    schema = OmegaConf.structured(builds(mechanism.settings, populate_full_signature=True))
    try:
        merged: Any = OmegaConf.merge({"system": {part: schema}}, {"system": {part: options}})
    except OmegaConfBaseException as error:
        every = [f"system.{part}.{key}={inner}" for key, inner in options.items()]
        raise as_setting_error(error, every) from error
    plain: Any = OmegaConf.to_container(merged.system[part])
    result = mechanism.settings(**{k: v for k, v in plain.items() if not k.startswith("_")})
    check_fields(result, f"system.{part}")
    return result


def _prepared(mechanism: Mechanism, context: Context) -> SystemSpec:
    part, prepare = mechanism.part, mechanism.prepare
    try:
        result: object = prepare(context)
    except (SettingError, DataError):
        raise
    except Exception as error:
        if prepare.__module__.startswith("c2c."):
            raise
        raise DataError(f"mechanism of system.{part}", located(error, prepare)) from error
    if not isinstance(result, SystemSpec) or not getattr(result, part):
        raise DataError(f"mechanism of system.{part}", f"it returned no SystemSpec with a {part}")
    return result
