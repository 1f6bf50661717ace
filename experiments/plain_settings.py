"""Settings as key=value on a command line."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from c2c.errors import SettingError
from c2c.ranges import check_fields, limits
from experiments.command import command

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Ran", "descriptions", "entry", "read_settings", "run_each", "run_settings", "shown",
    "without_folder",
]  # fmt: skip

LEFT, WIDTH = 34, 100
_ANY_WIDTH = 1000
_PLAIN_LISTS = ("list[str]", "list[int]")


class Ran(NamedTuple):
    """Result of a command: exit status, and table for a sweep."""

    table: Table | None = None
    status: int = 0


def read_settings(schema: type, arguments: Sequence[str]) -> Any:
    """Return a command line's settings."""
    if {"--help", "-h"} & set(arguments):
        print(_plain_help(schema))
        raise SystemExit(0)
    from omegaconf import OmegaConf  # not needed to import a command's functions
    from omegaconf.errors import ConfigTypeError

    arguments = without_folder(arguments)
    defaults = OmegaConf.structured(schema)
    try:
        merged = OmegaConf.merge(defaults, OmegaConf.from_dotlist(list(arguments)))
    except ConfigTypeError as error:
        raise _wrong_kind(defaults, arguments) or error from error
    settings = OmegaConf.to_object(merged)
    for field in fields(schema):
        value = getattr(settings, field.name)
        if field.type in _PLAIN_LISTS and any(
            isinstance(element, dict | list) for element in value
        ):
            raise SettingError(field.name, value, "a list of plain values")
    check_fields(settings)
    return settings


def without_folder(arguments: Sequence[str]) -> list[str]:
    """Register `--config-dir`; return the other arguments."""
    rest = list(arguments)
    index = next((k for k, one in enumerate(rest) if one.partition("=")[0] == "--config-dir"), None)
    if index is None:
        return rest
    from c2c.config import code_in, load_code, register, settings_folder

    name, sign, folder = rest.pop(index).partition("=")
    if not sign:
        folder = rest.pop(index) if index < len(rest) else ""
    if not folder:
        raise SettingError(name, folder, "a folder of settings")
    path = settings_folder(folder, name)
    load_code(code_in(path))
    register(code_in(path), path)
    return rest


def run_settings(
    schema: type,
    arguments: Sequence[str],
    work: Callable[[Any], Ran | int | None],
    *,
    goes_on: bool = False,
) -> int:
    """Run a command on settings; return the exit status."""

    def run() -> int:
        return run_each(schema, arguments, work)

    return command(run, arguments, goes_on=goes_on)


def run_each(
    schema: type,
    arguments: Sequence[str],
    work: Callable[[Any], Ran | int | None],
    check: Callable[[Any], None] = lambda _: None,
) -> int:
    """Run a command line, or with -m each point, then a table."""

    def read(own: Sequence[str]) -> Any:
        settings = read_settings(schema, own)
        check(settings)
        return settings

    if not {"-m", "--multirun"} & set(arguments) or {"-h", "--help"} & set(arguments):
        return _ran(work(read(arguments))).status
    from rich.console import Console

    from experiments.sweeping import joined, plain_points  # with Hydra, for sweeps alone

    points = plain_points(arguments, read)
    done = []
    for point in points:
        if len(points) > 1:
            print(f"{point}:", flush=True)
        done.append(_ran(work(point.settings)))
    if len(points) > 1:
        wide = Console(highlight=False, width=_ANY_WIDTH)  # no number is shortened
        wide.print(joined(points, [ran.table for ran in done]))
    return max(ran.status for ran in done)


def _ran(result: Ran | int | None) -> Ran:
    return result if isinstance(result, Ran) else Ran(status=result or 0)


def _wrong_kind(defaults: Any, arguments: Sequence[str]) -> SettingError | None:
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigTypeError

    from c2c.config.refusals import wrong_kind  # takes a second, hence imported for errors alone

    for argument in arguments:
        try:
            OmegaConf.merge(defaults, OmegaConf.from_dotlist([argument]))
        except ConfigTypeError:
            name, _, value = argument.partition("=")
            return wrong_kind(name, value)
    return None


def descriptions(schema: type) -> dict[str, str]:
    """Return a dataclass's fields with texts and ranges."""
    texts: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        texts |= _entries((inspect.getdoc(base) or "").partition("Attributes:\n")[2])
    ranges = {name: f"{text[0].upper()}{text[1:]}." for name, text in limits(schema).items()}
    return {
        f.name: f"{texts.get(f.name, '')} {ranges.get(f.name, '')}".strip() for f in fields(schema)
    }


def _plain_help(schema: type) -> str:
    from omegaconf import OmegaConf

    defaults = OmegaConf.structured(schema)
    lines = [sys.modules[schema.__module__].__doc__ or "", "Settings, as name=value:"]
    class_fields = inspect.get_annotations(schema)
    text_of = descriptions(schema)
    for name in sorted(
        text_of, key=lambda name: name not in class_fields
    ):  # inherited settings are last
        lines += entry(f"{name}={shown(defaults[name])}", text_of[name])
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
    """Return the lines of help for a setting."""
    plain = re.sub(r"`([^`]*)`", r"\1", text)
    body = textwrap.wrap(plain, WIDTH - LEFT - 2) or [""]
    head = f"  {setting}"
    if len(head) > LEFT:
        return [head, *(" " * (LEFT + 2) + line for line in body)]
    first = (head.ljust(LEFT + 2) + body[0]).rstrip()
    return [first, *(" " * (LEFT + 2) + line for line in body[1:])]


def shown(value: Any) -> str:
    """Return a value in the form of the command line."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        plain = OmegaConf.to_container(value)
        if isinstance(plain, dict):
            plain.pop("_target_", None)
        return "{}" if plain == {} else str(plain).replace("'", "")
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
