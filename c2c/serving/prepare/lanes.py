"""An instance over several devices: where its batches are, and its steps as plans of works.

A chip of such a fleet is a node: its devices and what is between them are resources, each of which
gives one second a second. A lane is a batch on its way over them. The devices' memories may be
shared by all lanes; the arrays of that are made in `c2c.serving.prepare.memories`.
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
from c2c.models import CacheShape, ModelSpec, kv_bytes_per_token
from c2c.serving.plans import DRAWS, RESOURCES, Cost, Plan, Work, path_ends

_TOKENS: Final = CacheShape(1, 0, 0, 0)  # a token is a place

__all__ = ["MAX_RESOURCES", "Copy", "Lane", "StepLayout", "Way", "layout_table"]

MAX_RESOURCES: Final = 32  # of a node: a lane's are bits of a number


@dataclass(frozen=True, slots=True)
class Way:
    """From one memory to another: what moves over it takes of resources, at so many GB/s alone.

    Attributes:
      source, target: names of memories; a source may also be host memory by any other name.
      resources: of the layout, as `c2c.hardware.Node.ways` names them.
      gbps: 1e9 bytes a second.
      latency_s: before the first byte.
      rank: resources serve a higher rank first; steps have 0 unless their works say otherwise.
    """

    source: str
    target: str
    resources: tuple[str, ...]
    gbps: float
    latency_s: float = 0.0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Weights that a variant of a step needs in a memory, beside those that are always there.

    Equal ones are one; `of` names the weights where a variant needs several of a size.
    """

    source: str
    target: str
    nbytes: float
    of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A place for one batch.

    Attributes:
      place: its name and what it is made of; equal places are of one kind.
      kv_bytes: memory of its own for its keys and values; 0 with `kv_homes`.
      steps: by the name of a model's spec, a plan for each variant of its step. Which one a step
        takes is its `alpha`: the first at 0, the last at 1.
      hands_to: name of the place whose lanes decode what this one's prompts begin, once their step
        has sent it; None: they stay.
      kv_homes: where a sequence may keep its keys and values, for each a share by memory. Works of
        a home (`Work.home`) see the sequences that are there.
      open_homes: by variant, numbers of the homes that it has; (): all.
      copies: by variant, weights that it needs. A change sends what is missing and the keys and
        values of sequences that change their home, while the variant before serves on; the other
        one is in force from the step boundary after that. (): no variant needs any.
      reserve: by memory, bytes that other lanes leave free for this one.
      layers: by variant, for each layer the memories that hold its weights, for workers that serve
        by the layout; (): it is for simulations alone.
      paths: by home, for each layer the memory where it is computed; with `layers`.
    """

    place: Slice
    kv_bytes: float = 0.0
    steps: Mapping[str, tuple[Plan, ...]] = field(compare=False, repr=False)
    hands_to: str | None = None
    kv_homes: tuple[Mapping[str, float], ...] = ()
    open_homes: tuple[tuple[int, ...], ...] = ()
    copies: tuple[tuple[Copy, ...], ...] = ()
    reserve: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[tuple[tuple[str, ...], ...], ...] = ()
    paths: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Layout of a node's instances over its devices.

    Attributes:
      name: of the layout.
      resources: devices and what is between them.
      lanes: batches that may be in flight.
      memories: by name, bytes that lanes with `kv_homes` share, beside what is always there.
      ways: between memories.
      by_age: a resource serves the batch first that has been busy longest; else all equally.
      by_turns: each step goes behind the steps that wait, as if its batch were new; with `by_age`.
      switch_s: what a lane stands still for when its step changes its variant.
      notes: what to say of it, a line each.
    """

    name: str
    resources: tuple[str, ...]
    lanes: tuple[Lane, ...]
    by_age: bool = True
    by_turns: bool = False
    switch_s: float = 0.0
    notes: tuple[str, ...] = ()
    memories: Mapping[str, float] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()

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
        if self.by_turns and not self.by_age:
            raise SettingError(f"{where}.by_turns", True, "with by_age")
        places = {lane.place.name: lane for lane in self.lanes}
        for lane in self.lanes:
            target = places.get(lane.hands_to or lane.place.name)
            if target is None or (lane.hands_to is not None and target.hands_to is not None):
                raise SettingError(
                    f"{where}.lanes.hands_to", lane.hands_to, "a lane's place that hands nothing on"
                )
        for work in {id(w): w for lane in self.lanes for w in _works(lane)}.values():
            _check(work, f"{where}.lanes.steps.{work.name}", names)
        for lane in self.lanes:
            self._check_homes(lane)
        for way in self.ways:
            here = f"{where}.ways.{way.source} to {way.target}"
            if not 0 < len(way.resources) <= DRAWS or not {*way.resources} <= {*names}:
                allowed = f"1 to {DRAWS} of {', '.join(names)}"
                raise SettingError(f"{here}.resources", way.resources, allowed)
            for field_name, least in (("gbps", 1e-300), ("latency_s", 0.0)):
                value = getattr(way, field_name)
                if not least <= value < float("inf"):
                    allowed = "a number above 0" if least else "seconds, at least 0"
                    raise SettingError(f"{here}.{field_name}", value, allowed)

    def _check_homes(self, lane: Lane) -> None:
        where, homes = f"layout.lanes.{lane.place.name}", range(len(lane.kv_homes))
        variants = max(len(plans) for plans in lane.steps.values())
        for shares in lane.kv_homes:
            known = shares and shares.keys() <= self.memories.keys()
            if not known or abs(sum(shares.values()) - 1.0) > 1e-9 or min(shares.values()) < 0.0:
                allowed = f"shares that add up to 1, of {', '.join(self.memories) or 'no memory'}"
                raise SettingError(f"{where}.kv_homes", dict(shares), allowed)
        if lane.kv_homes and lane.kv_bytes:
            raise SettingError(f"{where}.kv_bytes", lane.kv_bytes, "0 with kv_homes")
        for work in _works(lane):
            if work.home is not None and work.home not in (homes or (0,)):
                allowed = f"a number below {len(homes)}, of kv_homes"
                raise SettingError(f"{where}.steps.{work.name}.home", work.home, allowed)
        for name, given in (("open_homes", lane.open_homes), ("copies", lane.copies)):
            if given and (len(given) != variants or not lane.kv_homes):
                allowed = f"one for each of {variants} variants, with kv_homes"
                raise SettingError(f"{where}.{name}", len(given), allowed)
            if given and lane.hands_to is not None:
                raise SettingError(f"{where}.{name}", len(given), "none with hands_to")
        for opened in lane.open_homes:
            if not opened or not {*opened} <= {*homes}:
                raise SettingError(f"{where}.open_homes", opened, f"numbers below {len(homes)}")
        twins = [other for other in self.lanes if other.place == lane.place]
        if lane.copies and len(twins) > 1:
            raise SettingError(
                f"{where}.copies", len(twins), "none where a place has several lanes"
            )

    @property
    def variants(self) -> int:
        """Of a step."""
        return max(len(plans) for lane in self.lanes for plans in lane.steps.values())

    def lane(self, place: Slice) -> Lane:
        """Return the first lane of a kind."""
        return next(lane for lane in self.lanes if lane.place == place)

    def handed(self, kinds: Sequence[Slice], place: Slice) -> int:
        """Return the number of the kind of lane that a place hands its prompts to, or -1."""
        target = self.lane(place).hands_to
        return -1 if target is None else [kind.name for kind in kinds].index(target)

    def serves(self, place: Slice, spec: str) -> bool:
        """Return whether a kind of lane is for a model."""
        return spec in self.lane(place).steps

    def steps_of(self, place: Slice, spec: str) -> tuple[Plan, ...]:
        """Return the steps of a model on a kind of lane, one for each variant.

        They are those of its first lane where the kind is for other models, which takes none.

        Raises:
          SettingError: no lane is for the model.
        """
        found = self.lane(place).steps.get(spec) or next(
            (lane.steps[spec] for lane in self.lanes if spec in lane.steps), None
        )
        if found is None:
            known = dict.fromkeys(name for lane in self.lanes for name in lane.steps)
            raise SettingError("catalog", spec, f"one of {', '.join(known)}")
        return (*found, *(found[-1:] * (self.variants - len(found))))


