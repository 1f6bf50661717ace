"""Conversion of Hydra's and OmegaConf's errors to `SettingError`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from c2c.errors import DataError, SettingError, unknown_name
from c2c.hardware import conf_dir, conf_folders, load_platform, platforms, unknown_file
from c2c.policies import DECISIONS

__all__ = [
    "SWEEP",
    "as_setting_error",
    "check_choices",
    "check_renamed",
    "choices",
    "is_group",
    "spelled",
    "wrong_kind",
]

SWEEP = "c2c simulate -m"  # the command that runs each of several choices

_KINDS = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "bool": "true or false",
    "String": "a string",
    "List": "a list, such as [a,b]",
    "Dict": "a mapping, such as {name: value}",
}
# Hints on what a user may have meant by several choices of a group.
_TOGETHER = {
    "hardware": "For unlike chips in one fleet set fleet.parts=[{hardware: gh200}, "
    "{hardware: l40s}]. For several GPUs with links between them set node=a100_l40s.",
    "fleet": "For unlike chips set fleet.parts=[{hardware: gh200}, {hardware: l40s}].",
    "mig": "For unlike slices of one chip set mig=3g_4x1g or the like.",
    "catalog": "For models of both set catalog.models.",
}
# Settings of release 0.1 -> their present names.
_RENAMED = {"system/step": "system/batch", "system.prompts_alone": "system/batch=prompts_alone"}
# Values that cannot name a file of a config group.
_OVERLAYS = "experiment"
_NO_NAME = re.compile(r"|null|true|false|[-+\d.]+|[\[{].*")
# OmegaConf's texts for a value of the wrong type.
_OTHER_KIND = re.compile(
    r"could not be converted to (\w+)|is not a valid (\w+)|is not a (List|Dict)Config"
    r"|Cannot assign \w+ to (List|Dict)|is not a subclass of (\w+)"
)


def as_setting_error(
    error: BaseException, overrides: Sequence[str] = ()
) -> SettingError | DataError:
    """Return an error with field, value and allowed values.

    Args:
      error: error of Hydra or OmegaConf.
      overrides: give a missing value.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    for one in chain:
        if isinstance(one, SettingError | DataError):
            return one
    override = _override(chain)
    value_of = {key.lstrip("+~"): value for key, _, value in (o.partition("=") for o in overrides)}
    for one in chain:
        if isinstance(one, MissingConfigException) and one.missing_cfg_file:
            group, _, name = str(one.missing_cfg_file).rpartition("/")
            return unknown_file(group or "config", name, {*(one.options or ()), *choices(group)})
        if isinstance(one, OverrideParseException):
            return SettingError(
                "override", one.override, "key=value", "Quote values with special characters."
            )
    for one in chain:
        if isinstance(one, OmegaConfBaseException):
            return _of_omegaconf(one, override, value_of)
        if isinstance(one, yaml.YAMLError):
            return _of_yaml(one)
    text = _first_line(error)
    if isinstance(error, ConfigCompositionException | InstantiationException) and override:
        return SettingError(override[0], override[1], f"a setting that exists ({text})")
    return _of_message(text, value_of)


def check_choices(overrides: Sequence[str], sweep: str | None = SWEEP) -> None:
    """Refuse several choices of a group: Hydra would take the last.

    Allowed are overlays, and choices of a set, such as system/mechanism, that agree.

    Args:
      overrides: also other arguments, skipped.
      sweep: text before `group=a,b` for a sweep; None: no sweeps.

    Raises:
      SettingError: several choices, none, contradictions, or a renamed setting.
    """
    is_sweep = sweep == "" or any(one in ("-m", "--multirun") for one in overrides)
    for override in overrides:
        key, _, given_value = override.lstrip("+~").partition("=")
        check_renamed(key, given_value)
        match = re.fullmatch(r"\+*([\w/]+)(?:@[^=]*)?=(.*[\[,].*)", override, re.DOTALL)
        if match is None or not is_group(match[1]):
            continue
        try:
            (parsed,) = OverridesParser.create().parse_overrides([override])
        except OverrideParseException:  # Hydra says so itself
            continue
        value = parsed.value()
        several = value.list if isinstance(value, ChoiceSweep) else [value]
        for one in several if is_sweep else [several if len(several) > 1 else several[0]]:
            names = [str(name) for name in one] if isinstance(one, list) else [""]
            if names[:1] and names[0].startswith("{"):
                hint = _TOGETHER.get(match[1], "")
                raise SettingError(match[1], match[2], "the name of a file", hint)
            if _is_set(match[1]):
                _check_together(match[1], names)
            elif len(names) != 1 and not (names and all(_is_overlay(match[1], n) for n in names)):
                raise _several(match[1], match[2], ",".join(names), sweep)


