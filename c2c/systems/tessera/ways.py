"""Strategies to serve one model on two GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from c2c.cost.kernel_graph import Efficiency, Served, StepKernel, TimedGpu
from c2c.errors import SettingError
from c2c.systems.tessera.plan import Plan, costs_of, memory_of, stages_of
from c2c.systems.tessera.planner import blocks_of_layers, plan, relaxation_s
from c2c.systems.tessera.work import Gpus, served_work

__all__ = ["WAYS", "Way", "best_way", "ways"]

WAYS: Final = (
    "left", "right", "replicas", "layers", "prefill_decode", "attention_ffn", "kernels", "limit",
)  # fmt: skip
_BLOCKS: Final = 4  # of the coarse plan that comes first


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One strategy to use the GPUs.

    Attributes:
      requests_per_s: 0: does not fit or cannot be split so.
      price: of the GPUs, relative; None: unknown.
      held_bytes: [GPU], weights and cache.
      detail: assignment, as text.
      is_applicable: whether the model can be split so.
    """

    name: str
    requests_per_s: float
    price: float | None
    held_bytes: tuple[float, ...]
    plan: Plan | None = None
    detail: str = ""
    is_applicable: bool = True

    @property
    def efficiency(self) -> float | None:
        """Requests a second for the price; None: unknown."""
        return None if self.price is None else self.requests_per_s / self.price


def ways(
    served: Served,
    pair: Sequence[TimedGpu],
    *,
    gbps: float,
    latency_s: float,
    efficiency: Efficiency | None = None,
    gap: float = 0.01,
    blocks: int | None = None,
) -> tuple[Way, ...]:
    """Return sustained requests a second by strategy, as in `WAYS`.

    `kernels` is Tessera's, `prefill_decode` and `attention_ffn` are its baselines. Ours: `replicas`
    (no link) and `layers` (first layers on one GPU).

    Args:
      gbps: of the link in each direction, 1e9 bytes a second.
      latency_s: of a transfer.
      gap: relative gap of the planner.
      blocks: of layers whose kernels of a kind share a GPU; None: none.

    Raises:
      SettingError: not two GPUs, or one lacks a rate.
    """
    if len(pair) != 2:
        raise SettingError("pair", [gpu.name for gpu in pair], "two GPUs")
    link = Gpus.alike([gpu.name for gpu in pair], gbps=gbps, latency_s=latency_s)
    comparison = _Pair(served, pair, link, efficiency)
    return (
        comparison.single(0),
        comparison.single(1),
        comparison.replicas(),
        comparison.layers(),
        comparison.prefill_decode(),
        comparison.attention_ffn(),
        comparison.kernels(gap, blocks),
        comparison.limit(),
    )


def best_way(strategies: Sequence[Way], *, by_price: bool = False) -> Way:
    """Return the strategy of most requests a second, or for the price.

    Raises:
      SettingError: no strategy fits, or `by_price` without a price.
    """
    real = [way for way in strategies if way.name != "limit" and way.requests_per_s > 0]
    if not real:
        most_bytes = max((max(way.held_bytes) for way in strategies), default=0.0)
        raise SettingError(
            "model", f"{most_bytes:.0f} bytes", "a model that both GPUs hold together"
        )
    if not by_price:
        return max(real, key=lambda way: way.requests_per_s)
    if any(way.price is None for way in real):
        raise SettingError("price", None, "a price of both GPUs, in any unit")
    return max(real, key=lambda way: way.efficiency or 0.0)


