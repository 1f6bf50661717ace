"""Search space for Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from c2c.errors import SettingError

__all__ = ["as_text", "choices_of", "distribution", "space_of"]


def space_of(overrides: Sequence[str]) -> tuple[dict[str, BaseDistribution], list[str]]:
    """Return distributions of swept overrides, by key, and fixed overrides."""
    parsed = {
        o.get_key_element(): o for o in OverridesParser.create().parse_overrides([*overrides])
    }
    space = {key: distribution(o) for key, o in parsed.items() if o.is_sweep_override()}
    fixed = [
        f"{key}={o.get_value_element_as_str()}"
        for key, o in parsed.items()
        if not o.is_sweep_override()
    ]
    return space, fixed


def choices_of(overrides: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return values of swept overrides, by key, and fixed overrides."""
    space, fixed = space_of(overrides)
    choices: dict[str, list[Any]] = {}
    for key, one in space.items():
        match one:
            case CategoricalDistribution():
                choices[key] = list(one.choices)
            case IntDistribution() if not one.log:
                choices[key] = list(range(one.low, one.high + 1, one.step))
            case _:
                raise SettingError(key, str(one), "values to compare, such as 1,2,4 or range(1,9)")
    return choices, fixed


def distribution(override: Override) -> BaseDistribution:
    """Return Optuna's distribution for a choice, range or interval."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        low: Any = value.start  # Hydra declares float, and keeps a whole number as one
        high: Any = value.end
        log = "log" in value.tags
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    if isinstance(value, RangeSweep) and not value.shuffle:
        steps = list(value.range())
        if all(isinstance(one, int) for one in steps):
            return IntDistribution(int(steps[0]), int(steps[-1]), step=abs(int(value.step)))
    if override.is_discrete_sweep():
        choices: list[Any] = list(override.sweep_iterator(transformer=Transformer.encode))
        return CategoricalDistribution(choices)
    raise SettingError(
        override.get_key_element(), override.get_value_element_as_str(),
        "a choice (a,b), range(...) or interval(...)",
    )  # fmt: skip


def as_text(value: Any) -> str:
    """Return a drawn value as text for an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
