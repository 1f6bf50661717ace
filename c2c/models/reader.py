"""Typed reader of a config.json."""

from collections.abc import Mapping
from typing import Any

from c2c.errors import SettingError
from c2c.ranges import AboveZero, check_value

__all__ = ["Reader"]

_MOST_LAYERS = 4096


class Reader:
    """Typed reader of a config; errors name model and field."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return the first present spelling's whole number."""
        rule = f"a whole number, at least {least}"
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingError(f"{self.where}.{name}", value, rule)
            return value
        if default is None:
            raise SettingError(f"{self.where}.{names[0]}", None, rule, "It is missing.")
        return default

    def layers(self) -> int:
        """Return the bounded number of layers."""
        result = self.whole("num_hidden_layers")
        if result > _MOST_LAYERS:
            raise SettingError(f"{self.where}.num_hidden_layers", result, f"at most {_MOST_LAYERS}")
        return result

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a Boolean field."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SettingError(f"{self.where}.{name}", value, "true or false")
        return value

    def number(self, name: str, value: Any, default: float) -> float:
        """Return a value as a number above 0."""
        if value is None:
            return default
        check_value(value, AboveZero, f"{self.where}.{name}")
        return float(value)

    def factor(self, name: str, default: float) -> float:
        """Return a field as a number above 0."""
        return self.number(name, self.config.get(name), default)

    def numbers(self, where: str, values: Mapping[str, Any], name: str) -> tuple[float, ...]:
        """Return a list of numbers above 0."""
        entries = values.get(name)
        if not isinstance(entries, list) or not entries:
            raise SettingError(f"{self.where}.{where}.{name}", entries, "a list of numbers above 0")
        return tuple(self.number(f"{where}.{name}", value, 1.0) for value in entries)

    def demand(self, name: str, value: Any, expected: Any) -> None:
        """Raise unless a field that changes shapes is supported."""
        setting = self.config.get(name, value)
        if setting != expected:
            raise SettingError(
                f"{self.where}.{name}", setting, f"{expected!r}, the only form supported"
            )