class _Pair:
    """A model under a load over two GPUs, seconds a request."""

    def __init__(
        self,
        served: Served,
        pair: Sequence[TimedGpu],
        link: Gpus,
        efficiency: Efficiency | None,
    ) -> None:
        self.names = [gpu.name for gpu in pair]
        self.served, self.link = served, link
        self.prices = [gpu.gpu.price for gpu in pair]
        prices = [price for price in self.prices if price is not None]
        self.price = sum(prices) if len(prices) == len(pair) else None
        self.room = [float(gpu.gpu.hbm_bytes) for gpu in pair]
        self.both = served_work(served, pair, efficiency)
        ends = np.cumsum([len(phase.kernels) for phase in served.phases])[:-1]
        self.seconds = [part.sum(0).tolist() for part in np.split(self.both.times, ends)]
        self.whole = served.weight_bytes + served.state_bytes

    def single(self, gpu: int) -> Way:
        loads = [0.0, 0.0]
        loads[gpu] = self.whole
        rate = 1 / sum(seconds[gpu] for seconds in self.seconds)
        return Way(
            name=WAYS[gpu], requests_per_s=rate if loads[gpu] <= self.room[gpu] else 0.0,
            price=self.prices[gpu], held_bytes=tuple(loads), detail=self.names[gpu],
        )  # fmt: skip

    def replicas(self) -> Way:
        singles = [self.single(gpu) for gpu in range(2)]
        fits = all(way.requests_per_s for way in singles)
        return Way(
            name="replicas", requests_per_s=sum(w.requests_per_s for w in singles) if fits else 0.0,
            price=self.price, held_bytes=(self.whole,) * 2,
            detail=" | ".join(self.names),
        )  # fmt: skip

    def layers(self) -> Way:
        depth_of = np.concatenate([_depths(phase.kernels) for phase in self.served.phases])
        cuts = [(u, n) for u in (0, 1) for n in range(1, int(depth_of.max()) + 1)]
        if not cuts:
            return self._inapplicable("layers", "one layer only")
        rows = np.array([np.where(depth_of < n, u, 1 - u) for u, n in cuts], np.intp)
        seconds = costs_of(self.both, self.link, "throughput", rows)
        order = np.argsort(seconds, kind="stable")
        best = next((k for k in order if self._fits(self._held(rows[k]))), order[0])
        u, n = cuts[best]
        return self._placed(
            "layers", rows[best].tolist(), float(seconds[best]),
            detail=f"{n} of {depth_of.max() + 1} layers on {self.names[u]}, the others on "
            f"{self.names[1 - u]}",
        )  # fmt: skip

    def prefill_decode(self) -> Way:
        if len(self.served.phases) != 2:
            return self._inapplicable("prefill_decode", "one phase only")
        options = []
        for u, g in ((0, 1), (1, 0)):
            sent = self.link.seconds(self.served.handed_bytes, u, g)
            slowest = max(self.seconds[0][u], self.seconds[1][g], sent)
            loads = [0.0, 0.0]
            loads[u] = self.served.weight_bytes + self.served.handed_bytes * self.served.prompts
            loads[g] = self.whole
            options.append(
                Way(
                    name="prefill_decode", requests_per_s=1 / slowest if self._fits(loads) else 0.0,
                    price=self.price, held_bytes=tuple(loads),
                    detail=f"prefill on {self.names[u]}, decode on {self.names[g]}",
                )
            )  # fmt: skip
        return max(options, key=lambda way: way.requests_per_s)

    def attention_ffn(self) -> Way:
        if not self.served.splits_attention:
            return self._inapplicable("attention_ffn", "no blocks of attention and the rest")
        options = []
        for u, g in ((0, 1), (1, 0)):
            gpu_of = [u if kernel.is_attention else g for kernel in self.served.kernels]
            stages, _ = stages_of(self.both, self.link, gpu_of)
            detail = f"attention on {self.names[u]}, the rest on {self.names[g]}"
            options.append(self._placed("attention_ffn", gpu_of, max(s.seconds for s in stages),
                                      detail=detail))  # fmt: skip
        return max(options, key=lambda way: way.requests_per_s)

    def kernels(self, gap: float, blocks: int | None) -> Way:
        limited = replace(self.link, memory_bytes=tuple(self.room))
        kinds = [f"{phase.name} {k.kind}" for phase in self.served.phases for k in phase.kernels]
        groups = blocks_of_layers([k.layer for k in self.served.kernels], kinds, blocks or _BLOCKS)
        tied, first = (groups, None) if blocks else (None, groups)
        try:
            solution = plan(self.both, limited, "throughput", tied=tied, first=first, gap=gap)
        except SettingError as problem:
            if problem.field not in ("weights", "placement"):
                raise
            return Way(
                name="kernels", requests_per_s=0.0, price=self.price,
                held_bytes=(self.whole, 0.0), detail="any placement",
            )  # fmt: skip
        share = sum(solution.gpu_of) / len(solution.gpu_of)
        detail = f"{share:.0%} of kernels on {self.names[1]}, gap {solution.gap:.1%}"
        return self._placed(
            "kernels", solution.gpu_of, solution.objective_s, plan=solution, detail=detail
        )

    def limit(self) -> Way:
        return Way(
            name="limit", requests_per_s=1 / relaxation_s(self.both), price=self.price,
            held_bytes=(0.0, 0.0), detail="no transfers, kernels divisible",
        )  # fmt: skip

    def _inapplicable(self, name: str, why: str) -> Way:
        return Way(
            name=name, requests_per_s=0.0, price=self.price, held_bytes=(0.0, 0.0),
            detail=why, is_applicable=False,
        )  # fmt: skip

    def _held(self, gpu_of: Sequence[int]) -> tuple[float, ...]:
        return memory_of(self.both, gpu_of, 2)

    def _fits(self, held_bytes: Sequence[float]) -> bool:
        return all(h <= room for h, room in zip(held_bytes, self.room, strict=True))

    def _placed(
        self, name: str, gpu_of: Sequence[int], seconds: float, *, plan: Plan | None = None,
        detail: str,
    ) -> Way:  # fmt: skip
        loads = self._held(gpu_of)
        return Way(
            name=name, requests_per_s=1 / seconds if self._fits(loads) else 0.0, price=self.price,
            held_bytes=loads, plan=plan, detail=detail,
        )  # fmt: skip


def _depths(kernels: Sequence[StepKernel]) -> Any:
    return np.maximum.accumulate([max(0, kernel.layer) for kernel in kernels])
