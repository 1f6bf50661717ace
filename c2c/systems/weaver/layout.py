"""Layouts of a hot and a cold model over two GPUs in the serving loop.

    woven      keys and values of a share of the hot model's sequences are on the cold GPU, which
               computes their attention; see below
    dedicated  a GPU for each model
    temporal   both models over both GPUs with tensor parallelism, steps of the two in turn
               (MuxServe)
    spatial    as temporal, but at the same time, each model on a share of the SMs (MuxServe)

A woven step is `rest`, then attention of sequences at home (K) in parallel with attention of
sequences away (N), then `stall`. A layer takes max(K, N) + the mean of max(0, W - max(0, K - N)),
which equals the mean of max(K, W + N). N is a work on the cold GPU with priority over the cold
model's steps, which therefore grow by N; polls after each operator and splits lengthen them too. W
is computed as if the cold model always ran.

Prompts are computed on their model's GPU, whose step they lengthen by their time alone; or on
devices of their own that send their keys and values; or they take no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import batched
from typing import Annotated, Any, Final

import numpy as np

from c2c.cost import Constants, calibration_for, load_constants
from c2c.cost.kernel_graph import Batch, TimedGpu, timed_gpu, times_lines
from c2c.errors import SettingError, unknown_name
from c2c.hardware import Node, Platform, joined
from c2c.models import Deployment, ModelSpec, kv_bytes_per_token, rank_of, weight_bytes
from c2c.policies import AsAlpha, ByRatio
from c2c.ranges import Count, FromZero, In, OneOf, Share, SomeShare, check_fields
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
from c2c.systems.mechanism import Context, Mechanism
from c2c.systems.weaver.profile import Pair, away_of, moved_s, operators_of, payload_bytes
from c2c.systems.weaver.splitting import (
    Cut,
    Limits,
    Threshold,
    ThresholdOf,
    best_cut,
    expected_stall,
    expected_stalls,
    guarded_cut,
    printed_cut,
)
from c2c.systems.weaver.times import Times, curve, fitted, times_of

__all__ = ["SYSTEM", "Weaving", "cut_of", "pair_times", "woven_layout"]

_WAYS: Final = ("dedicated", "spatial", "temporal", "woven")
_PAIR_CHIP: Final = "a100_40"  # whose all-reduces `fitted` has


@dataclass(frozen=True, slots=True, kw_only=True)
class Weaving:
    """Layout of two models over two GPUs: settings of the mechanism in `system.layout`.

    Attributes:
      way: layout: woven, dedicated, temporal or spatial.
      hot: name of the hot model; None: the catalog's first.
      ratio: share of the hot sequences that are away.
      cut: cut of the cold model's operators: none, printed and guarded (Algorithm 1), best (ours).
      threshold: longest stall that Algorithm 1 accepts, as a share of the hot step without stalls.
      threshold_of: stall that `threshold` bounds: operator, layer or iteration.
      weight: weight of a second of the cold model's step, for the best cut.
      rows: rows of the hot step that the cut is made for.
      cold_rows: rows of the cold step that the cut is made for.
      context: tokens a sequence that the cut and stalls are computed for.
      poll_s: seconds of a poll that finds nothing.
      split_s: seconds that a split adds to an operator.
      ahead_s: seconds that the CPU issues ahead, for which tasks wait if it controls them; None:
        the GPU controls them.
      prompt_devices: number of devices for each model's prompts; 0: prompts are computed where the
        model decodes; None: prompts take no time.
      kv_share: share of a GPU's memory for weights, keys, values and `reserve_bytes`.
      reserve_bytes: bytes of each GPU for other uses.
      cold_share: share of the models' common room for keys and values, kept for the cold model.
      host_s: host seconds a step of either model, beside the calibration's.
      collective_s: seconds of an all-reduce beside its bytes, with way=temporal or spatial; None:
        those of the paper's pair of A100.
      sm_share: share of the SMs of the hot model, with way=spatial.
    """

    way: Annotated[str, OneOf(*_WAYS)] = "woven"
    hot: str | None = None
    ratio: Share = 0.45
    cut: Annotated[str, OneOf("none", "printed", "guarded", "best")] = "guarded"
    threshold: FromZero = 0.05
    threshold_of: Annotated[str, OneOf("operator", "layer", "iteration")] = "iteration"
    weight: FromZero = 0.1
    rows: Count = 118
    cold_rows: Count = 4
    context: Count = 1093
    poll_s: FromZero = 2e-6
    split_s: FromZero = 3e-6
    ahead_s: FromZero | None = None
    prompt_devices: int | None = 0
    kv_share: SomeShare = 0.9
    reserve_bytes: FromZero = 1e9
    cold_share: Share = 0.1
    host_s: FromZero = 0.0
    collective_s: FromZero | None = None
    sm_share: Annotated[float, In("(0, 1)", "a share")] = 0.5

    def __post_init__(self) -> None:
        where = "system.layout"
        check_fields(self, where)
        apart = self.way in ("dedicated", "woven")
        most = 8 if apart else 0
        if self.prompt_devices is not None and not 0 <= self.prompt_devices <= most:
            allowed = "0 to 8, or null" if apart else f"0 or null with way={self.way}"
            raise SettingError(f"{where}.prompt_devices", self.prompt_devices, allowed)

    @property
    def of(self) -> ThresholdOf:
        """`threshold_of` in the type of `Threshold.of`."""
        of: Any = self.threshold_of
        return of  # type: ignore[no-any-return]

    @property
    def limits(self) -> Limits:
        """Limits of a cut."""
        return Limits(split_s=self.split_s, poll_s=self.poll_s)


def pair_times(
    given: Weaving, hot: Times, cold: Times, gpus: tuple[TimedGpu, TimedGpu], node: Node,
    away: Times,
) -> Pair:  # fmt: skip
    """Return the pair's times (K, N, the receiver's operators) at the batches of the cut."""
    count = away_of(given.rows, given.ratio)
    at_home = hot.attention_s([given.rows - count], given.context)
    remote = away.attention_s([count], given.context)
    kinds, ops, most = operators_of(
        cold.spec, Batch(rows=given.cold_rows, chunk=1, context=given.context), gpus[1]
    )
    return Pair(
        layers=hot.spec.layers, away=count, local_s=float(at_home[0]), away_s=float(remote[0]),
        wire_s=moved_s(hot.spec, count, *_wire(node)), rest_s=float(hot.rest_s([given.rows])[0]),
        kinds=kinds, ops=ops, most=most,
    )  # fmt: skip


def cut_of(given: Weaving, pair: Pair) -> Cut:
    """Return the cut that the settings name.

    Raises:
      SettingError: Algorithm 1 as printed that does not end.
    """
    limits, slack = pair.limits(given.limits), pair.slack_s
    if given.cut == "none" or not pair.away:
        return Cut(pieces=tuple((t,) for t in pair.ops))
    if given.cut == "best":
        return best_cut(
            pair.ops, slack, layers=pair.layers, weight=given.weight, limits=limits
        )  # fmt: skip
    seconds = given.threshold * pair.iteration_s
    threshold = Threshold(seconds=seconds, of=given.of, layers=pair.layers)
    if given.cut == "printed":
        return printed_cut(pair.ops, slack, threshold)
    return guarded_cut(pair.ops, slack, threshold, limits)


def woven_layout(
    given: Weaving, models: tuple[Deployment, ...], node: Node, *, rows: int, tokens: int,
    constants: Constants | None = None,
) -> StepLayout:  # fmt: skip
    """Return the layout of a hot and a cold model over the first two GPUs of a node.

    Args:
      given: settings of the layout.
      models: two models; `given.hot` names the hot one.
      node: GPUs and links.
      rows: largest batch.
      tokens: most prompt tokens of a step.
      constants: cost-model constants of GPUs of the first one's kind; None: by the GPUs' names.

    Raises:
      SettingError: a number of models other than two, a model without room, or GPUs without links.
    """
    names = [one.name for one in models]
    if len(models) != 2 or models[0].spec.name == models[1].spec.name:
        raise SettingError("catalog", names, "two models, each with a spec_name of its own")
    if given.hot is not None and given.hot not in names:
        raise unknown_name("system.layout.hot", given.hot, names)
    specs = [one.spec for one in models]
    if given.hot == names[1]:
        specs.reverse()
    return _Over(given, (specs[0], specs[1]), node, rows, tokens, constants).layout()


def _prepare(context: Context) -> SystemSpec:
    system, given = context.system, context.settings
    if context.node is None:
        raise SettingError("node", None, "a node with two GPUs for the models")
    tokens = getattr(system.chunk, "tokens", None) or max(system.profile.chunks)
    pairs = list(batched(context.deployments, 2))
    if given.hot is not None and len(pairs) > 1:
        raise SettingError(
            "system.layout.hot", given.hot, "null with several pairs, whose first model is hot"
        )
    specs = list(dict.fromkeys(tuple(d.spec for d in pair) for pair in pairs))
    one_of = {tuple(d.spec for d in pair): pair for pair in pairs}
    layouts = [
        woven_layout(given, one_of[both], context.node, rows=system.max_batch, tokens=tokens,
                     constants=context.constants)
        for both in specs
    ]  # fmt: skip
    served = [(specs.index(tuple(d.spec for d in p)), [d.name for d in p]) for p in pairs]
    layout = side_by_side(layouts, served)
    own = isinstance(system.vary, AsAlpha)
    return replace(system, layout=layout, vary=ByRatio(given.ratio) if own else system.vary)


def _notes(context: Context) -> tuple[str, ...]:
    """Return a line if the all-reduces of the paper's pair stand for those of another chip."""
    given, node = context.settings, context.node
    others = [gpu for gpu in dict.fromkeys(node.gpus if node else ()) if gpu != _PAIR_CHIP]
    is_used = given.way in ("temporal", "spatial") and given.collective_s is None
    of_pair = (
        f"all-reduces: fixed seconds of a pair of {_PAIR_CHIP} stand for those of "
        f"{', '.join(others)} (system.layout.collective_s)",
    )
    lines = times_lines(node.gpus[:2]) if node and given.way == "woven" else ()
    return (*of_pair[: bool(others) and is_used], *lines)


