"""An instance over several devices: where its batches are, and its steps as plans of works.

A chip of such a fleet is a node: its devices and what is between them are resources, each of which
gives one second a second. A lane is a batch on its way over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np

from c2c.cost import StepTable
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import ModelSpec, kv_bytes_per_token
from c2c.serving.plans import RESOURCES, Cost, Plan, Work, path_ends

__all__ = ["MAX_RESOURCES", "Lane", "StepLayout", "layout_table"]

MAX_RESOURCES: Final = 32  # of a node: a lane's are bits of a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A place for one batch.

    Attributes:
      place: its name and what it is made of; equal places are of one kind.
      kv_bytes: memory for its keys and values.
      steps: by the name of a model's spec, a plan for each variant of its step. Which one a step
        takes is its `alpha`: the first at 0, the last at 1.
      hands_to: name of the place whose lanes decode what this one's prompts begin, once their step
        has sent it; None: they stay.
    """

    place: Slice
    kv_bytes: float
    steps: Mapping[str, tuple[Plan, ...]] = field(compare=False, repr=False)
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
        different = {*names} - {*RESOURCES}  # which every chip has
        if not names or len(different) < len(names) or len(names) > MAX_RESOURCES:
            allowed = f"1 to {MAX_RESOURCES} different names, none of {', '.join(RESOURCES)}"
            raise SettingError(f"{where}.resources", names, allowed)
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
        for work in {id(w): w for lane in self.lanes for w in _works(lane)}.values():
            _check(work, f"{where}.lanes.steps.{work.name}", names)

    @property
    def variants(self) -> int:
        """Of a step."""
        return max(len(plans) for lane in self.lanes for plans in lane.steps.values())

    def kv_bytes_of(self, place: Slice) -> float:
        """Return the memory for keys and values of a kind of lane."""
        return self._lane(place).kv_bytes

    def handed(self, kinds: Sequence[Slice], place: Slice) -> int:
        """Return the number of the kind of lane that a place hands its prompts to, or -1."""
        target = self._lane(place).hands_to
        return -1 if target is None else [kind.name for kind in kinds].index(target)

    def serves(self, place: Slice, spec: str) -> bool:
        """Return whether a kind of lane is for a model."""
        return spec in self._lane(place).steps

    def steps_of(self, place: Slice, spec: str) -> tuple[Plan, ...]:
        """Return the steps of a model on a kind of lane, one for each variant.

        They are those of its first lane where the kind is for other models, which takes none.

        Raises:
          SettingError: no lane is for the model.
        """
        found = self._lane(place).steps.get(spec) or next(
            (lane.steps[spec] for lane in self.lanes if spec in lane.steps), None
        )
        if found is None:
            known = dict.fromkeys(name for lane in self.lanes for name in lane.steps)
            raise SettingError("catalog", spec, f"one of {', '.join(known)}")
        return (*found, *(found[-1:] * (self.variants - len(found))))

    def _lane(self, place: Slice) -> Lane:
        return next(lane for lane in self.lanes if lane.place == place)


def _works(lane: Lane) -> list[Work]:
    return [work for plans in lane.steps.values() for plan in plans for work in plan]


def _check(work: Work, where: str, resources: Sequence[str]) -> None:
    for name, amount in work.draws.items():
        if name not in resources:
            raise SettingError(f"{where}.draws", name, f"one of {', '.join(resources)}")
        for part in ("prefill", "decode"):
            seconds, taken = (_curve(cost, part, where) for cost in (work.seconds, amount))
            sizes = np.array([*seconds.sizes, *taken.sizes])
            most = taken.at(sizes)
            if (most > seconds.at(sizes) * (1.0 + 1e-9) + 1e-15).any():
                raise SettingError(
                    f"{where}.draws.{name}", float(most.max()),
                    "no more of a resource than the work takes alone",
                )  # fmt: skip


def _curve(amount: Any, part: str, where: str) -> Any:
    if not isinstance(amount, Cost):
        raise SettingError(where, amount, "a cost by prompt tokens and by rows")
    return getattr(amount, part)


def layout_table(layout: StepLayout, spec: ModelSpec, place: Slice, tokens: int) -> StepTable:
    """Return what a step takes alone, as long as the first variant's longest path.

    It is what decisions are taken by; how long a step is beside others, its works say. Bytes of
    devices and of links between them are in the works' seconds, so none are counted here.

    Args:
      layout: of the node.
      spec: the model.
      place: a kind of lane.
      tokens: of the largest step.
    """
    plan, none = layout.steps_of(place, spec.name)[0], np.zeros((tokens + 1, layout.variants))
    return StepTable(
        alphas=np.linspace(0.0, 1.0, layout.variants),
        body_s=none,
        body_link_bytes=none,
        body_hbm_bytes=none,
        head_s=none,
        head_link_bytes=none,
        head_hbm_bytes=none,
        step_overhead_s=0.0,
        kv_bytes_per_token=int(kv_bytes_per_token(spec)),
        kv_read_s_per_token=0.0,
        attn_s_per_pair=0.0,
        prefill_attention_s=_longest_s(plan, "prefill", tokens),
        decode_attention_s=_longest_s(plan, "decode", tokens),
        sliding_window=0,  # nothing here grows with the cache
        link_cap_gbps=place.link_cap_gbps,
    )


def _longest_s(plan: Plan, part: str, tokens: int) -> Any:
    def alone_s(work: Work) -> Any:
        nth, of = work.part  # a replica sees its part of the rows
        rows = (np.arange(tokens + 1) + of - 1 - nth) // of
        return _curve(work.seconds, part, work.name).at(rows)

    ends = path_ends(plan, alone_s)
    return reduce(np.maximum, ends.values())
