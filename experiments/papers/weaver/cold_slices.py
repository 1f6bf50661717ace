"""Cold models on slices of a GH200 with weights in host memory (beyond the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa

from c2c.cost.kernel_graph import Batch, TimedGpu, step_kernels, timed_node
from c2c.hardware import cut_node, load_platform
from c2c.hardware import link_gbps as link_gbps_of
from c2c.models import ModelSpec, kv_bytes_per_token, load_spec, weight_bytes
from c2c.ranges import BelowOne, Count, FromZero, Share
from c2c.systems.weaver import Limits, Pair, best_cut, expected_stall, payload_bytes, profile_of
from experiments.figure import SYSTEMS, Computed, Context, figure

__all__ = ["ColdSlices", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdSlices:
    """Experiment: chip and layouts, models and their batches, ratios, loads, costs.

    Attributes:
      migs: layouts; the hot model has the largest slice.
      cold_model: name of the model read over the link.
      context: tokens of a sequence.
      cold_rows: sequences of a cold model.
      reserve_bytes: of each slice, for activations and a process.
      most_rows: most rows of the hot step.
      ratios: shares of away hot sequences.
      loads: shares of time in which a cold model decodes.
      weight: of a second of a cold step, for cuts.
      latency_s: of a transfer through host memory.
    """

    platform: str
    migs: tuple[str, ...]
    hot_model: str
    cold_model: str
    context: Count
    cold_rows: Count
    reserve_bytes: FromZero
    most_rows: Count
    ratios: tuple[BelowOne, ...]
    loads: tuple[Share, ...]
    weight: FromZero
    latency_s: FromZero


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chip:
    mig: str
    hot: TimedGpu
    cold: tuple[TimedGpu, ...]
    link_gbps: float
    spec: ModelSpec
    cold_spec: ModelSpec


@figure("weaver.cold_slices",
        title="WEAVER with cold slices of a GH200 as receivers",
        experiment=ColdSlices, draw=".drawing.draw_cold_slices", needs=SYSTEMS,
        beyond=True)  # fmt: skip
def compute(context: Context, experiment: ColdSlices) -> Computed:
    """Return hot tokens a second by ratio and receivers."""
    chips = [_chip(context, experiment, mig) for mig in experiment.migs]
    rows = [row for chip in chips for row in _rows(chip, experiment)]
    keys = dict.fromkeys((r["mig"], r["receivers"], r["load"], r["cut"]) for r in rows)
    names = ("mig", "receivers", "load", "cut")
    best = [
        max((r for r in rows if tuple(r[n] for n in names) == key), key=lambda r: r["tokens_per_s"])
        for key in keys
    ]
    return Computed(
        tables={"ratios": pa.Table.from_pylist(rows), "best": pa.Table.from_pylist(best)},
        finding=_finding(rows),
        caption=(
            "Lines: hot tokens/s by the share of sequences away, for each layout and number of "
            f"receivers, {context.link_text(chips[0].link_gbps)}; dotted: operators not cut."
        ),
        assumptions=(
            f"The hot model, {experiment.hot_model}, is resident on the largest slice of a GH200.",
            f"Sequences have {experiment.context} tokens, and there are as many as memory holds.",
            "Every other slice has a cold model and its part of the hot sequences that are away.",
            "Cold models read their weights over equal shares of the link.",
            "Load is the share of time in which a cold model decodes.",
            f"Tasks go through host memory in {1e6 * experiment.latency_s:g} us each way, an "
            "assumption.",
            "Times are a roofline's, without queueing.",
        ),
        results=(),
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    def gain(mig: str) -> str:
        busy = max(r["load"] for r in rows)
        here = [r for r in rows if r["mig"] == mig and r["load"] == busy and r["cut"] == "best"]
        alone = max((r for r in here if r["ratio"] == 0.0), key=lambda r: r["tokens_per_s"])
        best = max(here, key=lambda r: r["tokens_per_s"])
        times = best["tokens_per_s"] / alone["tokens_per_s"]
        return f"{times:.1f} times on {mig} with {100 * best['ratio']:.0f} % away"

    layouts = dict.fromkeys(r["mig"] for r in rows)
    return "Memory of busy cold slices raises a hot model's tokens/s: " + ", ".join(
        map(gain, layouts)
    )


def _chip(context: Context, experiment: ColdSlices, mig: str) -> _Chip:
    platform = load_platform(experiment.platform)
    link_gbps = link_gbps_of(platform.link, context.link_variant)
    node = cut_node(platform, mig, gbps=link_gbps / 2.0, latency_s=experiment.latency_s)
    timed = timed_node(node)
    return _Chip(
        mig=mig, hot=timed[0], cold=timed[1:], link_gbps=link_gbps,
        spec=load_spec(experiment.hot_model), cold_spec=load_spec(experiment.cold_model),
    )  # fmt: skip


def _rows(chip: _Chip, experiment: ColdSlices) -> Iterator[dict[str, Any]]:
    for receivers in dict.fromkeys((1, len(chip.cold))):
        for load in experiment.loads:
            for cut in ("none", "best"):
                for ratio in experiment.ratios:
                    yield _row(chip, experiment, receivers, load, cut, ratio)


def _row(
    chip: _Chip, experiment: ColdSlices, receivers: int, load: float, cut: str, ratio: float
) -> dict[str, Any]:
    batch = _batch(chip, experiment, receivers, ratio)
    pair = _pair(chip, experiment, receivers, ratio, batch)
    stall_s = _stall_s(pair, load, _lengths(pair, experiment.weight) if cut == "best" else pair.ops)
    step_s = pair.iteration_s + pair.layers * stall_s
    return {
        "mig": chip.mig, "receivers": receivers, "load": load, "cut": cut, "ratio": ratio,
        "rows": batch, "away": receivers * pair.away, "local_s": pair.local_s,
        "away_s": pair.away_s, "wire_s": pair.wire_s, "longest_op_s": max(pair.ops),
        "stall_s": stall_s, "step_s": step_s, "tokens_per_s": batch / step_s,
        "taken": pair.layers * pair.away_s / step_s,  # share of a receiver's time
    }  # fmt: skip


def _batch(chip: _Chip, experiment: ColdSlices, receivers: int, ratio: float) -> int:
    reserve, context = experiment.reserve_bytes, experiment.context
    row_bytes = float(context * kv_bytes_per_token(chip.spec))
    home = chip.hot.gpu.hbm_bytes - reserve - weight_bytes(chip.spec)
    cold_bytes = experiment.cold_rows * context * kv_bytes_per_token(chip.cold_spec)
    away = receivers * min(gpu.gpu.hbm_bytes - reserve - cold_bytes for gpu in chip.cold)
    most = home / row_bytes / (1.0 - ratio)
    if ratio:
        most = min(most, away / row_bytes / ratio)
    return max(1, int(min(most, experiment.most_rows)))


@cache
def _pair(chip: _Chip, experiment: ColdSlices, receivers: int, ratio: float, batch: int) -> Pair:
    share_gbps = chip.link_gbps / len(chip.cold)
    cold = Batch(rows=experiment.cold_rows, chunk=1, context=experiment.context)
    away = round(ratio * batch / receivers)
    hot = Batch(rows=batch, chunk=1, context=experiment.context)
    gpus = chip.hot, chip.cold[-1]
    whole = profile_of(chip.spec, chip.cold_spec, gpus, batches=(hot, cold), ratio=ratio)
    one = profile_of(chip.spec, chip.cold_spec, gpus, batches=(hot, cold), ratio=away / batch)
    out, back = payload_bytes(chip.spec)
    # The sender writes for all receivers, each reads its own; both share the link with weights.
    wire_s = 2 * experiment.latency_s + receivers * away * (out + back) / (share_gbps * 1e9)
    ops = tuple(
        max(seconds, kernel.weight_bytes / (share_gbps * 1e9))
        for seconds, kernel in zip(one.ops, step_kernels(chip.cold_spec, cold), strict=True)
    )
    return replace(whole, away=away, away_s=one.away_s, wire_s=wire_s if away else 0.0, ops=ops)


@cache
def _lengths(pair: Pair, weight: float) -> tuple[float, ...]:
    limits = pair.limits(Limits())
    return best_cut(
        pair.ops, pair.slack_s, layers=pair.layers, weight=weight, limits=limits
    ).lengths


def _stall_s(pair: Pair, load: float, lengths: tuple[float, ...]) -> float:
    # A task finds its receiver in an operator with the probability of the receiver's busy share.
    if not pair.away:
        return 0.0
    idle = max(0.0, -pair.slack_s)
    return load * expected_stall(lengths, pair.slack_s) + (1.0 - load) * idle
