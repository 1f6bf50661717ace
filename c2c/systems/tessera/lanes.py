"""Lanes of a decoder over a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from c2c.cost.kernel_graph import Batch, Load, StepKernel, decoder, step_kernels
from c2c.models import ModelSpec, kv_bytes_per_token
from c2c.systems.tessera.pair import Pair
from c2c.systems.tessera.plan import Options, Policy, Stage, memory_of, stages_of
from c2c.systems.tessera.planner import blocks_of_layers, plan
from c2c.systems.tessera.work import Gpus, Work, served_work, streamed_work, work_of

__all__ = ["PARTS", "PRICE", "Costs", "Joint", "Lane", "Lanes", "part_of"]

PRICE: Final = 0.1  # `Options.price`: prefers the plan that sends less of two nearly equal ones
PARTS: Final = ("qkv", "attention", "o", "feed_forward")
_BLOCKS: Final = 4  # of the coarse plan that comes first
_ROWS: Final = (1, 8, 32, 128)
_TOKENS: Final = (128, 512, 1024, 4096)

Placing = Callable[[Work, Sequence[StepKernel]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a step by size: interpolated, proportional beyond the last.

    Attributes:
      sizes: rows (decode) or tokens (prefill); ascending.
      busy_s: [size][resource], of GPUs and link directions.
      alone_s: [size], of a lone step.
      rows_s: [size][resource], part of `busy_s` of rows or prompt.
      link_bytes: [size], to host memory.
    """

    sizes: tuple[float, ...]
    busy_s: tuple[tuple[float, ...], ...]
    alone_s: tuple[float, ...]
    rows_s: tuple[tuple[float, ...], ...] = ()
    link_bytes: tuple[float, ...] = ()

    def at(self, size: float) -> tuple[tuple[float, ...], float]:
        """Return a lone step's shares of resources, and latency."""
        grid_size = min(size, self.sizes[-1])
        more = max(1.0, size / self.sizes[-1])
        alone = more * float(np.interp(grid_size, self.sizes, self.alone_s))
        columns = np.array(self.busy_s).T
        busy = (more * float(np.interp(grid_size, self.sizes, column)) for column in columns)
        return tuple(b / alone for b in busy), alone


@dataclass(frozen=True, slots=True)
class Lane:
    """Costs of a batch: prompts by tokens, decodes by rows."""

    prefill: Costs
    decode: Costs
    rows: int  # largest number of rows


@dataclass(frozen=True, slots=True)
class Joint:
    """One placement for all steps.

    Attributes:
      gpu_of: [layer][part], as in `PARTS`.
      weight_bytes: by GPU.
    """

    lane: Lane
    gpu_of: tuple[tuple[int, ...], ...]
    weight_bytes: tuple[float, ...]


