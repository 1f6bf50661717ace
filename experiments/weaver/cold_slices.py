"""Cold models on slices of a GH200 with weights in host memory (beyond the paper).

A hot model has resident weights on one slice. Each other slice has a cold model that reads its
weights over NVLink-C2C, so that nearly all of its memory is free for the hot sequences' KV cache,
and its HBM is nearly idle. Tasks and results go through host memory, as slices have no link of
their own. The probability that a task finds its receiver in an operator is the receiver's busy
share of time. A receiver's operators last as long as reading their weights over the link, longer
than those of a resident model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost.kernel_graph import Batch, TimedGpu, step_kernels
from c2c.hardware import link_gbps as link_gbps_of
from c2c.hardware import load_platform, slices
from c2c.models import ModelSpec, kv_bytes_per_token, load_spec, weight_bytes
from c2c.systems.tessera.streamed import slice_gpu
from c2c.systems.weaver import Limits, Pair, best_cut, expected_stall, payload_bytes, profile_of
from experiments.figure import SYSTEMS, Computed, Context, figure

__all__ = ["compute"]

_PLATFORM: Final = "gh200"
_MIGS: Final = ("4x24gb", "3g_4x1g")
_MODEL, _COLD = "llama-3-8b", "llama-3-8b"
_CONTEXT: Final = 1024  # tokens of a sequence
_COLD_ROWS: Final = 4  # sequences of a cold model, with as many tokens
_RESERVE_BYTES: Final = 1e9  # reserve of each slice, for activations and a process
_MOST_ROWS: Final = 512  # most rows of the hot step
_RATIOS: Final = tuple(np.linspace(0.0, 0.9, 19).round(3))
_LOADS: Final = (0.0, 0.5, 1.0)
_WEIGHT: Final = 0.1  # weight of a second of a cold step, for cuts
_LATENCY_S: Final = 10e-6
"""Assumption: latency of a transfer through host memory, in either direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chip:
    """A partitioned chip: the hot model's slice, the cold models' slices, and the link."""

    mig: str
    hot: TimedGpu
    cold: tuple[TimedGpu, ...]
    link_gbps: float
    spec: ModelSpec
    cold_spec: ModelSpec


