"""Fleets, workloads and runs from keyword arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from c2c.config.build import RunSetup, build
from c2c.config.compose import load, register
from c2c.config.refusals import is_group
from c2c.config.simulate import SimulationResult
from c2c.config.simulate import simulate as simulate_setup
from c2c.errors import SettingError

__all__ = ["Fleet", "Workload", "overrides_of", "quoted", "simulate"]


@dataclass(frozen=True, repr=False)
class _Overrides:
    overrides: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.overrides))})"


class Fleet(_Overrides):
    """Chips, models and the system that serves them; a setting's dots are double underscores.

    >>> Fleet(hardware="gh200", superchips=2, system__max_batch=8, system__scale="one_instance")
    Fleet('hardware=gh200', 'superchips=2', 'system.max_batch=8', 'system/scale=one_instance')
    """

    def __init__(
        self,
        *,
        hardware: str | None = None,
        mig: str | None = None,
        node: str | None = None,
        fleet: str | None = None,
        catalog: str | None = None,
        system: str | None = None,
        superchips: int | None = None,
        tensor_parallel: int | None = None,
        expert_parallel: bool | None = None,
        cells: int | None = None,
        link: Literal["measured", "datasheet"] | None = None,
        constants: str | None = None,
        engine: str | None = None,
        precision: str | None = None,
        weights_start: Literal["host", "disk"] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(_overrides(locals()))


class Workload(_Overrides):
    """Requests: a file of `conf/workload`, and fields of `c2c.workloads.WorkloadConfig`.

    >>> Workload("poisson", requests=500, rate_rps=2)
    Workload('workload=poisson', 'workload.requests=500', 'workload.rate_rps=2')
    """

    def __init__(
        self,
        workload: str = "synthetic",
        *,
        path: str | Path | None = None,
        format: str | None = None,  # noqa: A002 (the setting's name)
        columns: Mapping[str, str] | None = None,
        requests: int | None = None,
        max_requests: int | None = None,
        models: int | None = None,
        rate_rps: float | None = None,
        compression: float | None = None,
        concurrency: int | None = None,
        agents: int | None = None,
        zipf_exponent: float | None = None,
        lengths: str | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        assignment: str | None = None,
        **settings: Any,
    ) -> None:
        values = {name: value for name, value in locals().items() if name != "workload"}
        chosen = (*overrides_of({"workload": workload}), *_overrides(values, "workload__"))
        super().__init__(chosen)


def simulate(
    fleet: Fleet | RunSetup,
    workload: Workload | None = None,
    *,
    folder: str | Path | None = None,
    compiled: bool | None = None,
    **settings: Any,
) -> SimulationResult:
    """Simulate a fleet that serves a workload, in memory.

    >>> simulate(Fleet(), Workload("poisson", requests=9), compiled=False).attainment.both
    1.0

    Args:
      fleet: or a result's `setup`, run again with `settings` that choose no file.
      workload: None: that of the setup, or the default.
      folder: folder of the user's settings.
      compiled: see `c2c.config.simulate`.
      settings: such as `seed=1` or `slo__ttft_s=0.5`.

    Raises:
      SettingError: as `load` and `build`, before any work.
    """
    if isinstance(fleet, RunSetup):
        for name, value in {"workload": workload, "folder": folder}.items():
            if value is not None:
                raise SettingError(name, value, "none with a setup, which has its own")
        return simulate_setup(fleet.with_(**settings), compiled=compiled)
    for name, part, kind in (("fleet", fleet, Fleet), ("workload", workload, Workload | None)):
        if not isinstance(part, kind):
            raise SettingError(name, part, f"a {name.title()}(...)")
    words = [*fleet.overrides, *(workload.overrides if workload else ()), *overrides_of(settings)]
    return simulate_setup(build(load(words, folder=folder)), compiled=compiled)


def _overrides(values: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    others = ("self", "__class__", "settings")
    named = {k: v for k, v in values.items() if k not in others and v is not None}
    return tuple(overrides_of({prefix + k: v for k, v in (named | values["settings"]).items()}))


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings by name (dots are double underscores) as overrides.

    >>> overrides_of({"workload__columns": {"model": "to: me"}, "system__order": "shortest_first"})
    ["workload.columns={model:'to: me'}", 'system/order=shortest_first']
    """
    register()
    words = []
    for name, value in settings.items():
        group = name.replace("__", "/")
        is_choice = isinstance(value, str | list | tuple) and is_group(group)
        key = group if is_choice else name.replace("__", ".")
        words.append(f"{'+' * (key == 'experiment')}{key}={_text(value)}")
    return words


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        # Hydra knows no quoted keys.
        keys = [re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(key)) for key in value]
        pairs = zip(keys, map(_text, value.values()), strict=True)
        return "{" + ",".join(":".join(pair) for pair in pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(value)
    is_word = re.fullmatch(r"[A-Za-z_][\w./-]*|\d+[a-df-zA-Z]\w*", text) and text.lower() not in (
        "null", "true", "false", "inf", "nan",
    )  # fmt: skip
    is_text = isinstance(value, str | Path)
    return quoted(text) if is_text and not is_word else text


def quoted(text: str) -> str:
    """Return a quoted string that Hydra and OmegaConf parse into `text`."""
    text = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)
    text = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{text}'"
