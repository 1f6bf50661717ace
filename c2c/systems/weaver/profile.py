"""Times of a woven pair by the cost model: K, N, the receiver's operators, and what cuts do.

Source: section 4.2; the paper profiles a running pair, this takes `c2c.cost.kernel_graph`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from c2c.cost.kernel_graph import Batch, StepKernel, TimedGpu, kernel_s, step_kernels, step_s
from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.systems.weaver.splitting import Cut, Limits, expected_stall

__all__ = ["Pair", "Woven", "payload_bytes", "profile_of", "woven"]

TILE_COLUMNS = 128  # of a product: pieces are of whole tiles, which keeps results equal to the bit


def payload_bytes(spec: ModelSpec) -> tuple[int, int]:
    """Return bytes of a sequence and layer: Q, K and V out, the result back.

    >>> from c2c.models import load_spec
    >>> payload_bytes(load_spec("llama-3-8b"))
    (12288, 8192)
    """
    each = spec.head_dim * spec.dtype_bytes
    return (spec.heads + 2 * spec.kv_heads) * each, spec.heads * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A hot and a cold model in one decode step each, on two GPUs.

    Attributes:
      layers: of the hot model: tasks of a step.
      away: sequences whose keys and values the receiver has.
      local_s: K, of the sender's attention in one layer, in the mean over layers.
      away_s: N, of the receiver's for one task.
      wire_s: of a task's payload and its result between the GPUs.
      rest_s: of the sender's step beside attention.
      kinds: of the receiver's operators, in program order.
      ops: seconds of each.
      most: pieces that each may have: tiles of a product's columns, sequences of attention, else 1.
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
        """K - N, the way there and back taken off, which the paper leaves out."""
        return self.local_s - self.away_s - self.wire_s

    @property
    def iteration_s(self) -> float:
        """The sender's step without stalls."""
        return self.rest_s + self.layers * self.local_s

    def limits(self, limits: Limits) -> Limits:
        """Return limits with the most pieces of each operator."""
        pieces = limits.most if isinstance(limits.most, int) else min(limits.most)
        return Limits(
            least_s=limits.least_s, most=tuple(min(pieces, most) for most in self.most),
            split_s=limits.split_s, poll_s=limits.poll_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Woven:
    """A pair with a cut.

    Attributes:
      stall_s: of a layer, in the mean.
      hot_s: of the sender's step.
      cold_s: of the receiver's step, in which the sender takes one.
      longest_s: of the receiver's pieces.
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
    """Return the times of a pair.

    Args:
      hot: the sender's model.
      cold: the receiver's.
      gpus: the sender's and the receiver's.
      batches: decode steps of the hot and of the cold model.
      ratio: share of the hot sequences that are away.
      wire_s: latency of a transfer to the receiver and back.
      gbps: of the link, each way.

    Raises:
      SettingError: a ratio outside [0, 1], or a GPU whose file lacks a rate.
    """
    if not 0 <= ratio <= 1:
        raise SettingError("ratio", ratio, "a share in [0, 1]")
    sender, receiver = gpus
    batch = batches[0]
    away = math.floor(ratio * batch.rows + 0.5)
    kernels = step_kernels(hot, batch)
    seconds = step_s(kernels, sender)
    rest_s = sum(s for k, s in zip(kernels, seconds, strict=True) if k.kind != "attention")
    own = step_kernels(cold, batches[1])
    out, back = payload_bytes(hot)
    moved_s = sum(wire_s) + away * (out + back) / (gbps * 1e9)
    return Pair(
        layers=hot.layers,
        away=away,
        local_s=_attention_s(hot, batch.rows - away, batch.context, sender),
        away_s=_attention_s(hot, away, batch.context, receiver),
        wire_s=moved_s if away else 0.0,
        rest_s=rest_s + sender.constants.step_overhead_s,
        kinds=tuple(kernel.kind for kernel in own),
        ops=tuple(step_s(own, receiver).tolist()),
        most=tuple(_most(kernel, batches[1].rows) for kernel in own),
    )


def woven(pair: Pair, cut: Cut, poll_s: float) -> Woven:
    """Return stall and steps with a cut; the receiver polls after each piece.

    A split's own poll is in the piece's seconds already. With no sequence away nothing is polled.
    """
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
    """Return the seconds of decode attention, in the mean over layers; 0 of no rows."""
    if rows == 0:
        return 0.0
    kernels = step_kernels(spec, Batch(rows=rows, chunk=1, context=context))
    found = [kernel for kernel in kernels if kernel.kind == "attention"]
    known = {kernel.cache_bytes: kernel for kernel in found}
    seconds = {size: kernel_s(kernel, on) for size, kernel in known.items()}
    return sum(seconds[kernel.cache_bytes] for kernel in found) / len(found)


def _most(kernel: StepKernel, rows: int) -> int:
    if kernel.product is not None:
        return max(1, int(kernel.product[2]) // TILE_COLUMNS)
    return rows if kernel.kind == "attention" else 1
