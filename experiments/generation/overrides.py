"""Texts on the command line, made safe from Hydra: its grammar would cut or refuse most of them.

A prompt is what the shell passes, to the last character. Nobody should have to know that commas
make a sweep, that an equals sign ends a value, or that `${` begins an interpolation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from experiments.sweeping import is_sweep, options_first, quoted

__all__ = ["protected"]

# `system` is a group of `conf/` (the serving systems), so here the message has another name.
_TEXTS = {"prompt": "prompt", "system": "system_message", "system_message": "system_message"}
_PATHS = ("checkpoint", "prompts_file", "pool", "executables", "out", "folder")
_ASSIGNMENT = re.compile(r"(\+{0,2})([a-z_]+)=(.*)", re.DOTALL)
_PLAIN_PATH = re.compile(r"[\w./~@+ -]*\Z")


def protected(arguments: Sequence[str]) -> list[str]:
    r"""Return a command line in which texts are quoted as Hydra wants them.

    >>> protected(["prompt=Well, it's = {fine}", "seed=1"])
    ["prompt='Well, it\\'s = {fine}'", 'seed=1']

    Args:
      arguments: as the shell passes them. `prompt` and `system` are texts to the end; `stop` is a
        JSON list, a number or a text. Paths are protected too, except in a sweep, where a comma
        may separate several.
    """
    swept = is_sweep(arguments)
    return [_protected(each, swept=swept) for each in options_first(arguments)]


def _protected(argument: str, *, swept: bool) -> str:
    found = _ASSIGNMENT.fullmatch(argument)
    if found is None:
        return argument
    sign, name, value = found.groups()
    if name in _TEXTS:
        return f"{sign}{_TEXTS[name]}={quoted(value)}"
    if name == "stop":
        return f"{sign}{name}={_stops(value)}"
    if name in _PATHS and not swept and not _is_quoted(value) and not _PLAIN_PATH.match(value):
        return f"{sign}{name}={quoted(value)}"
    return argument


def _stops(value: str) -> str:
    """Return a list in Hydra's form; what looks like a list but is no JSON is left to Hydra."""
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