def spelled(overrides: Sequence[str], folder: str | Path | None = None) -> list[str]:
    """Return the overrides with chosen files in the case of their names.

    >>> spelled(["hardware=L40S,GH200", "seed=3"])
    ['hardware=l40s,gh200', 'seed=3']

    Args:
      folder: folder of the user's settings; None: that of `--config-dir=`.
    """
    dirs = [one.partition("=")[2] for one in overrides if one.startswith("--config-dir=")]
    folders = [Path(one).expanduser() for one in (*dirs, folder) if one]

    def in_full(match: re.Match[str]) -> str:
        plus, group, sign, value = match.groups()
        if value.islower() or not is_group(group):
            return match[0]
        names = {*choices(group), *(p.stem for f in folders for p in (f / group).glob("*.yaml"))}
        by_case = {name.casefold(): name for name in names}

        def choice(word: re.Match[str]) -> str:
            return word[0] if word[0] in names else by_case.get(word[0].casefold(), word[0])

        return plus + group + sign + re.sub(r"[\w.-]+", choice, value)

    return [re.sub(r"\A(\+*)([\w/]+)((?:@[^=]*)?=)(.*)\Z", in_full, one) for one in overrides]


def check_renamed(key: str, value: object) -> None:
    """Raise for a renamed setting, with its name."""
    new = _RENAMED.get(key) or _RENAMED.get(key.partition(".")[0])
    if new is not None:
        is_group = (conf_dir() / new).is_dir()
        value_of = f"<name>, a file of conf/{new}." if is_group else "<value>."
        hint = f"Set {new}." if "=" in new else f"Set {new}={value_of}"
        raise SettingError(key, value, f"its present name, {new}", hint)


def _several(group: str, value: str, names: str, sweep: str | None) -> SettingError:
    hints = []
    if names and sweep is not None:
        hints.append(f"To run each of them: {f'{sweep} {group}={names}'.strip()}.")
    if names and sweep and group in _TOGETHER:
        hints.append(_TOGETHER[group])
    return SettingError(group, value, "one choice", " ".join(hints))


def is_group(name: str) -> bool:
    """Return whether a setting is a choice of files or policies."""
    parent, _, last = name.rpartition("/")
    return (conf_dir() / name).is_dir() or last in _stored(parent, "group")


def _is_overlay(group: str, name: str) -> bool:
    file = conf_dir() / group / f"{name}.yaml"
    return file.is_file() and file.read_text("utf-8").startswith("# @package _global_")


def _is_set(group: str) -> bool:
    first = next(iter(sorted((conf_dir() / group).glob("*.yaml"))), None)
    line = first.read_text("utf-8").partition("\n")[0] if first else ""
    return line.startswith("# @package ") and line != "# @package _global_"


def _check_together(group: str, names: Sequence[str]) -> None:
    owners: dict[str, tuple[str, Any]] = {}
    for name in names:
        file = conf_dir() / group / f"{name}.yaml"
        settings = yaml.safe_load(file.read_text("utf-8")) if file.is_file() else {}
        chosen = [d for d in settings.pop("defaults", ()) if isinstance(d, dict)]
        for key, value in [
            *settings.items(),
            *(pair for choice in chosen for pair in choice.items()),
        ]:
            other, theirs = owners.setdefault(key, (name, value))
            if theirs != value:
                setting = key.removeprefix("override ").partition("@")[0].strip("/")
                raise SettingError(
                    group, f"[{','.join(names)}]", f"{other} or {name}", f"Both set {setting}."
                )


def _of_message(text: str, overrides: Mapping[str, str]) -> SettingError:
    if match := re.search(r"Ambiguous value for argument '([^=']+)=(.*)'", text):
        return SettingError(
            match[1], match[2], "one value",
            "Add -m to run a sweep over them, or write a list: [a,b].",
        )  # fmt: skip
    if "Config group override must be" in text or "is not iterable" in text:  # key unknown
        for key, value in overrides.items():
            if not key:
                return SettingError("override", f"={value}", "key=value")
            if is_group(key) and _NO_NAME.fullmatch(value):
                return unknown_file(key, value, choices(key))
    named = re.search(r"Could not (?:override|append) '([^']+)'", text)
    if named is None:
        return SettingError("config", None, f"a setting that exists ({text})")
    chosen = overrides.get(named[1])
    return SettingError(
        named[1], chosen, f"a setting that exists ({text})", _overlay_hint(named[1], chosen)
    )


def _of_yaml(error: yaml.YAMLError) -> DataError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or _first_line(error)
    if mark is None:
        return DataError("settings", f"no YAML ({problem})")
    return DataError(str(mark.name), f"no YAML: line {mark.line + 1}: {problem}")


