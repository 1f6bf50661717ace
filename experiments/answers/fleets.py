"""Fleets that a search compares."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from c2c.config import build
from c2c.errors import SettingError
from c2c.hardware import (
    Platform,
    load_platform,
    node_from_mapping,
    platforms,
)
from experiments.answers.combinations import Composer
from experiments.sweeping.search_space import as_text, choices_of

__all__ = ["Arm", "FleetSpace"]

_CHIP, _LAYOUT, _SYSTEM, _COUNT, _FLEET = "hardware", "mig", "system", "superchips", "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Kind of fleet, with any number of chips.

    Attributes:
      params: values of differing settings.
      usd_per_hour: of one chip, or of all unlike chips or a node.
      power_w: largest power of these; None: unknown.
      chip, layout, system: names; "": a node's layout or unlike chips.
    """

    params: Mapping[str, Any]
    usd_per_hour: float
    power_w: float | None
    chip: str = ""
    layout: str = ""
    system: str = ""

    @property
    def draws(self) -> str:
        """Settings, but chips and layout, that decide whether runs draw."""
        rest = {k: v for k, v in self.params.items() if k not in (_CHIP, _LAYOUT)}
        return replace(self, params=rest).name

    @property
    def name(self) -> str:
        """Settings of the fleet, for a command line."""
        return " ".join(f"{key}={as_text(value)}" for key, value in self.params.items())

    @property
    def rest(self) -> str:
        """Other settings in which kinds differ."""
        rest = (_CHIP, _LAYOUT, _SYSTEM, _FLEET)
        return replace(
            self, params={k: v for k, v in self.params.items() if k not in rest}
        ).name  # fmt: skip

    def spoken(self, chips: int) -> str:
        """Return the fleet in words: 2 x gh200, 7x12gb, c2cserve."""
        return ", ".join(
            filter(None, (f"{chips} x {self.chip}", self.layout, self.system, self.rest))
        )

    def with_chips(self, chips: int) -> str:
        """Return the settings of the fleet with a number of chips."""
        return f"{self.name} superchips={chips}".lstrip()


