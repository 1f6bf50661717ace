"""An instance over several devices: where its batches are, and its step as a chain of works.

A chip of such a fleet is a node: its devices and what is between them are resources, each of which
gives one second a second. A lane is a batch on its way over them; a step of it is a chain of works,
one after the other, each of which takes its seconds alone and so many seconds of each resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError
from c2c.hardware import Slice

__all__ = ["DRAWS", "MAX_RESOURCES", "Chain", "Lane", "StepLayout", "WorkCosts"]

DRAWS: Final = 4  # resources that one work can use
MAX_RESOURCES: Final = 32  # of a node: a lane's are bits of a number

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkCosts:
    """What each work of a step takes by how much the step computes.

    Between sizes in a straight line, below the first as it, beyond the last in proportion.

    Attributes:
      sizes: prompt tokens or decoding rows, ascending.
      alone_s: [size, work] seconds with all resources to itself.
      use_s: [size, work, resource] seconds of each; none more than the work takes alone.
    """

    sizes: tuple[int, ...]
    alone_s: Table
    use_s: Table

    def __post_init__(self) -> None:
        sizes, alone, use = self.sizes, self.alone_s, self.use_s
        if not sizes or sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
            raise SettingError("chain.sizes", sizes, "whole numbers above 0, ascending")
        if alone.ndim != 2 or use.shape[:2] != alone.shape or len(alone) != len(sizes):
            raise SettingError(
                "chain.alone_s", alone.shape, f"a row for each of {len(sizes)} sizes"
            )
        if not (np.isfinite(alone).all() and np.isfinite(use).all() and (use >= 0.0).all()):
            raise SettingError("chain.use_s", "a value", "seconds, at least 0")
        if (use > alone[:, :, None] * (1.0 + 1e-9) + 1e-15).any():
            raise SettingError(
                "chain.use_s", float(use.max()), "no more of a resource than the work takes alone"
            )
        if (drawn := int((use > 0.0).any(0).sum(-1).max(initial=0))) > DRAWS:
            raise SettingError("chain.use_s", f"{drawn} resources", f"at most {DRAWS} of one work")

    def upto(self, largest: int) -> tuple[Table, Table]:
        """Return seconds [work, size] and [work, resource, size] of sizes 0 to `largest`."""
        return _spread(self.sizes, self.alone_s, largest), _spread(self.sizes, self.use_s, largest)


def _spread(sizes: Sequence[int], values: Table, largest: int) -> Table:
    every = np.arange(largest + 1)
    beyond = np.maximum(1.0, every / sizes[-1])
    columns = values.reshape(len(sizes), -1).T
    made = np.array([np.interp(every, sizes, column) * beyond for column in columns])
    made[:, 0] = 0.0
    return made.reshape(*values.shape[1:], largest + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A step of a model on a lane: what its prompts take, and on top what its decodes take."""

    prefill: WorkCosts
    decode: WorkCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A place for one batch.

    Attributes:
      place: its name and what it is made of; equal places are of one kind.
      kv_bytes: memory for its keys and values.
      chains: by the name of a model's spec, a chain for each variant of its step. Which one a step
        takes is its `alpha`: the first at 0, the last at 1.
      hands_to: name of the place whose lanes decode what this one's prompts begin, once their step
        has sent it; None: they stay.
    """

    place: Slice
    kv_bytes: float
    chains: Mapping[str, tuple[Chain, ...]] = field(compare=False, repr=False)
    hands_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """How the instances of a node lie over its devices.

    Attributes:
      name: of the layout.
      resources: devices and what is between them.
      lanes: batches that may be in flight.
      by_age: a resource serves the batch first that has been busy longest; else all equally.
      switch_s: what a lane stands still for when its step changes its variant.
      notes: what to say of it, a line each.
    """

    name: str
    resources: tuple[str, ...]
    lanes: tuple[Lane, ...]
    by_age: bool = True
    switch_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where, names = "layout", self.resources
        if not names or len(set(names)) < len(names) or len(names) > MAX_RESOURCES:
            raise SettingError(f"{where}.resources", names, f"1 to {MAX_RESOURCES} different names")
        if not self.lanes:
            raise SettingError(f"{where}.lanes", self.lanes, "at least one")
        if not 0.0 <= self.switch_s < float("inf"):
            raise SettingError(f"{where}.switch_s", self.switch_s, "seconds, at least 0")
        places = {lane.place.name: lane for lane in self.lanes}
        for lane in self.lanes:
            target = places.get(lane.hands_to or lane.place.name)
            if target is None or (lane.hands_to is not None and target.hands_to is not None):
                raise SettingError(
                    f"{where}.lanes.hands_to", lane.hands_to, "a lane's place that hands nothing on"
                )
        widths = {
            costs.use_s.shape[2]
            for lane in self.lanes
            for chains in lane.chains.values()
            for chain in chains
            for costs in (chain.prefill, chain.decode)
        }
        if widths != {len(names)}:
            raise SettingError(
                f"{where}.lanes.chains", widths, f"seconds of {len(names)} resources"
            )

    @property
    def variants(self) -> int:
        """Of a step."""
        return max(len(chains) for lane in self.lanes for chains in lane.chains.values())

    def kv_bytes_of(self, place: Slice) -> float:
        """Return the memory for keys and values of a kind of lane."""
        return self._lane(place).kv_bytes

    def handed(self, kinds: Sequence[Slice], place: Slice) -> int:
        """Return the number of the kind of lane that a place hands its prompts to, or -1."""
        target = self._lane(place).hands_to
        return -1 if target is None else [kind.name for kind in kinds].index(target)

    def chains_of(self, place: Slice, spec: str) -> tuple[Chain, ...]:
        """Return the chains of a model on a kind of lane, one for each variant.

        Raises:
          SettingError: the layout was made for other models.
        """
        lane = self._lane(place)
        if spec not in lane.chains:
            raise SettingError("catalog", spec, f"one of {', '.join(lane.chains)}")
        found: Any = lane.chains[spec]
        return (*found, *(found[-1:] * (self.variants - len(found))))

    def _lane(self, place: Slice) -> Lane:
        return next(lane for lane in self.lanes if lane.place == place)
