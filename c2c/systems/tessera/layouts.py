"""Layouts of a pair of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, cast, get_args

import numpy as np

from c2c.cost.kernel_graph import Load, parameter_bytes, times_lines
from c2c.errors import SettingError
from c2c.hardware import Slice, joined
from c2c.models import ModelSpec, kv_bytes_per_token
from c2c.policies import weights_in
from c2c.ranges import AboveZero, Count, FromZero, OneOf, check_fields
from c2c.serving import Cost, Curve, Plan, StepLayout, SystemSpec, Work, prompts_apart, side_by_side
from c2c.serving import Lane as Place
from c2c.systems.mechanism import Context, Mechanism, read_gbps
from c2c.systems.tessera.lanes import PARTS, Costs, Lane, Lanes
from c2c.systems.tessera.pair import Pair
from c2c.systems.tessera.plan import Policy

__all__ = ["SWITCH_S", "SYSTEM", "PairLayout", "pair_layout"]

SWITCH_S: Final = 0.03  # stall of both GPUs at a change of policy; the paper's Fig. 10

Side = Literal["left", "right"]
_WAYS: Final = ("kernels", "replicas", "attention_ffn", "prefill_decode")
_SIDES: Final = get_args(Side)
_ROWS: Final = 64  # rows of the decode step that directions are compared by


# `way`:
#
#     kernels         every lane over both GPUs, kernels placed for each size of step; two variants
#                     of a step, the latency and the throughput policy's
#     replicas        an independent lane on each GPU
#     attention_ffn   every lane over both GPUs, attention on one and the rest on the other
#     prefill_decode  lanes for prompts on one GPU, which send keys and values over the link to the
#                     decoding lane on the other GPU
#
# On slices of one chip (`node=slices`) transfers go over the chip's link to host memory; with
# `system.load=stream` each step also reads its weights over it.
@dataclass(frozen=True, slots=True, kw_only=True)
class PairLayout:
    """Settings of `system.layout` of a run with a `node`, for one model.

    Attributes:
      way: kernels, replicas, attention_ffn or prefill_decode.
      plans: each_size: a plan for each size of step, all weights on both GPUs; joint: one plan,
        each GPU with its parts' weights, for way=kernels.
      objective: policy of a joint plan; None: latency with one batch in flight, else throughput.
      first: GPU of prompts, or of attention; None: the better one.
      in_flight: lanes over both GPUs, or for prompts.
      context: tokens of a sequence that decodes are priced at.
      prompt: tokens of its prompt.
      expert_bytes: bytes of an expert's weight.
      gbps: rate of the link in each direction, 1e9 bytes a second; None: the pair's.
      gap: relative gap at which the planner may stop.
      hbm_reserve_bytes: HBM of each GPU for other content.
    """

    way: Annotated[str, OneOf(*_WAYS)]
    plans: Literal["each_size", "joint"] = "each_size"
    objective: Policy | None = None
    first: Side | None = None
    in_flight: Count = 2
    context: Count = 1084
    prompt: Count = 1020
    expert_bytes: AboveZero = 2.0
    gbps: AboveZero | None = None
    gap: AboveZero = 0.03
    hbm_reserve_bytes: FromZero = 2.0e9

    def __post_init__(self) -> None:
        check_fields(self, "system.layout")
        is_joint = self.plans == "joint"
        if is_joint and self.way != "kernels":
            raise SettingError("system.layout.plans", self.plans, f"each_size with way={self.way}")
        if self.objective is not None and not is_joint:
            raise SettingError(
                "system.layout.objective", self.objective, "null, but with plans=joint"
            )


def pair_layout(
    settings: PairLayout, pair: Pair, spec: ModelSpec, *, rows: int, link_gbps: float | None = None
) -> StepLayout:
    """Return the lanes of a model over a pair."""
    if pair.node.chip is not None and settings.way == "prefill_decode":
        allowed = "kernels, replicas or attention_ffn on slices"
        raise SettingError("system.layout.way", settings.way, allowed)
    return _Over(settings, pair, spec, rows, link_gbps).layout()


def _prepare(context: Context) -> SystemSpec:
    deployments = context.deployments
    assert context.node is not None  # `c2c.config.nodes` refuses a layout without one
    pair, rows = Pair(node=context.node), context.system.max_batch
    specs = list(dict.fromkeys(d.spec for d in deployments))
    rate = read_gbps(context) if weights_in(context.system.load) == "host" else None
    layouts = [
        pair_layout(context.settings, pair, spec, rows=rows, link_gbps=rate) for spec in specs
    ]
    served = [(specs.index(d.spec), [d.name]) for d in deployments]
    return replace(context.system, layout=side_by_side(layouts, served))


SYSTEM: Final = Mechanism(
    part="layout", settings=PairLayout, prepare=_prepare, ways=_WAYS,
    notes=lambda context: times_lines(context.node.chips if context.node else ()),
    worker="c2c.systems.tessera.live.worker",
)  # fmt: skip


# A step over both GPUs is one work that draws on both GPUs and both directions of the link in
# proportion to its kernels and transfers: the limit of many small works that take turns.
class _Over:
    def __init__(
        self, settings: PairLayout, pair: Pair, spec: ModelSpec, rows: int, link_gbps: float | None
    ) -> None:
        self.settings, self.pair, self.spec = settings, pair, spec
        left, right = pair.left, pair.right
        self.resources = (left, f"{right} to {left}", right, f"{left} to {right}")
        caps = None
        if link_gbps is not None:
            if settings.plans == "joint":
                allowed = "each_size where slices read their weights from host memory"
                raise SettingError("system.layout.plans", settings.plans, allowed)
            one, two = (min(part.link_cap_gbps, link_gbps) for part in pair.node.parts)
            caps = one, two
        self.lanes = Lanes(
            spec=spec, pair=pair, context=settings.context, expert_bytes=settings.expert_bytes,
            gbps=settings.gbps, gap=settings.gap, rows=rows, caps_gbps=caps,
        )  # fmt: skip

    def layout(self) -> StepLayout:
        if self.settings.plans == "joint":
            return self._joint()
        lanes, detail = getattr(self, f"_{self.settings.way}")()
        return self._layout(lanes, detail)

    def _layout(self, lanes: tuple[Place, ...], detail: str, **more: Any) -> StepLayout:
        return StepLayout(
            name=f"{self.settings.way} over {self.pair.name}",
            resources=self.resources if self.pair.node.chip is None else self.resources[::2],
            streams=self.lanes.caps_gbps is not None,
            lanes=lanes,
            gpus=tuple(zip(self.pair.names, self.pair.node.platforms, strict=True)),
            switch_s=SWITCH_S,
            notes=(f"pair {self.pair.name}: {detail}",),
            **more,
        )

    def _joint(self) -> StepLayout:
        settings, names = self.settings, self.pair.names
        policy: Policy = settings.objective or (
            "latency" if settings.in_flight == 1 else "throughput"
        )
        output = max(1, 2 * (settings.context - settings.prompt))
        load = Load(prompt=settings.prompt, output=output, rows=_ROWS, prompts=1)
        joint = self.lanes.joint(policy, load, settings.hbm_reserve_bytes)
        path = tuple(names[part[PARTS.index("attention")]] for part in joint.gpu_of)
        room = {
            name: gpu.gpu.hbm_bytes - weights - settings.hbm_reserve_bytes
            for name, gpu, weights in zip(names, self.pair.gpus, joint.weight_bytes, strict=True)
        }
        lane = Place(
            place=self._place("both", (0, 1)), steps={self.spec.name: (self._step(joint.lane),)},
            kv_homes=({name: path.count(name) / len(path) for name in dict.fromkeys(path)},),
            layers=(tuple((name,) for name in path),), paths=(path,),
        )  # fmt: skip
        shares = [sum(row.count(g) for row in joint.gpu_of) for g in (0, 1)]
        detail = f"{shares[0]} parts of layers on {names[0]}, {shares[1]} on {names[1]}, {policy}"
        parts = " ".join("".join(map(str, row)) for row in joint.gpu_of)
        return self._layout(
            (lane,) * settings.in_flight, detail, memories=room, worker={"parts": parts}
        )

    def _kernels(self) -> tuple[tuple[Place, ...], str]:
        steps = tuple(self._step(self.lanes.placed(p)) for p in ("latency", "throughput"))
        place = self._place("both", (0, 1))
        room = min(self._room(0), self._room(1)) / self.settings.in_flight
        lane = self._lane(place, room, steps)
        return (lane,) * self.settings.in_flight, (
            f"{self.settings.in_flight} batches over both GPUs, kernels placed by size of step"
        )

    def _replicas(self) -> tuple[tuple[Place, ...], str]:
        return tuple(
            self._lane(
                self._place(name, (g,)), self._room(g), (self._step(self.lanes.single(g)),)
            )
            for g, name in enumerate((self.pair.left, self.pair.right))
        ), "a batch on each GPU"  # fmt: skip

    def _attention_ffn(self) -> tuple[tuple[Place, ...], str]:
        sides = _SIDES if self.settings.first is None else (self.settings.first,)
        lanes = {g: self.lanes.attention_ffn(g) for g in map(_SIDES.index, sides)}
        first = min(lanes, key=lambda g: self._slowest(lanes[g]))
        room = self._room(first) / self.settings.in_flight
        lane = self._lane(self._place("both", (0, 1)), room, (self._step(lanes[first]),))
        names = (self.pair.left, self.pair.right)
        return (lane,) * self.settings.in_flight, (
            f"attention on {names[first]}, the rest on {names[1 - first]}, "
            f"{self.settings.in_flight} batches"
        )

    def _prefill_decode(self) -> tuple[tuple[Place, ...], str]:
        single = [self.lanes.single(g) for g in (0, 1)]
        first = self._first([self._slowest_apart(single, u) for u in (0, 1)])
        names = (self.pair.left, self.pair.right)
        target = self._place(names[1 - first], (1 - first,))
        # a prompt's keys and values are sent by a work of their own after the prompt's
        sizes = tuple(int(size) for size in single[first].prefill.sizes)
        source = cast("Literal[0, 1]", first)
        sent_s = np.array([self.lanes.handed_s(n, source) for n in sizes])
        sent = Cost(prefill=Curve(sizes, sent_s))
        way = self.resources[2 * (1 - first) + 1]
        room = self._room(first) / self.settings.in_flight
        decodes = self._lane(target, self._room(1 - first), (self._step(single[1 - first]),))
        prompts = self._lane(
            self._place(names[first], (first,)), room, (self._step(single[first]),)
        )
        senders = prompts_apart(
            decodes, [prompts] * self.settings.in_flight, {self.spec.name: sent},
            [(way,)] * self.settings.in_flight,
        )  # fmt: skip
        return (*senders, decodes), (
            f"prompts on {names[first]}, {self.settings.in_flight} in flight, decodes on "
            f"{names[1 - first]}"
        )

    def _slowest_apart(self, single: Sequence[Lane], source: int) -> float:
        prompt = self.settings.prompt
        output = 2 * (self.settings.context - prompt)
        return max(
            single[source].prefill.at(prompt)[1],
            self.lanes.handed_s(prompt, cast("Literal[0, 1]", source)),
            single[1 - source].decode.at(_ROWS)[1] * output / _ROWS,
        )

    def _first(self, seconds: Sequence[float]) -> int:
        if self.settings.first is not None:
            return _SIDES.index(self.settings.first)
        return int(np.argmin(seconds))

    def _slowest(self, lane: Lane) -> float:
        prefill, prefill_s = lane.prefill.at(self.settings.prompt)
        decode, decode_s = lane.decode.at(_ROWS)
        output = 2 * (self.settings.context - self.settings.prompt)
        return max(
            p * prefill_s + d * decode_s * output / _ROWS
            for p, d in zip(prefill, decode, strict=True)
        )

    def _room(self, gpu: int) -> float:
        one = self.pair.gpus[gpu]
        weights = 0.0
        if self.lanes.caps_gbps is None:
            weights = parameter_bytes(self.spec, self.settings.expert_bytes)
        room = one.gpu.hbm_bytes - weights - self.settings.hbm_reserve_bytes
        if room < kv_bytes_per_token(self.spec):
            raise SettingError(
                "node", self.pair.name,
                f"GPUs that hold {self.spec.name}'s {weights / 1e9:.1f} GB of weights; {one.name} "
                f"has {one.gpu.hbm_bytes / 1e9:.0f} GB",
                "With system.layout.plans=joint each holds a part."
                if self.settings.way == "kernels" else "",
            )  # fmt: skip
        return float(room)

    def _place(self, name: str, gpus: Sequence[int]) -> Slice:
        chosen = [self.pair.gpus[g].gpu for g in gpus]
        return joined(f"{self.pair.name}/{name}", chosen, self.pair.wire.gbps)

    def _lane(self, place: Slice, room: float, steps: tuple[Plan, ...]) -> Place:
        return Place(place=place, kv_bytes=room, steps={self.spec.name: steps})

    def _step(self, lane: Lane) -> Plan:
        busy = {r: _cost(lane, k) for k, r in enumerate(self.resources)}
        if self.pair.node.chip is not None:  # transfers go over the chip's link
            both = {r: busy[r] for r in self.resources[::2]}
            busy = {"link": Cost(tokens=_by_tokens(lane, lambda costs: costs.link_bytes)), **both}
        draws = {r: cost for r, cost in busy.items() if cost.is_any()}
        return (Work(name="step", seconds=_cost(lane), draws=draws),)


def _cost(lane: Lane, column: int | None = None) -> Cost:
    """Return a step's cost on a resource; None: its seconds alone."""

    def of(table: Sequence[Sequence[float]]) -> np.ndarray:
        values = np.array(table)
        return values.sum(axis=1) if column is None else values[:, column]

    def by_rows(costs: Costs) -> Curve:
        return Curve(tuple(map(int, costs.sizes)), of(costs.rows_s))

    return Cost(
        tokens=_by_tokens(lane, lambda costs: of(costs.busy_s) - of(costs.rows_s)),
        prefill=by_rows(lane.prefill), decode=by_rows(lane.decode),
    )  # fmt: skip


def _by_tokens(lane: Lane, values: Callable[[Costs], Sequence[float] | np.ndarray]) -> Curve:
    last = lane.decode.sizes[-1]
    small = dict(zip(lane.decode.sizes, values(lane.decode), strict=True))
    large = zip(lane.prefill.sizes, values(lane.prefill), strict=True)
    every = small | {size: value for size, value in large if size > last}
    return Curve(tuple(map(int, every)), np.maximum(0.0, np.array([*every.values()])))
