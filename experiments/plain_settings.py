"""Settings as key=value on a command line, read into a dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from c2c.errors import SettingError

__all__ = ["read_settings"]

_PLAIN_LISTS = ("list[str]", "list[int]")


def read_settings(schema: type, arguments: Sequence[str]) -> Any:
    """Return the settings of a command line.

    Args:
      schema: dataclass of the settings, with their defaults.
      arguments: key=value.

    Raises:
      SettingError: a list has something else than values in it: YAML takes `[random:]` for a
        mapping in a list, and OmegaConf lets that pass as text. What is wrong otherwise OmegaConf
        says itself.
    """
    given = OmegaConf.from_dotlist(list(arguments))
    settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), given))
    for field in fields(schema):
        value = getattr(settings, field.name)
        if field.type in _PLAIN_LISTS and any(isinstance(each, dict | list) for each in value):
            raise SettingError(field.name, value, "a list of plain values")
    return settings