# Each size has a plan of its own, as each CUDA graph has in the paper. `joint` has one plan for all
# sizes, by parts of layers, so that a GPU keeps the weights of its own parts alone.
@dataclass(frozen=True, kw_only=True)  # no slots, for the cached property
class Lanes:
    """A decoder over a pair.

    Attributes:
      context: tokens of a sequence at half its output.
      expert_bytes: of an expert's weight.
      gbps: of the link, 1e9 bytes a second; None: the pair's.
      gap: relative gap of the planner.
      rows: most rows of a lane.
      caps_gbps: of slices alone from host memory; None: weights are in HBM.
    """

    spec: ModelSpec
    pair: Pair
    context: int
    expert_bytes: float = 2
    gbps: float | None = None
    gap: float = 0.03
    rows: int = 256
    caps_gbps: tuple[float, float] | None = None

    @property
    def link(self) -> Gpus:
        """GPUs and the link between them, as the planner's input."""
        return self.pair.link(self.gbps)

    def single(self, gpu: int) -> Lane:
        """Return a lane on one GPU."""
        return self._lane(lambda work, _: (gpu,) * len(work.names))

    def attention_ffn(self, attention: int) -> Lane:
        """Return a lane with attention alone on one GPU."""
        return self._lane(
            lambda _, kernels: [attention if k.is_attention else 1 - attention for k in kernels]
        )

    def placed(self, policy: Policy) -> Lane:
        """Return a lane with a placement for each size of step."""

        def placing(work: Work, kernels: Sequence[StepKernel]) -> Sequence[int]:
            if policy == "latency":
                return plan(work, self.link, policy).gpu_of
            blocks = blocks_of_layers([k.layer for k in kernels], [k.kind for k in kernels])
            solution = plan(
                work, self.link, policy, tied=blocks, gap=self.gap, options=Options(price=PRICE)
            )
            return solution.gpu_of

        return self._lane(placing)

    def joint(self, policy: Policy, load: Load, reserve_bytes: float) -> Joint:
        """Return one placement of parts for prompts and decodes."""
        served = decoder(self.spec, load, expert_bytes=self.expert_bytes)
        places = [(kernel.layer, part_of(kernel)) for kernel in served.kernels]
        blocks = blocks_of_layers(
            [layer for layer, _ in places], [part for _, part in places], _BLOCKS
        )
        ends = {n: 0 for n, (layer, _) in enumerate(places) if layer < 0}
        work = served_work(served, self.pair.gpus)
        work = replace(work, pinned={**work.pinned, **ends})
        room = tuple(gpu.gpu.hbm_bytes - reserve_bytes for gpu in self.pair.gpus)
        number = {place: n for n, place in enumerate(dict.fromkeys(places))}
        solution = plan(
            work, replace(self.link, memory_bytes=room), policy,
            tied=[len(number) + n if n in ends else number[slot] for n, slot in enumerate(places)],
            first=blocks, gap=self.gap, options=Options(price=PRICE),
        )  # fmt: skip
        gpu_of = dict(zip(places, solution.gpu_of, strict=True))
        parts = tuple(
            tuple(gpu_of[layer, part] for part in PARTS) for layer in range(self.spec.layers)
        )
        lane = self._lane(lambda _, kernels: [gpu_of[k.layer, part_of(k)] for k in kernels])
        attention = [row[PARTS.index("attention")] for row in parts]
        cached = [served.state_bytes * attention.count(g) / len(attention) for g in (0, 1)]
        gpu_bytes = memory_of(work, solution.gpu_of, 2)
        weights = tuple(total - cache for total, cache in zip(gpu_bytes, cached, strict=True))
        return Joint(lane, parts, weights)

    def handed_s(self, prompt: int, source: Literal[0, 1]) -> float:
        """Return the seconds of a prompt's KV on the link."""
        nbytes = float(kv_bytes_per_token(self.spec)) * prompt
        return self.link.seconds(nbytes, source, 1 - source)

    def _lane(self, placing: Placing) -> Lane:
        return Lane(
            prefill=self._costs(
                _TOKENS, [Batch(rows=1, chunk=n, context=n) for n in _TOKENS], placing
            ),
            decode=self._costs(
                _ROWS, [Batch(rows=n, chunk=1, context=self.context) for n in _ROWS], placing
            ),
            rows=self.rows,
        )

    def _costs(self, sizes: Sequence[int], batches: Sequence[Batch], placing: Placing) -> Costs:
        busy, rows, moved = [], [], []
        for batch in batches:
            kernels = step_kernels(self.spec, batch, expert_bytes=self.expert_bytes)
            work = self._work(kernels)
            gpu_of = placing(work, kernels)
            stages, _ = stages_of(work, self.link, gpu_of)
            busy.append(tuple(_flat(stages)))
            rows.append(self._rows_s(kernels, work, gpu_of))
            sent = sum(e.nbytes for e in work.transfers if gpu_of[e.source] != gpu_of[e.target])
            read = 0.0 if self.caps_gbps is None else sum(k.weight_bytes for k in kernels)
            moved.append(float(sent + read))
        alone = tuple(map(sum, busy))
        return Costs(tuple(map(float, sizes)), tuple(busy), alone, tuple(rows), tuple(moved))

    def _work(self, kernels: Sequence[StepKernel]) -> Work:
        if self.caps_gbps is None:
            return work_of(kernels, self.pair.gpus)
        return streamed_work(kernels, self.pair.gpus, self.caps_gbps)

    @cached_property
    def _one_row_s(self) -> tuple[float, ...]:
        one = step_kernels(self.spec, Batch(rows=1, chunk=1, context=1))
        (result,) = self._work([replace(k, takes=()) for k in one if k.kind == "head"]).times_s
        return result

    def _rows_s(
        self, kernels: Sequence[StepKernel], work: Work, gpu_of: Sequence[int]
    ) -> tuple[float, ...]:
        one_row = self._one_row_s
        times_s = [0.0] * (2 * len(self.pair.gpus))
        for kernel, seconds, g in zip(kernels, work.times, gpu_of, strict=True):
            if kernel.cache_bytes > 0.0 or kernel.kind == "attention":
                times_s[2 * g] += float(seconds[g])
            elif kernel.kind == "head":
                times_s[2 * g] += max(0.0, float(seconds[g] - one_row[g]))
        return tuple(times_s)


def part_of(kernel: StepKernel) -> str:
    """Return the part of `PARTS` of a layer's kernel, or "ends"."""
    if kernel.layer < 0:
        return "ends"
    return _PART_OF.get(kernel.kind, "feed_forward")


_PART_OF: Final = {
    **dict.fromkeys(("norm1", "qkv", "rope_q", "rope_k"), "qkv"),
    **dict.fromkeys(("kv_write", "attention", "merge"), "attention"),
    **dict.fromkeys(("o", "add1"), "o"),
}


def _flat(stages: Sequence[Stage]) -> list[float]:
    return [s for stage in stages for s in (stage.compute_s, stage.communication_s)]
