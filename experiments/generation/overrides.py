"""Quoting of texts on the command line for Hydra's grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from c2c.config import quoted
from experiments.sweeping import is_sweep, options_first

__all__ = ["protected"]

# `system` is a group of `conf/` (serving systems), so the message has another name here.
_TEXTS = {"prompt": "prompt", "system": "system_message", "system_message": "system_message"}
_PATHS = ("checkpoint", "prompts_file", "pool", "executables", "out", "folder")
_ASSIGNMENT = re.compile(r"(\+{0,2})([a-z_]+)=(.*)", re.DOTALL)
_PLAIN_PATH = re.compile(r"[\w./~@+ -]*\Z")


def protected(arguments: Sequence[str]) -> list[str]:
    r"""Return a command line with texts quoted for Hydra.

    >>> protected(["prompt=Well, it's = {fine}", "seed=1"])
    ["prompt='Well, it\\'s = {fine}'", 'seed=1']
    """
    swept = is_sweep(arguments)
    return [_protected(argument, swept=swept) for argument in options_first(arguments)]


def _protected(argument: str, *, swept: bool) -> str:
    match = _ASSIGNMENT.fullmatch(argument)
    if match is None:
        return argument
    sign, name, value = match.groups()
    if name in _TEXTS:
        return f"{sign}{_TEXTS[name]}={quoted(value)}"
    if name == "stop":
        return f"{sign}{name}={_stops(value)}"
    if name in _PATHS and not swept and not _is_quoted(value) and not _PLAIN_PATH.match(value):
        return f"{sign}{name}={quoted(value)}"
    return argument


def _stops(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        try:
            items = json.loads(value)
        except ValueError:
            return value
        return f"[{','.join(quoted(i) if isinstance(i, str) else json.dumps(i) for i in items)}]"
    if re.fullmatch("[0-9]+", value):
        return f"[{int(value)}]"
    return f"[{quoted(value)}]"


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