class FleetSpace:
    """Kinds of fleets open in a command line."""

    def __init__(
        self,
        overrides: Sequence[str],
        folder: str | None,
        *,
        systems: Sequence[str],
        fleets: Sequence[str] = (),
    ) -> None:
        self.folder, self.fleets = folder, fleets
        self.unpriced: list[str] = []
        self.open, self.fixed = choices_of(overrides)
        self.named = {o.partition("=")[0].lstrip("+~") for o in self.fixed} | set(self.open)
        if _COUNT in self.named:
            raise SettingError(
                _COUNT, self.open.get(_COUNT) or "a number", "no value, as it is the answer",
                "Set advise.most=<number> to limit it.",
            )  # fmt: skip
        if _SYSTEM not in self.named:
            self.open[_SYSTEM] = list(systems)
        self._composed = Composer(self.fixed, folder).composed

    def arms(self) -> list[Arm]:
        """Return every kind of fleet."""
        every: dict[str, Arm] = {}
        rest = {k: v for k, v in self.open.items() if k not in (_CHIP, _LAYOUT, _FLEET)}
        tried: set[str] = set()
        for chip in self._chips():
            for layout in self._layouts(chip):
                for values in product(*rest.values()):
                    params: dict[str, Any] = dict(zip(rest, values, strict=True))
                    whole = {**chip, **layout, **params}
                    if not self._composed(_words(whole))["node"]:  # whose GPUs are its chips
                        params = whole
                    words = {f"{key}={as_text(params[key])}" for key in self.open if key in params}
                    if not words <= tried:  # a choice that is new is validated
                        self.settings(params, {})
                        tried |= words
                    if str(params) not in every:
                        every[str(params)] = self._priced(params)
        return list(every.values())

    def asked(self, arms: Sequence[Arm]) -> dict[str, list[int]]:
        """Return arms of chips named in the command line."""
        result: dict[str, list[int]] = {}
        for k, arm in enumerate(arms):
            if _CHIP in self.open and _CHIP in arm.params:
                result.setdefault(as_text(arm.params[_CHIP]), []).append(k)
        return result

    def settings(self, params: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run's settings as plain data."""
        plain = copy.deepcopy(self._composed(_words(params)))
        for key, value in more.items():
            *parents, last = key.split(".")
            node = plain
            for parent in parents:
                node = node[parent]
            node[last] = value
        return plain

    def _chips(self) -> list[dict[str, Any]]:
        if _FLEET in self.open:
            return [{_FLEET: name} for name in self.open[_FLEET]]
        fleets = [{_FLEET: name} for name in self.fleets]
        if _CHIP in self.open:
            return [*({_CHIP: chip} for chip in self.open[_CHIP]), *fleets]
        if {_CHIP, "node", _FLEET, f"{_FLEET}.parts"} & self.named:
            return [{}, *fleets]
        names = [name for name in platforms() if name != "cpu"]
        self._composed(())  # which adds the user's folder to those searched
        has_own = "hardware.gpu.usd_per_hour" in self.named
        priced = [n for n in names if has_own or load_platform(n).gpu.usd_per_hour is not None]
        self.unpriced = [name for name in names if name not in priced]
        return [*({_CHIP: name} for name in priced), *fleets]

    def _layouts(self, chip: Mapping[str, Any]) -> list[dict[str, Any]]:
        settings = self.settings(chip, {})
        if settings["fleet"]["parts"] or settings["node"]:  # which name their layouts, or have none
            return [{}]
        if _LAYOUT in self.open:
            return [{_LAYOUT: layout} for layout in self.open[_LAYOUT]]
        if _LAYOUT in self.named:
            return [{}]
        return [{_LAYOUT: name} for name in settings["hardware"]["mig"]]

    def _priced(self, params: Mapping[str, Any]) -> Arm:
        usd, watts = 0.0, 0.0
        for name, count, gpu in self._gpus(params):
            price, power = gpu.get("usd_per_hour"), gpu.get("power_w")
            if price is None:
                field, scope = "hardware.gpu.usd_per_hour", ""
                if self.settings(params, {})["node"]:
                    field, scope = "node.usd_per_hour", " of all its GPUs"
                raise SettingError(
                    field, None, f"a price, which {name} lacks",
                    f"Set +{field}=<US dollars an hour{scope}>.",
                )  # fmt: skip
            usd += count * float(price)
            watts += math.nan if power is None else count * power
        settings = self._composed(_words(params))
        is_plain = not (settings["node"] or settings["fleet"]["parts"])
        chips = "+".join(name for name, _, _ in self._gpus(params))
        return Arm(
            params=params, usd_per_hour=usd, power_w=None if math.isnan(watts) else watts,
            chip=settings["node"].get("name") or settings["fleet"]["name"] or chips,
            layout=str(settings["mig"]["name"]) if is_plain else "",
            system=str(settings["system"]["name"]),
        )  # fmt: skip

    def _gpus(self, params: Mapping[str, Any]) -> list[tuple[str, int, Mapping[str, Any]]]:
        of_chip = {k: v for k, v in params.items() if k.startswith((_CHIP, _FLEET))}
        settings = self.settings(of_chip, {})
        if parts := settings["fleet"]["parts"]:
            names = [(part["hardware"], part["count"]) for part in parts]
            return [(name, count, asdict(load_platform(name).gpu)) for name, count in names]
        if settings["node"]:
            return [(p.name, 1, asdict(p.gpu)) for p in _rented(self.settings(params, {}))]
        chip = settings["hardware"]
        return [(chip["name"], 1, chip["gpu"])]


def _words(params: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={as_text(value)}" for key, value in params.items())


def _rented(settings: Mapping[str, Any]) -> list[Platform]:
    try:
        layout = build(settings).serving.system.layout
    except SettingError:  # which the run will say
        layout = None
    named = [] if layout is None else [platform for _, platform in layout.gpus]
    return named or list(node_from_mapping(settings["node"]).platforms)