SYSTEM: Final = Mechanism(
    part="layout", settings=Weaving, prepare=_prepare, ways=_WAYS, notes=_notes
)


class _Over:
    def __init__(
        self, given: Weaving, specs: tuple[ModelSpec, ModelSpec], node: Node, rows: int,
        tokens: int, constants: Constants | None,
    ) -> None:  # fmt: skip
        self.given, self.hot, self.cold, self.node, self.rows = given, *specs, node, rows
        self.tokens = 0 if given.prompt_devices is None else tokens
        if len(node.platforms) < 2 or not node.link(0, 1) or not node.link(1, 0):
            raise SettingError("node", node.name, "two GPUs with links in both directions")
        first, second = node.platforms[:2]
        own = constants or load_constants(calibration_for(first.name))
        other = (
            own if second.name == first.name else load_constants(calibration_for(second.name))
        )  # fmt: skip
        self.gpus = (
            replace(timed_gpu(first), constants=own),
            replace(timed_gpu(second), constants=other),
        )

    def layout(self) -> StepLayout:
        """Return the layout of the settings' `way`."""
        if self.given.way in ("temporal", "spatial"):
            return self._multiplexed()
        hot, cold = self._times(self.hot, 0), self._times(self.cold, 1)
        memories = {"gpu0": self._room(0, self.hot), "gpu1": self._room(1, self.cold)}
        more_s, said = 0.0, "each model on a GPU"
        homes: tuple[dict[str, float], ...] = ({"gpu0": 1.0},)
        step: Plan = (_on("gpu0", "rest", self._own(hot.rest(), hot)),
                      _on("gpu0", "own", hot.attention, home=0, after=("rest",)))  # fmt: skip
        reserve: dict[str, float] = {}
        if self.given.way == "woven":
            step, more_s, said = self._woven(step, hot, cold)
            homes = (*homes, {"gpu1": 1.0})
            reserve = {"gpu1": self.given.cold_share * memories["gpu1"]}
        lanes = (
            self._lane("hot", self.hot, (0,), step, homes),
            replace(
                self._lane(
                    "cold", self.cold, (1,),
                    (_on("gpu1", "step", self._own(cold.step(more_s), cold)),), ({"gpu1": 1.0},),
                ), reserve=reserve,
            ),
        )  # fmt: skip
        return self._with_prompts(
            StepLayout(
                name=f"{self.given.way} over {self.node.name}", resources=("gpu0", "gpu1"),
                lanes=lanes, gpus=self._gpus(), by_age=False, memories=memories,
                notes=(said, self._of_prompts()),
            ), (hot, cold),
        )  # fmt: skip

    def _woven(self, own: Plan, hot: Times, cold: Times) -> tuple[Plan, float, str]:
        """Return the hot step, the seconds added to each cold step, and a note."""
        given, away = self.given, self._times(self.hot, 1)
        pair = pair_times(given, hot, cold, self.gpus, self.node, away)
        cut = cut_of(given, pair)
        layers = self.hot.layers
        n = np.arange(1, self.rows + 1, dtype=np.float64)
        (out_s, back_s), gbps = _wire(self.node)
        sent_s = out_s + back_s + n * sum(payload_bytes(self.hot)) / (gbps * 1e9)
        at_home = n * (1.0 - given.ratio) / given.ratio if given.ratio else n
        context = given.context
        slack = hot.attention_s(at_home, context) - away.attention_s(n, context) - sent_s
        late = np.maximum(0.0, slack)
        if given.ahead_s is None:
            stall = expected_stalls(cut.lengths, late)
        else:
            stall = np.maximum(0.0, given.ahead_s - late)
        sizes = np.array([1, max(2, self.tokens)])
        token_s = kv_bytes_per_token(self.hot) / (gbps * 1e9) * (given.prompt_devices == 0)
        step = (
            *own,
            Work(name="sent", home=1, after=("rest",),
                 seconds=Cost(prefill=curve(sizes, token_s * sizes),
                              decode=curve(n, layers * sent_s))),
            replace(_on("gpu1", "away", away.attention, home=1, after=("sent",)), rank=1),
            Work(name="stall", home=1, after=("own", "away"),
                 seconds=Cost(decode=curve(n, layers * stall))),
        )  # fmt: skip
        is_polled = pair.away > 0 and given.ahead_s is None
        more_s = sum(cut.lengths) - sum(pair.ops) + len(pair.ops) * given.poll_s
        said = (
            f"{given.ratio:.0%} of {self.hot.name}'s sequences away on {self.gpus[1].name}: "
            f"K {1e6 * pair.local_s:.0f} us, N {1e6 * pair.away_s:.0f} us and stall "
            f"{1e6 * expected_stall(cut.lengths, pair.slack_s):.0f} us a layer at {given.rows} "
            f"sequences, {cut.splits} splits"
        )
        return step, more_s if is_polled else 0.0, said

    def _multiplexed(self) -> StepLayout:
        """Return the layout of both models over both GPUs, in turn or on shares of the SMs."""
        given, spatial = self.given, self.given.way == "spatial"
        _, gbps = _wire(self.node)
        memory = {"both": self._both()}
        lanes = []
        for name, spec, share in (
            ("hot", self.hot, given.sm_share), ("cold", self.cold, 1.0 - given.sm_share),
        ):  # fmt: skip
            gpu = self.gpus[0]
            rank, collective_s = rank_of(spec, 2), given.collective_s
            if collective_s is None:
                collective_s = fitted()["collective_s"]
            parts = [gpu.part, *([_share_of(gpu, share)] if spatial else [])]
            times = [
                times_of(
                    rank, part, gpu.constants, rows=self.rows, tokens=self.tokens,
                    host_s=given.host_s, collective_s=collective_s, gbps=gbps,
                )
                for part in parts
            ]  # fmt: skip
            whole, *few = [self._own(one.step(), one) for one in times]
            cost = few[0] if few else whole
            drawn = _least(whole, cost) if few else whole
            step = (Work(name="step", seconds=cost, draws={"both": drawn}),)
            lane = self._lane(name, spec, (0, 1), step, ({"both": 1.0},))
            kept = given.cold_share * memory["both"] if name == "cold" else 0.0
            lanes.append(replace(lane, reserve={"both": kept}))
        how = "on shares of the SMs" if spatial else "in turn"
        said = f"both models over both GPUs, {how}"
        return StepLayout(
            name=f"{given.way} over {self.node.name}", resources=("both",), lanes=tuple(lanes),
            gpus=self._gpus("both"), by_age=not spatial, by_turns=not spatial, memories=memory,
            notes=(said, self._of_prompts()),
        )  # fmt: skip

    def _with_prompts(self, made: StepLayout, times: tuple[Times, Times]) -> StepLayout:
        """Return the layout with further devices, equal to its GPU, for each model's prompts."""
        count = self.given.prompt_devices
        if not count:
            return made
        _, gbps = _wire(self.node)
        lanes: list[Lane] = []
        resources, gpus = list(made.resources), list(made.gpus)
        for lane, spec, one, gpu in zip(
            made.lanes, (self.hot, self.cold), times, (0, 1), strict=True
        ):
            each = []
            for number in range(count):
                device = f"{lane.place.name} prompts {number}"
                resources += [device, f"{device} out"]
                gpus.append((device, self.node.platforms[gpu]))
                plan = (Work(name="prompts", seconds=one.prompts(), draws={device: one.prompts()}),)
                made_here = self._lane(f"{lane.place.name} prompts", spec, (gpu,), plan, ())
                each.append(replace(made_here, kv_bytes=self._room(gpu, spec)))
            token_s = kv_bytes_per_token(spec) / (gbps * 1e9)
            sizes = np.array([1, self.tokens])
            sent = {spec.name: Cost(prefill=curve(sizes, token_s * sizes))}
            ways = [[f"{lane.place.name} prompts {k} out"] for k in range(count)]
            lanes += [*prompts_apart(lane, each, sent, ways), lane]
        return replace(made, resources=tuple(resources), lanes=tuple(lanes), gpus=tuple(gpus))

    def _own(self, cost: Cost, times: Times) -> Cost:
        """Return a step's cost, with the time of prompts if the model's GPU computes them."""
        if self.given.prompt_devices != 0:
            return cost
        return replace(cost, prefill=times.prompts().prefill)

    def _of_prompts(self) -> str:
        count = self.given.prompt_devices
        if count is None:
            return "prompts take no time (system.layout.prompt_devices=null)"
        return f"prompts: {f'{count} further GPUs a model' if count else 'on the GPU that decodes'}"

    def _gpus(self, together: str = "") -> tuple[tuple[str, Platform], ...]:
        """Return the node's GPUs with their resources; `together` is that of the first two."""
        return tuple(
            (together if together and d < 2 else f"gpu{d}", platform)
            for d, platform in enumerate(self.node.platforms)
        )

    def _times(self, spec: ModelSpec, gpu: int) -> Times:
        on = self.gpus[gpu]
        return times_of(
            spec, on.part, on.constants, rows=self.rows, tokens=self.tokens,
            host_s=self.given.host_s,
        )  # fmt: skip

    def _lane(
        self, name: str, spec: ModelSpec, gpus: tuple[int, ...], step: Plan,
        homes: tuple[dict[str, float], ...],
    ) -> Lane:  # fmt: skip
        place = joined(name, [self.gpus[g].gpu for g in gpus], self.node.links[0].gbps)
        return Lane(place=place, steps={spec.name: (step,)}, kv_homes=homes)

    def _room(self, gpu: int, *specs: ModelSpec) -> float:
        one = self.gpus[gpu]
        held = sum(weight_bytes(spec) for spec in specs)
        room = self.given.kv_share * one.gpu.hbm_bytes - held - self.given.reserve_bytes
        if room <= 0.0:
            raise SettingError(
                "node", self.node.name,
                f"GPUs with room for {' and '.join(spec.name for spec in specs)}; {one.name} lacks "
                f"{-room / 1e9:.1f} GB",
            )  # fmt: skip
        return float(room)

    def _both(self) -> float:
        """Return the bytes of both GPUs that both models, each over both, leave free."""
        halves = sum(self._room(gpu) for gpu in (0, 1))
        room = halves - weight_bytes(self.hot) - weight_bytes(self.cold)
        if room <= 0.0:
            allowed = f"GPUs with room for both models; they lack {-room / 1e9:.1f} GB"
            raise SettingError("node", self.node.name, allowed)
        return float(room)


