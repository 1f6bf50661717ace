"""The search space for the best fleet: system, layout, chunk and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from omegaconf import OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from c2c.config import RunSetup, build, load
from c2c.errors import SettingError
from experiments.sweeping.search_space import as_text, space_of

__all__ = ["CHUNK", "OWN", "FleetSpace", "planned_layouts"]

CHUNK, OWN = "chunk", "own"  # a dimension that is no setting: the system's own rule, or tokens
_CHUNK_SETTINGS = ("system/chunk", "system.chunk.tokens", "system.chunk")


class FleetSpace:
    """The dimensions of a search, and the run that a point in it is.

    What the command line fixes is fixed; a sweep on it (`superchips=1,2,4`) is a dimension. System,
    number of Superchips and chunk are dimensions with the given defaults where it says nothing of
    them; `layouts` are tried where it does not name one.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        folder: str | None,
        *,
        systems: Sequence[str],
        chunks: Sequence[str | int],
        superchips: Sequence[int],
    ) -> None:
        self.folder = folder
        self.dimensions, self.fixed = space_of(overrides)
        named = {text.partition("=")[0].lstrip("+~") for text in self.fixed} | set(self.dimensions)
        defaults: Mapping[str, Sequence[Any]] = {"system": systems, "superchips": superchips}
        for name, choices in defaults.items():
            if name not in named:
                self.dimensions[name] = CategoricalDistribution(list(choices))
        if not named.intersection(_CHUNK_SETTINGS):
            self.dimensions[CHUNK] = CategoricalDistribution([str(one) for one in chunks])
        self.plans = "mig" not in named
        if self.plans and "hardware" in self.dimensions:
            raise SettingError(
                "hardware", "several", "one platform, whose layouts are planned",
                "Or name the layouts: mig=7x12gb,1x96gb.",
            )  # fmt: skip

    @property
    def systems(self) -> list[str]:
        """The systems that are tried."""
        found = self.dimensions.get("system")
        if isinstance(found, CategoricalDistribution):
            return [str(one) for one in found.choices]
        given = [t.partition("=")[2] for t in self.fixed if t.startswith("system=")]
        return given or [str(load(self.fixed, folder=self.folder).system.name)]

    @property
    def size(self) -> float:
        """How many points there are; infinite with a dimension that is continuous."""
        return prod(_count(one) for one in self.dimensions.values())

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the command line of a point."""
        told = [f"{key}={as_text(value)}" for key, value in params.items() if key != CHUNK]
        if (tokens := params.get(CHUNK, OWN)) != OWN:
            told += ["system/chunk=fixed", f"system.chunk.tokens={tokens}"]
        return told

    def settings(self, params: Mapping[str, Any], more: Sequence[str] = ()) -> dict[str, Any]:
        """Return a point's settings as plain data.

        Raises:
          SettingError: they do not go together.
        """
        cfg = load([*self.fixed, *self.overrides(params), *more], folder=self.folder)
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        return dict(plain)

    def check(self) -> None:
        """Raise where a choice names what does not exist, before anything is run.

        Raises:
          SettingError: it does.
        """
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, CategoricalDistribution):
                for choice in dimension.choices:
                    self.settings(self.first() | {name: choice})

    def add_layouts(self, layouts: Sequence[str]) -> None:
        """Make the layout a dimension."""
        self.dimensions["mig"] = CategoricalDistribution(list(dict.fromkeys(layouts)))

    def first(self) -> dict[str, Any]:
        """Return the point of first choices."""
        return {name: _first(one) for name, one in self.dimensions.items()}


def planned_layouts(
    space: FleetSpace, system: str, *, count: int, requests: int
) -> tuple[list[str], RunSetup]:
    """Return the layouts on which a system serves the workload's first requests best, and the plan.

    Raises:
      SettingError: a setting cannot work, or no layout can serve the catalog.
    """
    params = space.first() | {"system": system}
    if "system" not in space.dimensions:
        del params["system"]
    setup = build(space.settings(params, ["mig=planned", f"mig.requests={requests}"]))
    assert setup.plan is not None
    ranked = setup.plan.as_dict()["candidates"]
    able = [str(one["mig"]) for one in ranked if one["attainment"] is not None]
    return able[:count], setup


def _count(one: BaseDistribution) -> float:
    match one:
        case CategoricalDistribution():
            return len(one.choices)
        case IntDistribution():
            return (one.high - one.low) // one.step + 1
        case FloatDistribution():
            return float("inf")
    raise AssertionError(one)  # there are no others


def _first(one: BaseDistribution) -> Any:
    match one:
        case CategoricalDistribution():
            return one.choices[0]
        case IntDistribution() | FloatDistribution():
            return one.low
    raise AssertionError(one)
