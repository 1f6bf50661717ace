"""Layouts of an instance over several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np

from c2c.cost import StepTable
from c2c.errors import SettingError
from c2c.hardware import Platform, Slice
from c2c.models import CacheShape, ModelSpec, kv_bytes_per_token
from c2c.ranges import AboveZero, FromZero, Index, check_fields
from c2c.serving.tables.plans import DRAWS, RESOURCES, Cost, Plan, Work, path_ends

_TOKENS: Final = CacheShape(1, 0, 0, 0)  # a token is a place

__all__ = ["MAX_RESOURCES", "Copy", "Lane", "NodeKind", "StepLayout", "Way", "layout_table"]

MAX_RESOURCES: Final = 32  # of a node: a lane's are bits of a number


@dataclass(frozen=True, slots=True)
class Way:
    """A path from one memory to another: its resources and its rate alone.

    Attributes:
      source, target: memories; any other source: host memory.
      resources: as in `c2c.hardware.Node.ways`.
      gbps: rate alone, 1e9 bytes/s.
      latency_s: before the first byte.
      rank: priority; steps have 0.
    """

    source: str
    target: str
    resources: tuple[str, ...]
    gbps: AboveZero
    latency_s: FromZero = 0.0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Weights that a variant needs in a memory; equal ones with one `of` are one."""

    source: str
    target: str
    nbytes: float
    of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A slot for one batch in flight.

    Attributes:
      place: name of its kind and devices; equal places are of one kind.
      kv_bytes: memory for its keys and values; 0 with `kv_homes`.
      steps: plans by the name of a model's spec, one a variant, from `alpha` 0 to 1.
      hands_to: place whose lanes decode its prompts; None: here.
      kv_homes: homes for a sequence's KV, each with a share by memory.
      open_homes: usable homes, by variant; (): all.
      copies: weights that each variant needs, sent before it is in force; (): none.
      reserve: bytes by memory that other lanes leave free.
      layers: memories with each layer's weights, by variant, for live workers; (): simulations
        alone.
      paths: memory where each layer is computed, by home; with `layers`.
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


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of a fleet that serve the same models.

    Attributes:
      lanes: numbers of the layout's lanes.
      models: of the catalog.
    """

    lanes: tuple[int, ...]
    models: tuple[str, ...]


# A chip of such a fleet is a node: its devices and their links are resources, each with a capacity
# of one second a second.
@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Layout of a node's instances over its devices.

    Attributes:
      resources: devices and their links.
      gpus: each rented GPU, with the resource of its busy seconds, or none; (): no price, no
        energy.
      lanes: slots for batches in flight.
      memories: bytes by memory for lanes with `kv_homes`, beside fixed contents.
      ways: paths between memories.
      by_age: whether a resource serves the longest busy batch first; else all equally.
      by_turns: whether each step queues like a new batch; needs `by_age`.
      switch_s: pause of a lane whose step changes its variant.
      reliefs: further variants of each scale, for a controller: c * (reliefs + 1) + r.
      streams: whether steps read weights from host memory; with `system.load=stream` alone.
      worker: facts for live workers, one a lane; {}: none.
      notes: lines printed with the layout.
      nodes: kinds of nodes, in equal numbers; (): each has all lanes.
    """

    name: str
    resources: tuple[str, ...]
    lanes: tuple[Lane, ...]
    gpus: tuple[tuple[str, Platform], ...] = ()
    by_age: bool = True
    by_turns: bool = False
    switch_s: FromZero = 0.0
    reliefs: Index = 0
    streams: bool = False
    worker: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memories: Mapping[str, float] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()
    nodes: tuple[NodeKind, ...] = ()

    def __post_init__(self) -> None:
        where, names = "layout", self.resources
        different = {*names} - {*RESOURCES}  # which every chip has
        if not names or len(different) < len(names) or len(names) > MAX_RESOURCES:
            allowed = f"1 to {MAX_RESOURCES} different names, none of {', '.join(RESOURCES)}"
            raise SettingError(f"{where}.resources", names, allowed)
        if not self.lanes:
            raise SettingError(f"{where}.lanes", self.lanes, "at least one")
        check_fields(self, where)
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
            if not 0 < len(way.resources) <= DRAWS or not {*way.resources} <= {*names, *RESOURCES}:
                allowed = f"1 to {DRAWS} of {', '.join(names)}"
                raise SettingError(f"{here}.resources", way.resources, allowed)
            check_fields(way, here)

    def _check_homes(self, lane: Lane) -> None:
        where, homes = f"layout.lanes.{lane.place.name}", range(len(lane.kv_homes))
        variants = max(len(plans) for plans in lane.steps.values())
        for shares in lane.kv_homes:
            is_complete = shares and shares.keys() <= self.memories.keys()
            if (
                not is_complete
                or abs(sum(shares.values()) - 1.0) > 1e-9
                or min(shares.values()) < 0.0
            ):
                allowed = f"shares that add up to 1, of {', '.join(self.memories) or 'no memory'}"
                raise SettingError(f"{where}.kv_homes", dict(shares), allowed)
        if lane.kv_homes and lane.kv_bytes:
            raise SettingError(f"{where}.kv_bytes", lane.kv_bytes, "0 with kv_homes")
        for work in _works(lane):
            if work.home is not None and work.home not in (homes or (0,)):
                allowed = f"a number below {len(homes)}, of kv_homes"
                raise SettingError(f"{where}.steps.{work.name}.home", work.home, allowed)
        for name, entries in (("open_homes", lane.open_homes), ("copies", lane.copies)):
            if entries and (len(entries) != variants or not lane.kv_homes):
                allowed = f"one for each of {variants} variants, with kv_homes"
                raise SettingError(f"{where}.{name}", len(entries), allowed)
            if entries and lane.hands_to is not None:
                raise SettingError(f"{where}.{name}", len(entries), "none with hands_to")
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
        """Number of variants of a step."""
        return max(len(plans) for lane in self.lanes for plans in lane.steps.values())

    def lane(self, place: Slice) -> Lane:
        """Return the first lane of a kind."""
        return next(lane for lane in self.lanes if lane.place == place)

    def handed(self, kinds: Sequence[Slice], place: Slice) -> int:
        """Return the lane kind that decodes a place's prompts, or -1."""
        target = self.lane(place).hands_to
        return -1 if target is None else [kind.name for kind in kinds].index(target)

    def serves(self, place: Slice, spec: str) -> bool:
        """Return whether a kind of lane serves a model."""
        return spec in self.lane(place).steps

    def link_bytes(self, spec: str) -> float:
        """Return a model's link bytes in a one-sequence decode."""
        plans = [lane.steps[spec][0] for lane in self.lanes if spec in lane.steps]
        parts = ("tokens", "decode")
        return min(
            (float(sum(_link_bytes(p, part, 1)[1] for part in parts)) for p in plans), default=0.0
        )

    def steps_of(self, place: Slice, spec: str) -> tuple[Plan, ...]:
        """Return a model's steps on a kind of lane, one a variant.

        Raises:
          SettingError: no such lane.
        """
        plans = self.lane(place).steps.get(spec) or next(
            (lane.steps[spec] for lane in self.lanes if spec in lane.steps), None
        )
        if plans is None:
            names = dict.fromkeys(name for lane in self.lanes for name in lane.steps)
            raise SettingError("catalog", spec, f"one of {', '.join(names)}")
        return (*plans, *(plans[-1:] * (self.variants - len(plans))))


