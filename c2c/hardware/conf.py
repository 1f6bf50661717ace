"""Folders of settings, and typed reading of YAML."""

import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from pickle import dumps, loads
from typing import Any

from c2c.errors import DataError, SettingError, check_keys, unknown_name
from c2c.ranges import allowed, typed

__all__ = [
    "SOURCE_KINDS",
    "bases",
    "conf_dir",
    "conf_file",
    "conf_folders",
    "conf_name",
    "conf_names",
    "read_fields",
    "read_yaml",
    "search_also",
    "unknown_file",
]

SOURCE_KINDS = ("datasheet", "paper", "measured", "derived", "assumption")

_GROUPS = ("hardware", "mig_table")
_also: list[Path] = []  # folders of the user's and of plug-ins, searched after `conf_dir()`


def conf_dir() -> Path:
    """Return the folder of settings: C2C_CONF, else the wheel's, else the checkout's.

    Raises:
      SettingError: it lacks `hardware/` or `mig_table/`.
    """
    value = os.environ.get("C2C_CONF")
    folder = Path(value) if value else _own()
    if not all((folder / group).is_dir() for group in _GROUPS):
        raise SettingError(
            "C2C_CONF", str(folder), f"a folder that holds {' and '.join(_GROUPS)}",
            "Unset C2C_CONF for the settings that come with c2c.",
        )  # fmt: skip
    return folder


@cache
def _own() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def search_also(folders: Iterable[Path]) -> None:
    """Search these folders, not earlier ones, after `conf_dir()`."""
    _also[:] = folders


def conf_folders() -> tuple[Path, ...]:
    """Return `conf_dir()`, then the user's folders."""
    return (conf_dir(), *_also)


def conf_names(group: str) -> tuple[str, ...]:
    """Return a group's names, without ".yaml"."""
    folders = [f / group for f in conf_folders() if (f / group).is_dir()]
    files = (name for f in folders for name in os.listdir(f))  # noqa: PTH208 (ten times as fast)
    return tuple(sorted({n.removesuffix(".yaml") for n in files if n.endswith(".yaml")}))


def conf_name(group: str, name: str, field: str | None = None) -> str:
    """Return a setting's name in its file's spelling, case aside.

    Raises:
      SettingError: no such file, with those that exist. `field`: by default the group.
    """
    names = conf_names(group)
    alike = [one for one in names if one.casefold() == name.casefold()]
    if name in names or len(alike) == 1:
        return name if name in names else alike[0]
    raise unknown_file(group, name, names, field)


def unknown_file(
    group: str, name: object, choices: Iterable[str], field: str | None = None
) -> SettingError:
    """Return the error for a setting without a file."""
    if group != "hardware":
        return unknown_name(field or group, name, choices)
    names, recipe = sorted(choices), "docs/recipes.md#a-chip adds another."
    near = [one for one in names if _codes(one) & _codes(str(name))]
    if not near:
        return SettingError(field or group, name, f"one of {', '.join(names)}", recipe)
    meant = f"Did you mean {' or '.join(near)}? {recipe}"
    return SettingError(field or group, name, f"a name that exists (of {len(names)})", meant)


def _codes(name: str) -> set[str]:
    words = re.split(r"[^a-z0-9]+", name.casefold())
    matches = (re.match(r"[a-z]+\d+", word) for word in (*words, "".join(words)))
    return {code[0] for code in matches if code}


def conf_file(group: str, name: str) -> Path:
    """Return the first path of `<group>/<name>.yaml`.

    Raises:
      SettingError: no such file.
    """
    name = conf_name(group, name)
    files = (folder / group / f"{name}.yaml" for folder in conf_folders())
    return next(file for file in files if file.is_file())


def read_yaml(group: str, name: str) -> dict[str, Any]:
    """Return `<group>/<name>.yaml` with its `defaults` merged as by Hydra.

    Raises:
      SettingError: no such file.
      DataError: no YAML mapping, or invalid or circular defaults.
    """
    return _composed(group, name, ())