def _works(lane: Lane) -> list[Work]:
    return [work for plans in lane.steps.values() for plan in plans for work in plan]


def _check(work: Work, where: str, resources: Sequence[str]) -> None:
    for name, amount in work.draws.items():
        if name not in resources:
            raise SettingError(f"{where}.draws", name, f"one of {', '.join(resources)}")
        alone, taken = _cost(work.seconds, where), _cost(amount, where)
        allowed = "no more of a resource than the work takes alone"
        for seconds, seized in ((alone.prefill, taken.prefill), (alone.decode, taken.decode)):
            sizes = np.array([*seconds.sizes, *seized.sizes])
            most = seized.at(sizes)
            if (most > seconds.at(sizes) * (1.0 + 1e-9) + 1e-15).any():
                raise SettingError(f"{where}.draws.{name}", float(most.max()), allowed)
        if taken.cached > alone.cached * (1.0 + 1e-9):
            raise SettingError(f"{where}.draws.{name}.cached", taken.cached, allowed)


def _cost(amount: Any, where: str) -> Cost:
    if not isinstance(amount, Cost):
        raise SettingError(where, amount, "a cost by prompt tokens and by rows")
    return amount


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
        kv_read_s_per_token=_cached_s(plan),
        attn_s_per_pair=0.0,
        prefill_attention_s=_longest_s(plan, "prefill", tokens),
        decode_attention_s=_longest_s(plan, "decode", tokens),
        cache=_shape(spec) if _cached_s(plan) > 0.0 else _TOKENS,
        link_cap_gbps=place.link_cap_gbps,
    )


def _shape(spec: ModelSpec) -> CacheShape:
    # A work's cost is by cached tokens, clipped where all layers have one window.
    return CacheShape(0, 1, spec.sliding_window, 0) if spec.sliding_window else _TOKENS


def _longest_s(plan: Plan, part: str, tokens: int) -> Any:
    def alone_s(work: Work) -> Any:
        rows = np.arange(tokens + 1) * (not work.home)  # all sequences at the first home
        return getattr(_cost(work.seconds, work.name), part).at(rows)

    ends = path_ends(plan, alone_s)
    return reduce(np.maximum, ends.values())


def _cached_s(plan: Plan) -> float:
    """Return what a cached token adds to the longest path."""
    ends = path_ends(plan, lambda work: _cost(work.seconds, "cached").cached * (not work.home))
    return float(max(ends.values()))