def _works(lane: Lane) -> list[Work]:
    return [work for plans in lane.steps.values() for plan in plans for work in plan]


def _check(work: Work, where: str, resources: Sequence[str]) -> None:
    if work.beside is not None and work.beside not in resources:
        raise SettingError(f"{where}.beside", work.beside, f"one of {', '.join(resources)}")
    for number, (name, amount) in enumerate(work.draws.items()):
        if name in RESOURCES:  # in bytes
            _cost(amount, f"{where}.draws.{name}")
            if number > 0:
                allowed = f"{name} first, as works get equal parts of their first resource"
                raise SettingError(f"{where}.draws", list(work.draws), allowed)
            continue
        if name not in resources:
            raise SettingError(f"{where}.draws", name, f"one of {', '.join(resources)}")
        alone, taken = _cost(work.seconds, where), _cost(amount, where)
        allowed = "no more of a resource than the work takes alone"
        for seconds, seized in zip(alone.curves, taken.curves, strict=True):
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
    """Return the seconds of a step alone: its longest path."""
    plans = layout.steps_of(place, spec.name)
    plan, none = plans[0], np.zeros((tokens + 1, layout.variants))
    return StepTable(
        alphas=np.linspace(0.0, 1.0, layout.variants),
        body_s=np.stack([_longest_s(one, "tokens", tokens) for one in plans], axis=1),
        body_link_bytes=np.stack([_link_bytes(one, "tokens", tokens) for one in plans], axis=1),
        body_hbm_bytes=none,
        head_s=none,
        head_link_bytes=np.stack([_link_bytes(one, "decode", tokens) for one in plans], axis=1),
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
        rows *= work.beside is None
        return getattr(_cost(work.seconds, work.name), part).at(rows)

    ends = path_ends(plan, alone_s)
    return reduce(np.maximum, ends.values())


def _link_bytes(plan: Plan, part: str, tokens: int) -> Any:
    costs = [work.draws["link"] for work in plan if "link" in work.draws and not work.home]
    curves = [getattr(_cost(cost, "link"), part) for cost in costs]
    return sum((curve.at(np.arange(tokens + 1)) for curve in curves), np.zeros(tokens + 1))


def _cached_s(plan: Plan) -> float:
    ends = path_ends(plan, lambda work: _cost(work.seconds, "cached").cached * (not work.home))
    return float(max(ends.values()))
