"""Layouts of a hot model and cold ones over GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import batched
from typing import Any, Final

import numpy as np

from c2c.cost import Constants, calibration_for, load_constants
from c2c.cost.kernel_graph import Batch, TimedGpu, step_kernels, timed_node, times_lines
from c2c.errors import SettingError, unknown_name
from c2c.hardware import Node, Platform, joined
from c2c.models import Deployment, ModelSpec, kv_bytes_per_token, rank_of, weight_bytes
from c2c.policies import AsAlpha, ByRatio, weights_in
from c2c.serving import (
    Cost,
    Curve,
    Lane,
    Plan,
    StepLayout,
    SystemSpec,
    Work,
    prompts_apart,
    side_by_side,
)
from c2c.systems.mechanism import Context, Mechanism, read_gbps
from c2c.systems.weaver.layout_settings import WAYS, Weaving
from c2c.systems.weaver.profile import Pair, away_of, moved_s, operators_of, payload_bytes
from c2c.systems.weaver.splitting import (
    Cut,
    Threshold,
    best_cut,
    expected_stall,
    expected_stalls,
    guarded_cut,
    printed_cut,
)
from c2c.systems.weaver.times import Times, curve, fitted, times_of

__all__ = ["SYSTEM", "cut_of", "pair_times", "woven_layout"]

_PAIR_CHIP: Final = "a100_40"  # whose all-reduces `fitted` has


def pair_times(
    settings: Weaving, hot: Times, cold: Times, gpus: tuple[TimedGpu, TimedGpu], node: Node,
    away: Times, *, receiver: int = 1, receivers: int = 1, link_gbps: float | None = None,
) -> Pair:  # fmt: skip
    """Return the pair's times (K, N, the receiver's operators)."""
    count = away_of(settings.rows, settings.ratio / receivers)
    at_home = hot.attention_s([settings.rows - receivers * count], settings.context)
    remote = away.attention_s([count], settings.context)
    batch = Batch(rows=settings.cold_rows, chunk=1, context=settings.context)
    kinds, ops, most = operators_of(cold.spec, batch, gpus[1])
    if link_gbps is not None:
        weights = [kernel.weight_bytes for kernel in step_kernels(cold.spec, batch)]
        ops = tuple(max(s, w / (link_gbps * 1e9)) for s, w in zip(ops, weights, strict=True))
    return Pair(
        layers=hot.spec.layers, away=count, local_s=float(at_home[0]), away_s=float(remote[0]),
        wire_s=moved_s(hot.spec, count, *_wire(node, receiver, receivers)),
        rest_s=float(hot.rest_s([settings.rows])[0]), kinds=kinds, ops=ops, most=most,
    )  # fmt: skip


def cut_of(settings: Weaving, pair: Pair) -> Cut:
    """Return the cut that the settings name."""
    limits, slack = pair.limits(settings.limits), pair.slack_s
    if settings.cut == "none" or not pair.away:
        return Cut(pieces=tuple((t,) for t in pair.ops))
    if settings.cut == "best":
        return best_cut(
            pair.ops, slack, layers=pair.layers, weight=settings.weight, limits=limits
        )  # fmt: skip
    seconds = settings.threshold * pair.iteration_s
    threshold = Threshold(seconds=seconds, of=settings.of, layers=pair.layers)
    if settings.cut == "printed":
        return printed_cut(pair.ops, slack, threshold)
    return guarded_cut(pair.ops, slack, threshold, limits)


def woven_layout(
    settings: Weaving, models: tuple[Deployment, ...], node: Node, *, rows: int, tokens: int,
    constants: Constants | None = None, link_gbps: float | None = None,
) -> StepLayout:  # fmt: skip
    """Return the layout of hot and cold models over a node's first GPUs.

    Args:
      models: `settings.models`; `settings.hot` names the hot one.
      link_gbps: of the chip's link, for cold weights in host memory; None: in HBM.

    Raises:
      SettingError: another number of models, no room, or no links.
    """
    names, count = [one.name for one in models], settings.models
    if len(models) != count or len({one.spec.name for one in models}) < count:
        allowed = f"{count} models a node, each with a spec_name of its own"
        raise SettingError("catalog", names, allowed)
    if settings.hot is not None and settings.hot not in names:
        raise unknown_name("system.layout.hot", settings.hot, names)
    if node.chip is not None:
        for name, value, works in (
            ("way", settings.way, settings.way in ("dedicated", "woven")),
            ("prompt_devices", settings.prompt_devices, not settings.prompt_devices),
        ):
            if not works:
                allowed = "dedicated or woven" if name == "way" else "0 or null"
                raise SettingError(f"system.layout.{name}", value, f"{allowed} on slices")
    specs = [one.spec for one in models]
    hot = specs.pop(0 if settings.hot is None else names.index(settings.hot))
    result = _Over(settings, (hot, *specs), node, rows, tokens, constants, link_gbps).layout()
    if settings.way != "woven" or settings.receivers > 1 or settings.prompt_devices:
        return result
    first = next(one.name for one in models if one.spec.name == hot.name)
    return replace(result, worker={"hot": first, "reserve": str(settings.cold_share)})


def _prepare(context: Context) -> SystemSpec:
    system, settings, node = context.system, context.settings, context.node
    if node is None:
        raise SettingError("node", None, "a node with two GPUs for the models")
    tokens = getattr(system.chunk, "tokens", None) or max(system.profile.chunks)
    groups = list(batched(context.deployments, settings.models))
    if settings.hot is not None and len(groups) > 1:
        raise SettingError(
            "system.layout.hot", settings.hot, "null with several pairs, whose first model is hot"
        )
    rate = read_gbps(context) if weights_in(system.load) == "host" else None
    specs = list(dict.fromkeys(tuple(d.spec for d in group) for group in groups))
    one_of = {tuple(d.spec for d in group): group for group in groups}
    layouts = [
        woven_layout(settings, one_of[models], node, rows=system.max_batch, tokens=tokens,
                     constants=context.constants, link_gbps=rate)
        for models in specs
    ]  # fmt: skip
    served = [(specs.index(tuple(d.spec for d in g)), [d.name for d in g]) for g in groups]
    layout = side_by_side(layouts, served)
    is_default = isinstance(system.vary, AsAlpha)
    return replace(
        system, layout=layout, vary=ByRatio(settings.ratio) if is_default else system.vary
    )


def _notes(context: Context) -> tuple[str, ...]:
    settings, chips = context.settings, context.node.chips if context.node else ()
    others = [chip for chip in chips if chip != _PAIR_CHIP]
    is_used = settings.way in ("temporal", "spatial") and settings.collective_s is None
    of_pair = (
        f"all-reduces: fixed seconds of a pair of {_PAIR_CHIP} stand for those of "
        f"{', '.join(others)} (system.layout.collective_s)",
    )
    lines = times_lines(chips) if settings.way == "woven" else ()
    return (*of_pair[: bool(others) and is_used], *lines)


SYSTEM: Final = Mechanism(
    part="layout", settings=Weaving, prepare=_prepare, ways=WAYS, notes=_notes,
    worker="c2c.systems.weaver.live.worker",
)  # fmt: skip


# A woven step is `rest`, then attention of sequences at home (K) in parallel with attention of
# sequences away (N), then `stall`. A layer takes max(K, N) + the mean of max(0, W - max(0, K - N)),
# which equals the mean of max(K, W + N). N is a work on the cold GPU with priority over the cold
# model's steps, which therefore grow by N; polls after each operator and splits lengthen them too.
# W is computed as if the cold model always ran.
#
# With `system.load=stream`, on slices of one chip, cold models' weights stay in host memory and
# each of their steps reads them over the chip's link, as transfers to receivers cross it. Prompts
# lengthen a step of their model's GPU by their time alone.
class _Over:
    def __init__(
        self, settings: Weaving, specs: tuple[ModelSpec, ...], node: Node, rows: int, tokens: int,
        constants: Constants | None, link_gbps: float | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.node, self.rows, self.link_gbps = settings, node, rows, link_gbps
        self.hot, *self.colds = specs
        self.tokens = 0 if settings.prompt_devices is None else tokens
        count = 1 + settings.receivers
        ends = range(1, min(count, len(node.platforms)))
        if len(node.platforms) < count or not all(node.link(0, k) for k in ends):
            allowed = f"{count} GPUs, and links from the first one to each other"
            raise SettingError("node", node.name, allowed)
        self.own = constants or load_constants(
            calibration_for((node.chip or node.platforms[0]).name)
        )
        self.gpus = timed_node(node, self.own)[:count]

    def layout(self) -> StepLayout:
        if self.settings.way in ("temporal", "spatial"):
            return self._multiplexed()
        hot, rate = self._times(self.hot, 0), self.link_gbps
        count = self.settings.receivers
        rates = None if rate is None else (rate, rate / count)
        memories = {"gpu0": self._room(0, self.hot)}
        shared = len(self.colds) > count  # each receiver serves every cold model, one at a time
        largest = max(self.colds, key=weight_bytes)
        for k, spec in enumerate(self.colds[:count], start=1):
            one = largest if shared else spec
            memories[f"gpu{k}"] = self._room(k, *([one] if rate is None else []))
        notes = ["each model on a GPU"] * (self.settings.way == "dedicated")
        homes: tuple[dict[str, float], ...] = ({"gpu0": 1.0},)
        step: Plan = (_on("gpu0", "rest", self._own(hot.rest(), hot)),
                      _on("gpu0", "own", hot.attention, home=0, after=("rest",)))  # fmt: skip
        lanes: list[Lane] = []
        times = [hot]
        for k in range(1, count + 1):
            here = self.colds if shared else self.colds[k - 1 : k]
            colds = [self._times(spec, k, rates) for spec in here]
            times.append(colds[0])
            gpu, more_s, reserve = f"gpu{k}", 0.0, {}
            if self.settings.way == "woven":
                works, more_s, note = self._woven(k, hot, colds[(k - 1) % len(colds)])
                step, homes, notes = (*step, *works), (*homes, {gpu: 1.0}), [*notes, note]
                reserve = {gpu: self.settings.cold_share * memories[gpu]}
            steps = {}
            for cold in colds:
                cost, read = self._own(cold.step(more_s), cold), None
                if rate is not None:
                    read = cold.link_bytes(has_prompts=self.settings.prompt_devices == 0)
                steps[cold.spec.name] = ((_on(gpu, "step", cost, read=read),),)
            lane = self._lane("cold" if count == 1 else f"cold {k}", steps, (k,), ({gpu: 1.0},))
            lanes.append(replace(lane, reserve=reserve))
        return self._with_prompts(
            StepLayout(
                name=f"{self.settings.way} over {self.node.name}", resources=tuple(memories),
                lanes=(self._lane("hot", {self.hot.name: (step,)}, (0,), homes), *lanes),
                gpus=self._gpus(),
                by_age=False, memories=memories, streams=rate is not None,
                notes=(*notes, self._of_prompts()),
            ), times,
        )  # fmt: skip

    def _woven(self, k: int, hot: Times, cold: Times) -> tuple[Plan, float, str]:
        settings, away, count = self.settings, self._times(self.hot, k), self.settings.receivers
        rate = None if self.link_gbps is None else self.link_gbps / count
        pair = pair_times(
            settings, hot, cold, (self.gpus[0], self.gpus[k]), self.node, away, receiver=k,
            receivers=count, link_gbps=rate,
        )  # fmt: skip
        cut = cut_of(settings, pair)
        layers = self.hot.layers
        n = np.arange(1, self.rows + 1, dtype=np.float64)
        waits_s, gbps = _wire(self.node, k, count)
        row_bytes = sum(payload_bytes(self.hot))
        sent_s = sum(waits_s) + n * row_bytes / (gbps * 1e9)
        at_home = n * count * (1.0 - settings.ratio) / settings.ratio if settings.ratio else n
        context = settings.context
        slack = hot.attention_s(at_home, context) - away.attention_s(n, context) - sent_s
        late = np.maximum(0.0, slack)
        if settings.ahead_s is None:
            stall = expected_stalls(cut.lengths, late)
        else:
            stall = np.maximum(0.0, settings.ahead_s - late)
        sizes = np.array([1, max(2, self.tokens)])
        token_bytes = kv_bytes_per_token(self.hot) * (settings.prompt_devices == 0)
        draws: dict[str, Cost] = {}
        if self.node.chip is not None:  # beside others, whose share the link's resource divides
            _, gbps = _wire(self.node, k, 1)
            sent_s = sum(waits_s) + n * row_bytes / (gbps * 1e9)
            draws = {"link": Cost(prefill=curve(sizes, token_bytes * sizes),
                                 decode=curve(n, layers * n * row_bytes))}  # fmt: skip
        sent, gone, stalled = (_of(k, name, count) for name in ("sent", "away", "stall"))
        step = (
            Work(name=sent, home=k, after=("rest",), draws=draws,
                 seconds=Cost(prefill=curve(sizes, token_bytes * sizes / (gbps * 1e9)),
                              decode=curve(n, layers * sent_s))),
            replace(_on(f"gpu{k}", gone, away.attention, home=k, after=(sent,)), rank=1),
            Work(name=stalled, home=k, after=("own", gone), beside=f"gpu{k}",
                 seconds=Cost(decode=curve(n, layers * stall))),
        )  # fmt: skip
        is_polled = pair.away > 0 and settings.ahead_s is None
        more_s = sum(cut.lengths) - sum(pair.ops) + len(pair.ops) * settings.poll_s
        note = (
            f"{settings.ratio / count:.0%} of {self.hot.name}'s sequences away on "
            f"{self.gpus[k].name}: "
            f"K {1e6 * pair.local_s:.0f} us, N {1e6 * pair.away_s:.0f} us and stall "
            f"{1e6 * expected_stall(cut.lengths, pair.slack_s):.0f} us a layer at {settings.rows} "
            f"sequences, {cut.splits} splits"
        )
        return step, more_s if is_polled else 0.0, note

    def _multiplexed(self) -> StepLayout:
        settings, spatial = self.settings, self.settings.way == "spatial"
        _, gbps = _wire(self.node, 1, 1)
        memory = {"both": self._both()}
        lanes = []
        for name, spec, share in (
            ("hot", self.hot, settings.sm_share), ("cold", self.colds[0], 1.0 - settings.sm_share),
        ):  # fmt: skip
            gpu = self.gpus[0]
            rank, collective_s = rank_of(spec, 2), settings.collective_s
            if collective_s is None:
                collective_s = fitted()["collective_s"]
            parts = [gpu.part, *([_share_of(gpu, share)] if spatial else [])]
            times = [
                times_of(
                    rank, part, gpu.constants, rows=self.rows, tokens=self.tokens,
                    host_s=settings.host_s, collective_s=collective_s, gbps=gbps,
                )
                for part in parts
            ]  # fmt: skip
            whole, *few = [self._own(one.step(), one) for one in times]
            cost = few[0] if few else whole
            drawn = _least(whole, cost) if few else whole
            step = (Work(name="step", seconds=cost, draws={"both": drawn}),)
            lane = self._lane(name, {spec.name: (step,)}, (0, 1), ({"both": 1.0},))
            reserve_bytes = settings.cold_share * memory["both"] if name == "cold" else 0.0
            lanes.append(replace(lane, reserve={"both": reserve_bytes}))
        how = "on shares of the SMs" if spatial else "in turn"
        note = f"both models over both GPUs, {how}"
        return StepLayout(
            name=f"{settings.way} over {self.node.name}", resources=("both",), lanes=tuple(lanes),
            gpus=self._gpus("both"), by_age=not spatial, by_turns=not spatial, memories=memory,
            notes=(note, self._of_prompts()),
        )  # fmt: skip

    def _with_prompts(self, layout: StepLayout, times: Sequence[Times]) -> StepLayout:
        count = self.settings.prompt_devices
        if not count:
            return layout
        lanes: list[Lane] = []
        resources, gpus = list(layout.resources), list(layout.gpus)
        for gpu, (lane, one) in enumerate(zip(layout.lanes, times, strict=True)):
            prompt_lanes, spec = [], one.spec
            _, gbps = _wire(self.node, max(1, gpu), 1)
            for number in range(count):
                device = f"{lane.place.name} prompts {number}"
                resources += [device, f"{device} out"]
                gpus.append((device, self.node.platforms[gpu]))
                plan = (Work(name="prompts", seconds=one.prompts(), draws={device: one.prompts()}),)
                steps = {spec.name: (plan,)}
                made_here = self._lane(f"{lane.place.name} prompts", steps, (gpu,), ())
                prompt_lanes.append(replace(made_here, kv_bytes=self._room(gpu, spec)))
            token_s = kv_bytes_per_token(spec) / (gbps * 1e9)
            sizes = np.array([1, self.tokens])
            sent = {spec.name: Cost(prefill=curve(sizes, token_s * sizes))}
            ways = [[f"{lane.place.name} prompts {k} out"] for k in range(count)]
            lanes += [*prompts_apart(lane, prompt_lanes, sent, ways), lane]
        return replace(layout, resources=tuple(resources), lanes=tuple(lanes), gpus=tuple(gpus))

    def _own(self, cost: Cost, times: Times) -> Cost:
        if self.settings.prompt_devices != 0:
            return cost
        return times.with_prompts(cost)

    def _of_prompts(self) -> str:
        count = self.settings.prompt_devices
        if count is None:
            return "prompts take no time (system.layout.prompt_devices=null)"
        return f"prompts: {f'{count} further GPUs a model' if count else 'on the GPU that decodes'}"

    def _gpus(self, together: str = "") -> tuple[tuple[str, Platform], ...]:
        return tuple(
            (together if together and d < 2 else f"gpu{d}", platform)
            for d, platform in enumerate(self.node.platforms)
        )

    def _times(
        self, spec: ModelSpec, gpu: int, link_gbps: tuple[float, float] | None = None
    ) -> Times:
        on, parts = self.gpus[gpu], self.node.parts
        part, constants = (parts[gpu], self.own) if parts else (on.part, on.constants)
        return times_of(
            spec, part, constants, rows=self.rows, tokens=self.tokens, host_s=self.settings.host_s,
            link_gbps=link_gbps,
        )  # fmt: skip

    def _lane(
        self, name: str, steps: Mapping[str, tuple[Plan, ...]], gpus: tuple[int, ...],
        homes: tuple[dict[str, float], ...],
    ) -> Lane:  # fmt: skip
        place = joined(name, [self.gpus[g].gpu for g in gpus], self.node.links[0].gbps)
        return Lane(place=place, steps=steps, kv_homes=homes)

    def _room(self, gpu: int, *specs: ModelSpec) -> float:
        one = self.gpus[gpu]
        model_bytes = sum(weight_bytes(spec) for spec in specs)
        room = (
            self.settings.kv_share * one.gpu.hbm_bytes - model_bytes - self.settings.reserve_bytes
        )
        if room <= 0.0:
            names = " and ".join(spec.name for spec in specs) or "keys and values"
            allowed = f"GPUs with room for {names}; {one.name} lacks {-room / 1e9:.1f} GB"
            raise SettingError("node", self.node.name, allowed)
        return float(room)

    def _both(self) -> float:
        """Return the free bytes of both GPUs with both models, each over both."""
        halves = sum(self._room(gpu) for gpu in (0, 1))
        room = halves - weight_bytes(self.hot) - weight_bytes(self.colds[0])
        if room <= 0.0:
            allowed = f"GPUs with room for both models; they lack {-room / 1e9:.1f} GB"
            raise SettingError("node", self.node.name, allowed)
        return float(room)


def _on(
    gpu: str, name: str, cost: Cost, *, home: int | None = None, after: tuple[str, ...] = (),
    read: Cost | None = None,
) -> Work:  # fmt: skip
    draws = {gpu: cost} if read is None else {"link": read, gpu: cost}
    return Work(name=name, seconds=cost, draws=draws, home=home, after=after)


def _of(k: int, name: str, receivers: int) -> str:
    return name if receivers == 1 else f"{name} {k}"


def _wire(node: Node, receiver: int, receivers: int) -> tuple[tuple[float, float], float]:
    """Return latencies to a receiver and back, and its rate, GB/s."""
    there, back = node.link(0, receiver), node.link(receiver, 0)
    assert there is not None  # checked with the node
    assert back is not None
    ways = [{*node.ways(0, k), *node.ways(k, 0)} for k in range(1, receivers + 1)]
    sharing = sum(bool(way & ways[receiver - 1]) for way in ways) if receivers > 1 else 1
    return (there.latency_s, back.latency_s), min(there.gbps, back.gbps) / sharing


def _share_of(gpu: TimedGpu, share: float) -> Any:
    part = gpu.part
    return replace(
        part, sm_count=max(1, round(share * part.sm_count)), bf16_tflops=share * part.bf16_tflops
    )


def _least(whole: Cost, cost: Cost) -> Cost:
    def least(all_sms: Curve, some: Curve) -> Curve:
        return Curve(some.sizes, np.minimum(all_sms.at(some.sizes), some.values))

    return Cost(
        prefill=least(whole.prefill, cost.prefill),
        decode=least(whole.decode, cost.decode),
        cached=min(whole.cached, cost.cached),
    )