def bases(group: str, name: str) -> tuple[str, ...]:
    """Return a file's `defaults`, nearest first, with theirs."""
    defaults = _mapping(conf_file(group, name)).get("defaults", [])
    names = [base for base in reversed(defaults) if base != "_self_"]
    return (*names, *(base for one in names for base in bases(group, one)))


def _composed(group: str, name: str, within: tuple[str, ...]) -> dict[str, Any]:
    path = conf_file(group, name)
    content = _mapping(path)
    bases = content.pop("defaults", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise DataError(str(path), f"defaults={bases}: expected a list of files of conf/{group}")
    if name in within:
        raise DataError(str(path), "its defaults include the file itself")
    merged: dict[str, Any] = {}
    for base in bases if "_self_" in bases else [*bases, "_self_"]:
        part = content if base == "_self_" else _composed(group, base, (*within, name))
        merged = _merged(merged, part, f"{group}.{name}")
    if "name" in merged and "name" not in content:
        raise SettingError(f"{group}.{name}.name", None, "a name of its own", f"See {path}.")
    return merged


def _merged(under: Mapping[str, Any], over: Mapping[str, Any], where: str) -> dict[str, Any]:
    both = {**under, **over}
    for key in under.keys() & over.keys():
        value = over[key]
        if isinstance(under[key], Mapping) and isinstance(value, Mapping):
            both[key] = _merged(under[key], value, f"{where}.{key}")
        elif (
            isinstance(value, (int, float))
            and value != under[key]
            and key in under.get("source", ())
            and key not in over.get("source", ())
        ):
            raise _no_source(f"{where}.source.{key}", None, f"The file sets {key}.")
    return both


def _no_source(field: str, value: object, hint: str = "") -> SettingError:
    return SettingError(field, value, f"text that begins with {', '.join(SOURCE_KINDS)}:", hint)


def _mapping(path: Path) -> dict[str, Any]:
    stat = path.stat()
    result: dict[str, Any] = loads(_parsed(path, stat.st_mtime_ns, stat.st_size))  # noqa: S301 (ours)
    return result


@cache
def _parsed(path: Path, _changed_ns: int, _size: int) -> bytes:
    import yaml  # here: GPU machines that only measure lack it

    try:
        # libyaml if the wheel includes it, ten times as fast
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        data = yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 (a safe one)
    except yaml.YAMLError as err:
        raise DataError(str(path), f"not YAML: {err}") from err
    if not isinstance(data, dict):
        raise DataError(str(path), f"expected a mapping, found {type(data).__name__}")
    return dumps(data)  # a copy of each caller's own, in a tenth of `deepcopy`


def read_fields[T](cls: type[T], data: object, where: str) -> T:
    """Build a flat dataclass of numbers and strings from a mapping; `where` prefixes errors.

    Its `source` maps each numeric field to a text that begins with a kind of `SOURCE_KINDS`.

    Raises:
      SettingError: a missing, unknown, ill-typed or unsourced field.
    """
    if not isinstance(data, Mapping):
        raise SettingError(where, data, "a mapping")
    hints = _hints(typing.cast("Any", cls))
    field_of: dict[str, Field[Any]] = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    check_keys(data, field_of, where)
    values: dict[str, Any] = {}
    for name, field in field_of.items():
        if name == "source":
            continue
        if name in data:
            values[name] = typed(data[name], hints[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise SettingError(
                f"{where}.{name}", None, allowed(hints[name], name), "It is missing."
            )
    if "source" in field_of:
        values["source"] = _sources(f"{where}.source", data.get("source"), values)
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _sources(where: str, sources: object, values: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(sources, Mapping):
        raise SettingError(where, sources, "a mapping from each field to its source")
    check_keys(sources, values, where)
    for key, value in values.items():
        if isinstance(value, (int, float)):
            text = sources.get(key)
            if not isinstance(text, str) or text.split(":")[0] not in SOURCE_KINDS:
                raise _no_source(f"{where}.{key}", text)
    return {str(k): str(v) for k, v in sources.items()}
