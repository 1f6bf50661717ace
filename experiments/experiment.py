"""Settings of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from c2c.config import as_setting_error
from c2c.errors import SettingError, check_keys, unknown_name
from c2c.hardware import read_yaml
from c2c.ranges import allowed, typed

__all__ = ["PREFIX", "named", "overrides_in", "read_experiment"]

PREFIX = "experiment."
_QUICK = "quick"


def overrides_in(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return other arguments, and overrides of experiments among them."""
    ours = [one for one in arguments if one.lstrip("+~").startswith(PREFIX)]
    return [one for one in arguments if one not in ours], tuple(ours)


def read_experiment[T](
    kind: type[T], name: str, overrides: Sequence[str] = (), *, quick: bool = False
) -> T:
    """Return the settings in `conf/experiment/<name>.yaml`, with overrides."""
    paper, _, figure = name.rpartition("/")
    entries = read_yaml(f"experiment/{paper}", figure)
    smaller = entries.pop(_QUICK, {})
    node = OmegaConf.create({"experiment": entries})
    try:
        if quick:
            node.merge_with({"experiment": smaller})
        _override(node, overrides)
        values = OmegaConf.to_container(node.experiment)
    except (HydraException, OmegaConfBaseException) as error:
        raise as_setting_error(error, overrides) from error
    result: T = _converted(values, kind, PREFIX[:-1])
    return result


def named[T](values: Mapping[str, T], name: str, field: str) -> T:
    """Return the value of a name from another setting."""
    if name not in values:
        raise unknown_name(f"{PREFIX}{field}", name, values)
    return values[name]


def _override(node: DictConfig, overrides: Sequence[str]) -> None:
    for parsed in OverridesParser.create().parse_overrides([*overrides]):
        key = parsed.key_or_group
        if parsed.is_delete():
            raise SettingError(key, parsed.input_line, f"{key}=<value>")
        if parsed.is_sweep_override():
            text = str(parsed.input_line).partition("=")[2]
            raise SettingError(key, text, "one value", "Add -m to run each of them.")
        OmegaConf.update(node, key, parsed.value(), merge=True)


def _converted(value: Any, hint: Any, where: str) -> Any:
    if get_origin(hint) is UnionType and any(map(is_dataclass, get_args(hint))):
        if value is None:
            return None
        hint = next(filter(is_dataclass, get_args(hint)))
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise SettingError(where, value, "a mapping")
        hints = get_type_hints(hint, include_extras=True)
        check_keys(value, hints, where)
        missing = [one.name for one in fields(hint) if one.name not in value and _is_needed(one)]
        if missing:
            raise SettingError(f"{where}.{missing[0]}", None, allowed(hints[missing[0]]))
        make: Any = hint
        return make(**{k: _converted(v, hints[k], f"{where}.{k}") for k, v in value.items()})
    kind, items = get_origin(hint), get_args(hint)
    if kind is dict:
        if not isinstance(value, Mapping):
            raise SettingError(where, value, "a mapping")
        return {str(k): _converted(v, items[1], f"{where}.{k}") for k, v in value.items()}
    if kind is tuple:
        part_hints = (
            items[:1] * len(value) if isinstance(value, list) and items[-1] is ... else items
        )
        if not isinstance(value, list) or len(value) != len(part_hints):
            count = "" if items[-1] is ... else f" of {len(items)}"
            raise SettingError(where, value, f"a list{count}, such as [a,b]")
        parts = enumerate(zip(value, part_hints, strict=True))
        return tuple(_converted(v, part_hint, f"{where}[{i}]") for i, (v, part_hint) in parts)
    return typed(value, hint, where)


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
