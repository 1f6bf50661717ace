"""Command line of a sweep, before Hydra parses it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from c2c.config import SWEEP, check_choices
from c2c.errors import SettingError

__all__ = [
    "SWEEP_FLAGS",
    "check_arguments",
    "fixed",
    "grid",
    "is_sweep",
    "options_first",
]

SWEEP_FLAGS = ("-m", "--multirun")
_FLAGS = (*SWEEP_FLAGS, "-h", "--help", "--hydra-help", "--resolve", "-r", "--run")
# Settings of Hydra's own folders, which are not used.
_HYDRAS = re.compile(r"[+~]*hydra\.(run|sweep|runtime|job)\.(dir|subdir|output_dir|chdir)=(.*)")


def is_sweep(arguments: Sequence[str]) -> bool:
    """Return whether the command line asks for several points."""
    return any(a in SWEEP_FLAGS for a in arguments)


def options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with flags before the settings, since Hydra refuses flags in between.

    >>> options_first(["seed=0,1", "-m", "link=measured"])
    ['-m', 'seed=0,1', 'link=measured']
    """
    flags = dict.fromkeys(a for a in arguments if a in _FLAGS)
    return [*flags, *(a for a in arguments if a not in _FLAGS)]


def check_arguments(
    arguments: Sequence[str], single: str = "folder", many: str = "out", sweep: str = SWEEP
) -> None:
    """Raise for an argument that this command would ignore."""
    parser = get_args_parser()
    parser.error = _not_understood  # type: ignore[method-assign]
    parser.parse_args(list(arguments))
    check_choices(arguments, sweep)
    for argument in arguments:
        if match := _HYDRAS.fullmatch(argument):
            node, key, value = match.groups()
            names = dict.fromkeys((single, many) if node == "run" else (many,))
            meant = " or ".join(f"{name}=<folder>" for name in names)
            raise SettingError(
                f"hydra.{node}.{key}",
                value,
                "no value: Hydra's folders are not used",
                f"Set {meant}.",
            )


def _not_understood(message: str) -> NoReturn:
    name = message.rpartition(": ")[2].split()[0]
    raise SettingError("option", name, "a known option", "--help lists them.")


def fixed(arguments: Sequence[str]) -> list[str]:
    """Return arguments of all points, without sweep flags."""
    return [
        argument
        for argument in arguments
        if argument not in SWEEP_FLAGS and not (_is_override(argument) and _parsed(argument)[0])
    ]


def grid(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[tuple[str, ...]]:
    """Return each point's overrides, in the order of Hydra's own sweeper.

    >>> grid(["seed=0,1", "link=measured"])
    [('seed=0', 'link=measured'), ('seed=1', 'link=measured')]
    """
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides([*overrides]):
        key = override.get_key_element()
        if override.is_interval_sweep():
            raise SettingError(
                key, str(override.input_line).partition("=")[2], "a list or a range of values",
                "An interval is for a search: hydra/sweeper=optuna.",
            )  # fmt: skip
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
            continue
        choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        if not choices[key]:
            raise SettingError(
                key, str(override.input_line).partition("=")[2], "a pattern that a choice matches"
            )
    return list(itertools.product(*choices.values()))


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and "=" in argument


def _parsed(override: str) -> tuple[bool, Override]:
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed.is_sweep_override(), parsed
