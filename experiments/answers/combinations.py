"""Composition of many combinations of choices, each choice once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from c2c.config import load, plain_settings
from c2c.errors import SettingError
from c2c.hardware import is_layout_name, platforms, read_yaml

__all__ = ["Composer"]

_CHIP, _LAYOUT, _AUTO = "hardware", "mig", {"name": "auto"}


class Composer:
    """Plain settings of overrides beside `fixed` ones."""

    def __init__(self, fixed: Sequence[str] = (), folder: str | None = None) -> None:
        self._fixed, self._folder = fixed, folder
        self._cached: dict[tuple[str, ...], dict[str, Any]] = {}

    def composed(self, words: tuple[str, ...]) -> dict[str, Any]:
        """Return the settings, shared and read-only."""
        if words in self._cached:
            return self._cached[words]
        try:
            result = dict(self._whole(()))
            units: list[tuple[tuple[str, ...], dict[str, Any]]] = []
            for word in words:
                unit: tuple[str, ...] = (word,)
                changed = self._changed(unit)
                for other in [one for one in units if _touched(*one) & _touched(unit, changed)]:
                    units.remove(other)
                    unit = (*other[0], *unit)
                if len(unit) > 1:
                    changed = self._changed(unit)
                units.append((unit, changed))
            for _, changed in units:
                result |= changed
            self._cached[words] = result
        except SettingError:  # a choice that needs another
            return self._whole(words)
        return result

    def _changed(self, words: tuple[str, ...]) -> dict[str, Any]:
        base = self._whole(())
        key, _, value = words[0].partition("=")
        if words == (f"{_LAYOUT}={value}",) and is_layout_name(value) and base[key] == _AUTO:
            return {key: {"name": value}}
        is_as_in_file = not any(one.lstrip("+~").startswith(f"{_CHIP}.") for one in self._fixed)
        if words == (f"{_CHIP}={value}",) and value in platforms() and is_as_in_file:
            return {key: read_yaml(key, value)}
        return {k: v for k, v in self._whole(words).items() if k not in base or v != base[k]}

    def _whole(self, words: tuple[str, ...]) -> dict[str, Any]:
        if words not in self._cached:
            composed = load([*self._fixed, *words], folder=self._folder)
            self._cached[words] = plain_settings(composed)
        return self._cached[words]


def _touched(words: tuple[str, ...], changed: Mapping[str, Any]) -> set[str]:
    return {re.split(r"[./@=]", word.lstrip("+~"))[0] for word in words} | changed.keys()
