"""Layouts for the serving loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Final

import numpy as np

from c2c.cost import StepTable, at_best_alpha, calibration_for, load_constants, step_table
from c2c.errors import SettingError
from c2c.hardware import Node, Slice, joined
from c2c.models import ModelSpec
from c2c.policies import weights_in
from c2c.ranges import Count, FromZero, Index, OneOf, SomeShare, check_fields
from c2c.serving import (
    RESOURCES,
    Copy,
    Cost,
    Curve,
    Lane,
    Plan,
    StepLayout,
    SystemSpec,
    Way,
    Work,
    side_by_side,
)
from c2c.systems.cocoserve.costs import OperationCosts, operation_costs, operations_lines
from c2c.systems.cocoserve.modules import LAYER, layer_bytes, module_of
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.planner import by_runs, room_of, scale_up
from c2c.systems.cocoserve.speedup import Estimate, gamma_of
from c2c.systems.cocoserve.step import Devices, devices_of
from c2c.systems.mechanism import Context, Mechanism, read_gbps

__all__ = ["SYSTEM", "Scaling", "placement_of", "scaled_layout"]

_WAYS: Final = ("layers", "printed", "runs")

Path = tuple[int, ...]
"""A home: for each layer, the device that computes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Settings of `system.layout`: a model scaled over a node.

    Attributes:
      way: `layers` copies and moves the given numbers of layers; `printed` plans by Algorithm 1
        with Eq. 4, `runs` by our planner, both within memory.
      replicated: first layers with copies; for way `layers`.
      copies: copies of such a layer, the original included.
      over: devices that share each further copy, in equal runs.
      split: first devices that hold one run of layers each, unscaled.
      migrated: last layers that move to the next device; for way `layers`.
      between: variants between unscaled and scaled.
      reliefs: migrations by which a controller can relieve each of these.
      moved: last layers that all reliefs together move; 0: half of them.
      kv: homes of sequences once scaled: `every` copy, or `copies` without the originals.
      firsts: device of each instance's model.
      kv_share: share of a device's memory that plans leave to KV.
      memory_share: share of each device's memory to use.
      host_s: host seconds a step, beside the calibration's.
    """

    way: Annotated[str, OneOf(*_WAYS)] = "layers"
    replicated: Index = 0
    copies: Count = 2
    over: Count = 1
    split: Count = 1
    migrated: Index = 0
    between: Index = 0
    reliefs: Index = 0
    moved: Index = 0
    kv: Annotated[str, OneOf("every", "copies")] = "every"
    firsts: list[int] = field(default_factory=lambda: [0])
    kv_share: SomeShare = 0.3
    memory_share: SomeShare = 1.0
    host_s: FromZero = 0.0

    def __post_init__(self) -> None:
        where = "system.layout"
        check_fields(self, where)
        if not self.firsts or len(set(self.firsts)) < len(self.firsts):
            raise SettingError(f"{where}.firsts", self.firsts, "distinct device indices")
        scales = self.way != "layers" or self.replicated or self.migrated
        if self.split > 1 and (scales or list(self.firsts) != [0]):
            allowed = "1, unless way=layers, replicated=0, migrated=0 and firsts=[0]"
            raise SettingError(f"{where}.split", self.split, allowed)


def placement_of(
    settings: Scaling, spec: ModelSpec, node: Node, first: int, share: float = 1.0
) -> Placement:
    """Return an instance's placement, scaled by a share of its settings.

    Args:
      share: 0: unscaled, 1: fully scaled.

    Raises:
      SettingError: too many layers or copies.
    """
    where, n = "system.layout", spec.layers
    if settings.split > min(n, len(node.gpus)):
        allowed = f"at most {min(n, len(node.gpus))} devices, for {spec.name} over {node.name}"
        raise SettingError(f"{where}.split", settings.split, allowed)
    if settings.split > 1:
        return Placement.in_runs(n, settings.split)
    placement, others = Placement.unscaled(n, first), _targets(settings, node, first)
    if share == 0.0:
        return placement
    if settings.way != "layers":
        return _planned(settings, spec, node, placement, others, share)
    for name in ("replicated", "migrated"):
        if getattr(settings, name) > n:
            allowed = f"at most {n} layers, for {spec.name}"
            raise SettingError(f"{where}.{name}", getattr(settings, name), allowed)
    if settings.replicated + settings.migrated > n:
        allowed = f"at most {n - settings.replicated} beside replicated={settings.replicated}"
        raise SettingError(f"{where}.migrated", settings.migrated, allowed)
    used = (settings.copies - 1) * settings.over if settings.replicated else 0
    if max(used, int(settings.migrated > 0)) > len(others):
        allowed = f"copies on at most {len(others)} other devices"
        raise SettingError(f"{where}.copies", settings.copies, allowed)
    if settings.migrated:
        moved = range(n - round(share * settings.migrated), n)
        placement = placement.migrated(moved, first, others[0])
    layers = round(share * settings.replicated)
    for copy in range(settings.copies - 1):
        for part, run in enumerate(np.array_split(np.arange(layers), settings.over)):
            if len(run):
                device = others[copy * settings.over + part]
                placement = placement.replicated(map(int, run), device)
    return placement


def _relieved(placement: Placement, settings: Scaling, node: Node, step: int) -> Placement:
    if step == 0:
        return placement
    n, device = placement.layers, _targets(settings, node, placement.first)[0]
    moved = round(step / settings.reliefs * (settings.moved or n // 2))
    layers = [k for k in range(n - moved, n) if not placement.holds(k, device)]
    return placement.migrated(layers, placement.first, device) if layers else placement


def _targets(settings: Scaling, node: Node, first: int) -> list[int]:
    count = len(node.gpus)
    if first not in range(count):
        raise SettingError("system.layout.firsts", first, f"0 to {count - 1} of {node.name}")
    free = [d for d in range(count) if d not in settings.firsts]
    turn = settings.firsts.index(first) % max(1, len(free))
    index = settings.firsts.index(first)
    others = [
        *settings.firsts[index + 1 :],
        *settings.firsts[:index],
    ]  # devices of other instances come last
    return [*free[turn:], *free[:turn], *others]


def _planned(
    settings: Scaling, spec: ModelSpec, node: Node, placement: Placement, others: list[int],
    share: float,
) -> Placement:  # fmt: skip
    link = node.link(placement.first, others[0]) if others else None
    if link is None:
        raise SettingError("system.layout.way", settings.way, "layers: no device can have copies")
    gpu = node.platforms[placement.first].gpu
    allotted = module_of(spec, LAYER).allocated_bytes
    free = dict.fromkeys(
        others, share * (1.0 - settings.kv_share) * gpu.hbm_bytes * settings.memory_share
    )
    room = room_of(free, {}, layer_bytes=allotted, layers=spec.layers)
    if settings.way == "printed":
        gamma = gamma_of(1.0, gpu.bf16_tflops, link.gbps, spec.hidden)
        return scale_up(placement, room, Estimate.printed(gamma), candidates="anywhere")
    devices = devices_of(spec, node, most_rows=1)
    first, there = {placement.first: 1}, {others[0]: 1}
    step_s = devices.layer_s(placement.first, 1, 0) * spec.layers
    counted = Estimate.counted(devices.transfer_s(first, there)[0] / step_s)
    return by_runs(placement, dict(list(room.items())[:1]), counted)


def scaled_layout(
    settings: Scaling, spec: ModelSpec, node: Node, *, rows: int, tokens: int,
    costs: OperationCosts | None = None, link_gbps: float | None = None,
) -> StepLayout:  # fmt: skip
    """Return the layout of a model over a node, a placement a variant."""
    fixed = costs or operation_costs(node.chips[0])
    return _Over(settings, spec, node, rows, tokens, fixed, link_gbps).layout()


def _prepare(context: Context) -> SystemSpec:
    deployments, system = context.deployments, context.system
    if context.node is None:
        raise SettingError("node", None, "a node whose devices hold copies of layers")
    tokens = getattr(system.chunk, "tokens", None) or max(system.profile.chunks)
    specs = list(dict.fromkeys(d.spec for d in deployments))
    rate = read_gbps(context) if weights_in(system.load) == "host" else None
    layouts = [
        scaled_layout(
            context.settings, one, context.node, rows=system.max_batch, tokens=tokens,
            link_gbps=rate,
        )
        for one in specs
    ]  # fmt: skip
    served = [(specs.index(d.spec), [d.name]) for d in deployments]
    return replace(system, layout=side_by_side(layouts, served))


SYSTEM: Final = Mechanism(
    part="layout",
    settings=Scaling,
    prepare=_prepare,
    ways=_WAYS,
    notes=lambda context: operations_lines(context.node.chips if context.node else ()),
    worker="c2c.systems.cocoserve.live.worker",
)


# A sequence's home gives the copy that computes each layer, and so the device of its keys and
# values. Boundaries are layers where copies begin or end. The layers between two boundaries are one
# work a device; activations that change devices are works on links. A change of variant copies
# layers and moves keys and values while serving goes on.
class _Over:
    def __init__(
        self, settings: Scaling, spec: ModelSpec, node: Node, rows: int, tokens: int,
        costs: OperationCosts, link_gbps: float | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.spec, self.node, self.costs = settings, spec, node, costs
        self.rows, self.tokens = rows, tokens
        self.devices: Devices = devices_of(spec, node, most_rows=max(rows, tokens))
        shares = np.linspace(0.0, 1.0, settings.between + 2)
        scales = settings.way != "layers" or settings.replicated or settings.migrated
        self.placements = [
            [
                _relieved(placement_of(settings, spec, node, f, float(s)), settings, node, step)
                for s in (shares if scales else (0.0,))
                for step in range(settings.reliefs + 1)
            ]
            for f in settings.firsts
        ]
        self._layers: dict[tuple[int, int, bool], Cost] = {}
        self.read = {} if link_gbps is None else self._read(link_gbps)

    def _read(self, link_gbps: float) -> dict[int, StepTable]:
        used = {d for sequence in self.placements for p in sequence for d in p.devices}
        share_gbps = link_gbps / max(1, len(used) - len(self.settings.firsts))
        most, chip = max(self.rows, self.tokens), self.node.chip
        assert chip is not None  # as `read_gbps` is of slices only
        constants = load_constants(calibration_for(chip.name))
        tables = {
            part: step_table(
                self.spec, part, constants, link_gbps, max_tokens=most, max_rows=most,
                weights="host",
            )
            for part in {*self.node.parts}
        }  # fmt: skip
        return {d: at_best_alpha(tables[self.node.parts[d]], share_gbps) for d in used}

    def _reads(self, device: int, first: int) -> bool:
        return device in self.read and device != first

    def layout(self) -> StepLayout:
        used = sorted({d for sequence in self.placements for p in sequence for d in p.devices})
        pairs = [(a, b) for a in used for b in used if a != b and self.node.link(a, b)]
        ways = dict.fromkeys(name for a, b in pairs for name in self.node.ways(a, b))
        links = [name for name in ways if name not in RESOURCES]
        return StepLayout(
            name=f"{self.settings.way} over {self.node.name}",
            resources=(*map(_name, used), *links),
            lanes=tuple(self._lane(sequence) for sequence in self.placements),
            gpus=tuple((_name(d), one) for d, one in enumerate(self.node.platforms)),
            switch_s=self.costs.coordination_s,
            reliefs=self.settings.reliefs,
            streams=bool(self.read),
            notes=tuple(self._note(sequence[-1]) for sequence in self.placements),
            memories=self._memories(used),
            ways=tuple(self._way(a, b) for a, b in pairs),
        )

    def _note(self, placement: Placement) -> str:
        counts = {d: sum(d in c for c in placement.copies) for d in placement.devices}
        parts = ", ".join(f"{n} layers on device {d}" for d, n in counts.items())
        return f"{self.spec.name} over {self.node.name}, scaled: {parts}"

    def _way(self, a: int, b: int) -> Way:
        link = self.node.link(a, b)
        assert link is not None  # of `pairs`
        latency_s = link.latency_s + self.costs.operation_s
        return Way(_name(a), _name(b), self.node.ways(a, b), link.gbps, latency_s)

    def _always(self, placements: Sequence[Placement]) -> dict[int, int]:
        return {
            d: sum(all(p.holds(k, d) for p in placements) for k in range(self.spec.layers))
            for d in {d for p in placements for d in p.devices}
        }

    def _memories(self, used: Sequence[int]) -> dict[str, float]:
        size, outside = layer_bytes(self.spec)
        room = {d: self.settings.memory_share * self.node.platforms[d].gpu.hbm_bytes for d in used}
        for placements in self.placements:
            room[placements[0].first] -= outside
            for d, layers in self._always(placements).items():
                there = not self._reads(d, placements[0].first)
                room[d] -= there * layers * size + self.costs.process_bytes
        for d, rest_bytes in room.items():
            if rest_bytes <= 0.0:
                raise SettingError(
                    "node", self.node.name,
                    f"devices with room for {self.spec.name}; device {d} lacks "
                    f"{-rest_bytes / 1e9:.1f} GB",
                )  # fmt: skip
        return {_name(d): rest_bytes for d, rest_bytes in room.items()}

    def _lane(self, placements: Sequence[Placement]) -> Lane:
        unscaled = self.settings.reliefs + 1
        paths = [self._paths(p, scaled=k >= unscaled) for k, p in enumerate(placements)]
        homes = list(dict.fromkeys(path for group in paths for path in group))
        return Lane(
            place=self._place(placements),
            steps={
                self.spec.name: tuple(
                    self._plan(p.first, [(homes.index(path), path) for path in group])
                    for p, group in zip(placements, paths, strict=True)
                )
            },
            kv_homes=tuple(_shares(path) for path in homes),
            open_homes=tuple(tuple(homes.index(path) for path in group) for group in paths),
            copies=tuple(self._copies(p, placements) for p in placements),
            layers=tuple(tuple(tuple(map(_name, d)) for d in p.copies) for p in placements),
            paths=tuple(tuple(map(_name, path)) for path in homes),
        )

    def _paths(self, placement: Placement, *, scaled: bool) -> list[Path]:
        counts = set(placement.counts) - {1}
        if len(counts) > 1:
            raise SettingError(
                "system.layout.way", self.settings.way,
                f"a plan with one number of copies beside 1; it has {sorted(counts)}",
            )  # fmt: skip
        paths = [
            tuple(devices[min(j, len(devices) - 1)] for devices in placement.copies)
            for j in range(max(counts, default=1))
        ]
        return paths[1:] if scaled and self.settings.kv == "copies" and len(paths) > 1 else paths

    def _copies(self, placement: Placement, all_of: Sequence[Placement]) -> tuple[Copy, ...]:
        allotted = module_of(self.spec, LAYER).allocated_bytes
        copies = []
        for layer, devices in enumerate(placement.copies):
            holders = [d for p in all_of for d in p.copies[layer]]
            for device in devices:
                is_read = self._reads(device, placement.first)
                if not is_read and not all(p.holds(layer, device) for p in all_of):
                    source = next(d for d in holders if d != device)
                    copies.append(Copy(_name(source), _name(device), allotted, f"layer {layer}"))
        return tuple(copies)

    def _place(self, placements: Sequence[Placement]) -> Slice:
        used = sorted({d for p in placements for d in p.devices})
        chosen = [self.node.platforms[d].gpu for d in used]
        name = f"{self.node.name}/{_name(placements[0].first)}"
        return joined(name, chosen, self.node.links[0].gbps)

    def _plan(self, first: int, homes: Sequence[tuple[int, Path]]) -> Plan:
        works: list[Work] = []
        device_of = dict.fromkeys((home for home, _ in homes), first)
        after: dict[int, tuple[str, ...]] = {home: () for home, _ in homes}

        def send(home: int, to: int, number: int) -> None:
            name = f"{number}: {_name(device_of[home])} to {_name(to)}, {home}"
            works.append(self._sent(name, device_of[home], to, _seen(home, homes), after[home]))
            device_of[home], after[home] = to, (name,)

        number = 0
        for number, (devices, layers) in enumerate(_runs([path for _, path in homes])):
            here = {home: d for (home, _), d in zip(homes, devices, strict=True)}
            for home, device in here.items():
                if device_of[home] != device:
                    send(home, device, number)
            for device in dict.fromkeys(devices):
                served = [home for home, d in here.items() if d == device]
                is_read, name = self._reads(device, first), f"{number}: {layers} on {_name(device)}"
                cost = self._cost(device, layers, is_read)
                read = {"link": self._link_bytes(device, layers)} if is_read else {}
                before = tuple(dict.fromkeys(b for home in served for b in after[home]))
                works.append(
                    Work(name=name, seconds=cost, draws={**read, _name(device): cost}, after=before,
                         home=None if len(served) == len(homes) else served[0])
                )  # fmt: skip
                after |= dict.fromkeys(served, (name,))
        for home, _ in homes:
            if device_of[home] != first:
                send(home, first, number + 1)
        last = tuple(dict.fromkeys(b for names in after.values() for b in names))
        return (*works, self._rest(first, last))

    def _sent(
        self, name: str, source: int, target: int, home: int | None, after: tuple[str, ...]
    ) -> Work:
        link = self.node.link(source, target)
        if link is None:
            raise SettingError(
                "node", self.node.name, f"a link between devices {source} and {target}"
            )
        sizes = np.array([1, self.tokens])
        row_s = self.spec.hidden * self.spec.dtype_bytes / (link.gbps * 1e9)
        curve = Curve((1, max(2, self.tokens)), link.latency_s + row_s * sizes)
        cost = Cost(prefill=curve, decode=curve)
        draws = dict.fromkeys(self.node.ways(source, target), cost)
        if "link" in draws:  # in bytes
            curve = Curve((1, max(2, self.tokens)), row_s * link.gbps * 1e9 * sizes)
            draws["link"] = Cost(prefill=curve, decode=curve)
        return Work(name=name, seconds=cost, draws=draws, after=after, home=home)

    def _link_bytes(self, device: int, layers: int) -> Cost:
        moved = layers / self.spec.layers * self.read[device].body_link_bytes[1:, 0]
        return Cost(tokens=_curve(np.arange(1, len(moved) + 1), moved))

    def _cost(self, device: int, layers: int, is_read: bool) -> Cost:
        if (device, layers, is_read) not in self._layers:
            table = self.read[device] if is_read else self.devices.tables[device]
            share = layers / self.spec.layers
            rows, tokens = np.arange(1, self.rows + 1), np.arange(1, len(table.body_s))
            self._layers[device, layers, is_read] = Cost(
                tokens=_curve(tokens, share * table.body_s[1:, 0]),
                prefill=_curve(tokens, share * table.prefill_attention_s[1:]),
                decode=_curve(rows, share * table.decode_attention_s[rows]),
                cached=share * table.kv_read_s_per_token,
            )
        return self._layers[device, layers, is_read]

    def _rest(self, first: int, after: tuple[str, ...]) -> Work:
        table, rows = self.devices.tables[first], np.arange(1, self.rows + 1)
        one_s, host_s = table.head_s[1, 0], table.step_overhead_s + self.settings.host_s
        more = _curve(rows, table.head_s[rows, 0] - one_s)
        head = Cost(tokens=_constant(one_s), decode=more)
        seconds = Cost(tokens=_constant(one_s + host_s), decode=more)
        return Work(name="rest", seconds=seconds, draws={_name(first): head}, after=after)


def _name(device: int) -> str:
    return f"gpu{device}"


def _shares(path: Path) -> dict[str, float]:
    return {_name(d): path.count(d) / len(path) for d in dict.fromkeys(path)}


def _seen(home: int, homes: Sequence[tuple[int, Path]]) -> int | None:
    return None if len(homes) == 1 else home


def _runs(paths: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    for devices, layers in groupby(zip(*paths, strict=True)):
        yield devices, len(list(layers))


def _constant(value: float) -> Curve:
    return Curve((1, 1 << 30), np.full(2, value))


def _curve(sizes: np.ndarray, values: np.ndarray) -> Curve:
    return Curve(tuple(map(int, sizes)), np.asarray(values, np.float64))