def _overlay_hint(key: str, value: str | None) -> str:
    group, _, inner = key.partition("/")
    choice = "/".join(filter(None, (inner, value)))
    if all(_is_overlay(group, one) for one in choice.split(",")):
        return f"Set +{group}={choice}."
    return ""


def _override(chain: list[BaseException]) -> tuple[str, str] | None:
    for one in chain:
        for quoted in (r"[Ee]rror merging override (\S+?)=(.*)", r"config use \+(\S+?)=(.*)"):
            if match := re.search(quoted, str(one)):
                return match[1].lstrip("+~"), match[2].strip()
    return None


def wrong_kind(field: str, value: str) -> SettingError:
    """Return the error for a list instead of a mapping, or reverse."""
    return SettingError(field, value, _KINDS["Dict" if value.startswith("[") else "List"])


def choices(group: str) -> list[str]:
    """Return a group's choices, without those to combine."""
    names = {
        p.relative_to(folder / group).with_suffix("").as_posix()
        for folder in conf_folders()
        for p in (folder / group).rglob("*.yaml")
        if p.parent == folder / group or not _is_set(p.parent.relative_to(folder).as_posix())
    }
    if group == _OVERLAYS:  # the others are settings of figures
        names = {name for name in names if _is_overlay(group, name)}
    if group == "mig":  # names without files
        names |= {name for chip in platforms() for name in load_platform(chip).layouts}
    return sorted(names | _stored(group, "config")) or ["(none found)"]


def _stored(group: str, kind: str) -> set[str]:
    try:
        names = ConfigStore.instance().list(group)
    except OSError:  # no such group
        return set()
    configs = {n.removesuffix(".yaml") for n in names if n.endswith(".yaml")}
    return configs if kind == "config" else {n for n in names if not n.endswith(".yaml")}


def _of_omegaconf(
    error: OmegaConfBaseException, override: tuple[str, str] | None, overrides: Mapping[str, str]
) -> SettingError:
    field = str(getattr(error, "full_key", None) or (override[0] if override else "config"))
    value: Any = override[1] if override else overrides.get(field)
    if isinstance(error, MissingMandatoryValue):
        return SettingError(field, "???", "a value", f"Set {field}=<value>.")
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        if field == _OVERLAYS:
            return unknown_file(field, value, choices(field))
        if "/" in field:
            return _no_group(field, value)
        check_renamed(field, value)
        node = getattr(error, "parent_node", None)
        keys = [str(k) for k in node] if node is not None else []
        names = sorted(k for k in keys if not k.startswith("_") and k != "hydra")
        if (
            node is not None
            and "policy" in keys
            and (match := re.fullmatch(r"system\.(\w+)\.(\w+)", field))
        ):
            return _no_field_of_policy(field, value, str(node["policy"]), match[1], match[2])
        if match := re.fullmatch(r"(system\.(?:start|layout))\.(\w+)", field):
            one = f"'{match[1]}={{mechanism: <name>, {match[2]}: {value}}}'"
            hint = (
                f"Settings that the file of the system lacks are given with the mechanism: {one}."
            )
            return SettingError(field, value, f"a key among {', '.join(names) or 'none'}", hint)
        if node is not None and not keys:
            return SettingError(
                field, value, "a plus before a mapping's new key", f"Set '+{field}=<value>'."
            )
        return unknown_name(field, value, names, field.rpartition(".")[2], "a key among")
    text = _first_line(error)
    mismatch = _OTHER_KIND.search(text)
    if mismatch or isinstance(error, ValidationError):
        if match := re.search(r"Value '(.*)' (?:of type|is not)", text):
            value = match[1]
        kind = next(filter(None, mismatch.groups())) if mismatch else ""
        if kind.endswith("Conf"):  # a class of `c2c.config.schema`
            kind = "Dict"
        return SettingError(field, value, _KINDS.get(kind, kind or f"a value that fits ({text})"))
    if "Cannot merge DictConfig with ListConfig" in text and value is not None:
        return wrong_kind(field, str(value))
    return SettingError(field, value, f"a setting that works ({text})")


def _no_group(field: str, value: Any) -> SettingError:
    parent = field.rpartition("/")[0]
    groups = [f"{parent}/{name}" for name in sorted(_stored(parent, "group"))]
    return unknown_name(field, value, groups, field, "a group among")


def _no_field_of_policy(
    field: str, value: Any, policy: str, setting: str, name: str
) -> SettingError:
    policies: Any = DECISIONS[setting].policies if setting in DECISIONS else {}
    names = ", ".join(policies[policy]._fields) if policy in policies else ""
    having = [f"system/{setting}={n}" for n, p in sorted(policies.items()) if name in p._fields]
    hint = f"Policies with this field: {', '.join(having)}." if having else ""
    return SettingError(field, value, f"a field of {policy} ({names or 'it has none'})", hint)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
