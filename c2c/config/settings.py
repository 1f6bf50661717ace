"""Plain, checked settings of a run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from c2c.errors import SettingError, unknown_name
from c2c.ranges import check_fields
from c2c.serving import GROUPS, SystemSpec
from c2c.workloads import Router, WorkloadConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["Settings", "checked", "fits", "plain_settings"]


class Settings(dict[str, Any]):
    """Plain, checked settings, as in `RunSetup.settings`."""

    def with_(self, changes: Mapping[str, Any]) -> Settings:
        """Return a copy with other values of settings that choose no file, by dotted names.

        >>> from c2c.config import checked, load
        >>> checked(load()).with_({"seed": 1, "slo.ttft_s": 2})["slo"]["ttft_s"]
        2.0

        Raises:
          SettingError: an unknown name, or a value that is not allowed.
        """
        plain, is_plain = copy.deepcopy(self), True
        for name, value in changes.items():
            below: Any = plain
            for part in name.split("."):
                node, last = below, part
                if not isinstance(node, dict) or last not in node:
                    keys = node if isinstance(node, dict) else ()
                    raise unknown_name(name, value, keys, last, "a key among")
                below = node[last]
            fit = fits(node[last], value)
            is_plain = is_plain and fit
            node[last] = float(value) if fit and isinstance(node[last], float) else value
        return _in_range(plain) if is_plain else checked(dict(plain))


def fits(before: object, value: object) -> bool:
    """Return whether a number or text fits a value, without the schema."""
    if isinstance(before, float):
        return type(value) in (int, float)
    return type(before) is type(value) and isinstance(value, bool | int | str)


def plain_settings(composed: DictConfig) -> dict[str, Any]:
    """Return the plain data of `build`'s `settings`."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(composed, resolve=True)
    shown: dict[str, Any] = _without_targets(plain)
    return shown


def checked(cfg: DictConfig | Mapping[str, Any]) -> Settings:
    """Return a configuration as checked plain data.

    Raises:
      SettingError: an unknown setting or invalid value.
    """
    if isinstance(cfg, Settings):
        return cfg
    # Hydra and OmegaConf take a third of a second; settings that are known need neither.
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from c2c.config.refusals import as_setting_error

    try:
        config = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
        _refuse_unknown(config)
        merged = OmegaConf.merge(_schema(), config)  # which changes a copy
        plain: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise as_setting_error(error) from error
    return _in_range(Settings(_without_targets(plain)))


def _in_range(settings: Settings) -> Settings:
    for name in ("", "slo", "scale", "timeline", "failures"):
        check_fields(settings[name] if name else settings, name, _schemas()[name])
    return settings


@cache
def _schemas() -> Mapping[str, type]:
    from c2c.config import schema

    return {
        "": schema.RunConf, "slo": schema.SloConf, "scale": schema.ScaleConf,
        "timeline": schema.TimelineConf, "failures": schema.FailuresConf,
        "fleet": schema.FleetConf, "routing": schema.RoutingConf, "router": Router,
        "system": SystemSpec, **{f"system.{name}": group for name, group in GROUPS.items()},
        "workload": WorkloadConfig,
    }  # fmt: skip


@cache
def _schema() -> DictConfig:
    from omegaconf import OmegaConf

    from c2c.config.schema import RunConf

    schema: DictConfig = OmegaConf.structured(RunConf)
    return schema


def _refuse_unknown(config: DictConfig) -> None:
    from omegaconf import OmegaConf

    from c2c.config.refusals import check_renamed

    plain: Any = OmegaConf.to_container(config, resolve=False)
    for where, schema in _schemas().items():
        node = plain
        for key in filter(None, where.split(".")):
            node = node.get(key) if isinstance(node, dict) else None
        if not (node is None or isinstance(node, dict) or "${" in str(node)):
            raise SettingError(where, node, "a mapping, such as {name: value}")
        names = [f.name for f in fields(schema)]
        for key, value in node.items() if isinstance(node, dict) else ():
            if str(key) not in names and not str(key).startswith("_"):
                field = f"{where}.{key}" if where else str(key)
                check_renamed(field, value)
                raise unknown_name(field, value, names, str(key), "a key among")


def _without_targets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_targets(v) for k, v in value.items() if not str(k).startswith("_")}
    return [_without_targets(v) for v in value] if isinstance(value, list) else value