def _on(
    gpu: str, name: str, cost: Cost, *, home: int | None = None, after: tuple[str, ...] = ()
) -> Work:
    return Work(name=name, seconds=cost, draws={gpu: cost}, home=home, after=after)


def _wire(node: Node) -> tuple[tuple[float, float], float]:
    """Return the latencies there and back between the first two GPUs, and the lower rate, GB/s."""
    there, back = node.link(0, 1), node.link(1, 0)
    if there is None or back is None:
        raise SettingError("node", node.name, "links in both directions between the first two GPUs")
    return (there.latency_s, back.latency_s), min(there.gbps, back.gbps)


def _share_of(gpu: TimedGpu, share: float) -> Any:
    part = gpu.part
    return replace(
        part, sm_count=max(1, round(share * part.sm_count)), bf16_tflops=share * part.bf16_tflops
    )


def _least(whole: Cost, cost: Cost) -> Cost:
    """Return the memory time of a step on some of the SMs: that on all SMs, at most its own."""

    def least(all_sms: Curve, some: Curve) -> Curve:
        return Curve(some.sizes, np.minimum(all_sms.at(some.sizes), some.values))

    return Cost(
        prefill=least(whole.prefill, cost.prefill),
        decode=least(whole.decode, cost.decode),
        cached=min(whole.cached, cost.cached),
    )
