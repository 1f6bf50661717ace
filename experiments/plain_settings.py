"""Settings as key=value on a command line, read into a dataclass, and their help."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from c2c.errors import SettingError
from experiments.command import command

__all__ = ["descriptions", "entry", "read_settings", "run_settings", "shown"]

LEFT, WIDTH = 34, 100
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
        print(_plain_help(schema))
        raise SystemExit(0)
    from omegaconf import OmegaConf  # not needed by those who take functions of a command alone
    from omegaconf.errors import ConfigTypeError

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


def run_settings(
    schema: type,
    arguments: Sequence[str],
    work: Callable[[Any], int | None],
    *,
    goes_on: bool = False,
) -> int:
    """Run a command on its settings; return the exit status, that of `work` or 0."""

    def run() -> int:
        return work(read_settings(schema, arguments)) or 0

    return command(run, arguments=arguments, goes_on=goes_on)


def _wrong_kind(defaults: Any, arguments: Sequence[str]) -> SettingError | None:
    """Return the error of the argument that is a list for a mapping, or a mapping for a list."""
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigTypeError

    from c2c.config.refusals import wrong_kind  # takes a second, which only mistakes may cost

    for argument in arguments:
        try:
            OmegaConf.merge(defaults, OmegaConf.from_dotlist([argument]))
        except ConfigTypeError:
            name, _, value = argument.partition("=")
            return wrong_kind(name, value)
    return None


def descriptions(schema: type) -> dict[str, str]:
    """Return what docstrings of a dataclass and its bases say of its fields, in their order."""
    found: dict[str, str] = {}
    for each in reversed(schema.__mro__):
        found |= _entries((inspect.getdoc(each) or "").partition("Attributes:\n")[2])
    return {f.name: found.get(f.name, "") for f in fields(schema)}


def _plain_help(schema: type) -> str:
    """Return the help of a command with one dataclass of settings: its module's text, and they."""
    from omegaconf import OmegaConf

    defaults = OmegaConf.structured(schema)
    lines = [sys.modules[schema.__module__].__doc__ or "", "Settings, as name=value:"]
    own = inspect.get_annotations(schema)
    told = descriptions(schema)
    for name in sorted(told, key=lambda name: name not in own):  # what all have comes last
        lines += entry(f"{name}={shown(defaults[name])}", told[name])
    return "\n".join(lines)


def _entries(section: str) -> Iterator[tuple[str, str]]:
    name, text = "", ""
    for line in section.splitlines():
        if started := re.match(r"  (\w+): (.*)", line):
            if name:
                yield name, text
            name, text = started[1], started[2]
        elif line.strip():
            text += " " + line.strip()
    if name:
        yield name, text


def entry(setting: str, text: str) -> list[str]:
    """Return the lines of a setting and what it means."""
    plain = re.sub(r"`([^`]*)`", r"\1", text)
    body = textwrap.wrap(plain, WIDTH - LEFT - 2) or [""]
    head = f"  {setting}"
    if len(head) > LEFT:
        return [head, *(" " * (LEFT + 2) + line for line in body)]
    first = (head.ljust(LEFT + 2) + body[0]).rstrip()
    return [first, *(" " * (LEFT + 2) + line for line in body[1:])]


def shown(value: Any) -> str:
    """Return a value as one would write it on the command line."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        plain = OmegaConf.to_container(value)
        return "{}" if plain == {} else str(plain).replace("'", "")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
