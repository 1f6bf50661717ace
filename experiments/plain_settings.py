"""Settings as key=value on a command line, read into a dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigTypeError

from c2c.errors import SettingError

__all__ = ["read_settings"]

_PLAIN_LISTS = ("list[str]", "list[int]")


def read_settings(schema: type, arguments: Sequence[str]) -> Any:
    """Return the settings of a command line.

    Args:
      schema: dataclass of the settings, with their defaults.
      arguments: key=value; with `--help` among them all settings are printed and the command ends.

    Raises:
      SystemExit: after the help.
      SettingError: a list where a mapping is wanted, or the reverse: OmegaConf does not say which
        setting it is. Or a list has something else than values in it: YAML takes `[random:]` for
        a mapping in a list, and OmegaConf lets that pass as text. What is wrong otherwise
        OmegaConf says itself.
    """
    if {"--help", "-h"} & set(arguments):
        from experiments.simulation.help import plain_help  # what it imports takes long

        print(plain_help(schema))
        raise SystemExit(0)
    defaults = OmegaConf.structured(schema)
    try:
        merged = OmegaConf.merge(defaults, OmegaConf.from_dotlist(list(arguments)))
    except ConfigTypeError as error:
        raise _wrong_kind(defaults, arguments) or error from error
    settings = OmegaConf.to_object(merged)
    for field in fields(schema):
        value = getattr(settings, field.name)
        if field.type in _PLAIN_LISTS and any(isinstance(each, dict | list) for each in value):
            raise SettingError(field.name, value, "a list of plain values")
    return settings


def _wrong_kind(defaults: Any, arguments: Sequence[str]) -> SettingError | None:
    """Return the error of the argument that is a list for a mapping, or a mapping for a list."""
    from c2c.config.refusals import wrong_kind  # takes a second, which only mistakes may cost

    for argument in arguments:
        try:
            OmegaConf.merge(defaults, OmegaConf.from_dotlist([argument]))
        except ConfigTypeError:
            name, _, value = argument.partition("=")
            return wrong_kind(name, value)
    return None