@figure("weaver.cold_slices",
        title="WEAVER beyond the paper: receivers are cold slices of a GH200",
        draw="weaver.draw_cold_slices", needs=SYSTEMS, beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return tokens a second of the hot model by ratio, receivers' load and number of receivers."""
    chips = [_chip(context, mig) for mig in _MIGS]
    rows = [row for chip in chips for row in _rows(chip)]
    keys = dict.fromkeys((r["mig"], r["receivers"], r["load"], r["cut"]) for r in rows)
    names = ("mig", "receivers", "load", "cut")
    best = [
        max((r for r in rows if tuple(r[n] for n in names) == key), key=lambda r: r["tokens_per_s"])
        for key in keys
    ]
    return Computed(
        tables={"ratios": pa.Table.from_pylist(rows), "best": pa.Table.from_pylist(best)},
        caption=(
            "Lines: hot tokens/s by the share of sequences away, for each layout and number of "
            f"receivers, {context.link_text(chips[0].link_gbps)}; dotted: operators not cut."
        ),
        assumptions=(
            f"The hot model, {_MODEL}, is resident on the largest slice of a GH200.",
            f"Sequences have {_CONTEXT} tokens, and there are as many as memory holds.",
            "Every other slice has a cold model and its part of the hot sequences that are away.",
            "Cold models read their weights over equal shares of the link.",
            "Load is the share of time in which a cold model decodes.",
            f"Tasks go through host memory in {1e6 * _LATENCY_S:g} us each way, an assumption.",
            "Times are a roofline's, without queueing.",
        ),
        results=(),
    )


def _chip(context: Context, mig: str) -> _Chip:
    platform = load_platform(_PLATFORM)
    parts = sorted(slices(platform, mig), key=lambda part: -part.hbm_bytes)
    timed = tuple(slice_gpu(platform, part) for part in parts)
    return _Chip(
        mig=mig, hot=timed[0], cold=timed[1:],
        link_gbps=link_gbps_of(platform.link, context.link_variant),
        spec=load_spec(_MODEL), cold_spec=load_spec(_COLD),
    )  # fmt: skip


def _rows(chip: _Chip) -> Iterator[dict[str, Any]]:
    for receivers in dict.fromkeys((1, len(chip.cold))):
        for load in _LOADS:
            for cut in ("none", "best"):
                for ratio in _RATIOS:
                    yield _row(chip, receivers, load, cut, float(ratio))


def _row(chip: _Chip, receivers: int, load: float, cut: str, ratio: float) -> dict[str, Any]:
    batch = _batch(chip, receivers, ratio)
    pair = _pair(chip, receivers, ratio, batch)
    stall_s = _stall_s(pair, load, cut)
    step_s = pair.iteration_s + pair.layers * stall_s
    return {
        "mig": chip.mig, "receivers": receivers, "load": load, "cut": cut, "ratio": ratio,
        "rows": batch, "away": receivers * pair.away, "local_s": pair.local_s,
        "away_s": pair.away_s, "wire_s": pair.wire_s, "longest_op_s": max(pair.ops),
        "stall_s": stall_s, "step_s": step_s, "tokens_per_s": batch / step_s,
        "taken": pair.layers * pair.away_s / step_s,  # share of a receiver's time
    }  # fmt: skip


def _batch(chip: _Chip, receivers: int, ratio: float) -> int:
    """Return the most sequences that fit into the slices' memory."""
    each = float(_CONTEXT * kv_bytes_per_token(chip.spec))
    home = chip.hot.gpu.hbm_bytes - _RESERVE_BYTES - weight_bytes(chip.spec)
    own = _COLD_ROWS * _CONTEXT * kv_bytes_per_token(chip.cold_spec)
    away = receivers * min(gpu.gpu.hbm_bytes - _RESERVE_BYTES - own for gpu in chip.cold)
    most = home / each / (1.0 - ratio)
    if ratio:
        most = min(most, away / each / ratio)
    return max(1, int(min(most, _MOST_ROWS)))


def _pair(chip: _Chip, receivers: int, ratio: float, batch: int) -> Pair:
    """Return the hot step and one receiver with its part of the remote sequences."""
    share_gbps = chip.link_gbps / len(chip.cold)
    cold = Batch(rows=_COLD_ROWS, chunk=1, context=_CONTEXT)
    away = round(ratio * batch / receivers)
    hot = Batch(rows=batch, chunk=1, context=_CONTEXT)
    gpus = chip.hot, chip.cold[-1]
    whole = profile_of(chip.spec, chip.cold_spec, gpus, batches=(hot, cold), ratio=ratio)
    one = profile_of(chip.spec, chip.cold_spec, gpus, batches=(hot, cold), ratio=away / batch)
    out, back = payload_bytes(chip.spec)
    # The sender writes for all receivers, each reads its own; both share the link with weights.
    wire_s = 2 * _LATENCY_S + receivers * away * (out + back) / (share_gbps * 1e9)
    ops = tuple(
        max(seconds, kernel.weight_bytes / (share_gbps * 1e9))
        for seconds, kernel in zip(one.ops, step_kernels(chip.cold_spec, cold), strict=True)
    )
    return replace(whole, away=away, away_s=one.away_s, wire_s=wire_s if away else 0.0, ops=ops)


def _stall_s(pair: Pair, load: float, cut: str) -> float:
    """Return a layer's mean stall; an idle receiver polls all the time."""
    if not pair.away:
        return 0.0
    lengths = pair.ops
    if cut == "best":
        limits = pair.limits(Limits())
        lengths = best_cut(
            pair.ops, pair.slack_s, layers=pair.layers, weight=_WEIGHT, limits=limits
        ).lengths
    idle = max(0.0, -pair.slack_s)
    return load * expected_stall(lengths, pair.slack_s) + (1.0 - load) * idle
