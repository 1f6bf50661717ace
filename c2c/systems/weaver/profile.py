"""Times of a woven pair by the cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from c2c.cost.kernel_graph import Batch, StepKernel, TimedGpu, kernel_s, step_kernels, step_s
from c2c.models import ModelSpec
from c2c.ranges import Share, check_value
from c2c.systems.weaver.splitting import Cut, Limits, expected_stall

__all__ = ["Pair", "Woven", "payload_bytes", "profile_of", "woven"]

TILE_COLUMNS = 128  # columns of a product's tile; pieces of whole tiles keep results bit-identical


def payload_bytes(spec: ModelSpec) -> tuple[int, int]:
    """Return a sequence's bytes sent in a layer (Q, K and V) and received (the result).

    >>> from c2c.models import load_spec
    >>> payload_bytes(load_spec("llama-3-8b"))
    (12288, 8192)
    """
    head_bytes = spec.head_dim * spec.dtype_bytes
    return (spec.heads + 2 * spec.kv_heads) * head_bytes, spec.heads * head_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Computed times of a hot model's (sender) and a cold one's (receiver) decode step.

    Attributes:
      layers: of the hot model, a task each.
      away: sequences of the receiver.
      local_s: K, the sender's attention in a layer, mean.
      away_s: N, the receiver's attention for a task.
      wire_s: a task's payload and result.
      rest_s: the sender's step without attention.
      kinds: the receiver's operators, in program order.
      ops: [operator], seconds.
      most: [operator], most pieces.
    """

    layers: int
    away: int
    local_s: float
    away_s: float
    wire_s: float
    rest_s: float
    kinds: tuple[str, ...]
    ops: tuple[float, ...]
    most: tuple[int, ...]

    @property
    def slack_s(self) -> float:
        """K - N, less the transfers, which the paper omits."""
        return self.local_s - self.away_s - self.wire_s

    @property
    def iteration_s(self) -> float:
        """Seconds of the sender's step without stalls."""
        return self.rest_s + self.layers * self.local_s

    def limits(self, limits: Limits) -> Limits:
        """Return the limits, with operators' most pieces."""
        pieces = limits.most if isinstance(limits.most, int) else min(limits.most)
        return Limits(
            least_s=limits.least_s, most=tuple(min(pieces, most) for most in self.most),
            split_s=limits.split_s, poll_s=limits.poll_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Woven:
    """Times of a pair with a cut.

    Attributes:
      stall_s: mean stall of a layer.
      hot_s: the sender's step.
      cold_s: the receiver's step with tasks.
      longest_s: the receiver's longest piece.
    """

    stall_s: float
    hot_s: float
    cold_s: float
    longest_s: float


def profile_of(
    hot: ModelSpec,
    cold: ModelSpec,
    gpus: Sequence[TimedGpu],
    *,
    batches: tuple[Batch, Batch],
    ratio: float,
    wire_s: tuple[float, float] = (0.0, 0.0),
    gbps: float = math.inf,
) -> Pair:
    """Return a pair's times.

    Args:
      batches: decode steps of hot and cold model.
      ratio: share of away sequences.
      wire_s: latencies to and fro.
      gbps: of the link, each direction.

    Raises:
      SettingError: a ratio outside [0, 1], or a missing rate.
    """
    check_value(ratio, Share, "ratio")
    sender, receiver = gpus
    batch = batches[0]
    away = away_of(batch.rows, ratio)
    kernels = step_kernels(hot, batch)
    seconds = step_s(kernels, sender)
    rest_s = sum(s for k, s in zip(kernels, seconds, strict=True) if k.kind != "attention")
    kinds, ops, most = operators_of(cold, batches[1], receiver)
    return Pair(
        layers=hot.layers,
        away=away,
        local_s=_attention_s(hot, batch.rows - away, batch.context, sender),
        away_s=_attention_s(hot, away, batch.context, receiver),
        wire_s=moved_s(hot, away, wire_s, gbps),
        rest_s=rest_s + sender.constants.step_overhead_s,
        kinds=kinds,
        ops=ops,
        most=most,
    )


def away_of(rows: int, ratio: float) -> int:
    """Count a batch's sequences that are away."""
    return math.floor(ratio * rows + 0.5)


def moved_s(spec: ModelSpec, away: int, wire_s: tuple[float, float], gbps: float) -> float:
    """Return the link seconds of a task's payload and result."""
    return sum(wire_s) + away * sum(payload_bytes(spec)) / (gbps * 1e9) if away else 0.0


@lru_cache(maxsize=64)
def operators_of(
    spec: ModelSpec, batch: Batch, on: TimedGpu
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Return kinds, seconds and most pieces of operators, as in `Pair`."""
    kernels = step_kernels(spec, batch)
    return (
        tuple(kernel.kind for kernel in kernels),
        tuple(step_s(kernels, on).tolist()),
        tuple(_most(kernel, batch.rows) for kernel in kernels),
    )


def woven(pair: Pair, cut: Cut, poll_s: float) -> Woven:
    """Return the times of a pair with a cut; the receiver polls after each piece."""
    lengths = cut.lengths
    stall_s = expected_stall(lengths, pair.slack_s) if pair.away else 0.0
    polled_s = len(pair.ops) * poll_s if pair.away else 0.0
    return Woven(
        stall_s=stall_s,
        hot_s=pair.iteration_s + pair.layers * stall_s,
        cold_s=sum(lengths) + polled_s + pair.layers * pair.away_s,
        longest_s=max(lengths),
    )


def _attention_s(spec: ModelSpec, rows: int, context: int, on: TimedGpu) -> float:
    """Return decode attention's mean seconds a layer; 0 without rows."""
    if rows == 0:
        return 0.0
    kernels = step_kernels(spec, Batch(rows=rows, chunk=1, context=context))
    attention = [kernel for kernel in kernels if kernel.kind == "attention"]
    kernel_of = {kernel.cache_bytes: kernel for kernel in attention}
    seconds = {size: kernel_s(kernel, on) for size, kernel in kernel_of.items()}
    return sum(seconds[kernel.cache_bytes] for kernel in attention) / len(attention)


def _most(kernel: StepKernel, rows: int) -> int:
    if kernel.product is not None:
        return max(1, int(kernel.product[2]) // TILE_COLUMNS)
    return rows if kernel.kind == "attention" else 1
