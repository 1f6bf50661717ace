"""Cuts of a cold model's operators for a hot model's attention, with stalls before and after.

    c2c plan weaver hot=llama-3-8b cold=llama-3-8b node=l40s_pcie ratio=0.45
    c2c plan weaver node=a100_40_nvlink ratio=0.3 batch=64 weight=0.1
    c2c plan weaver nodes=[l40s_pcie] ratios=[0.2,0.45] batches=[16,64,231]

Tables: K, N and the operators' times T by the cost model; the plans, with the cost to the cold
model. Last, the splits of Algorithm 1, with its threshold per operator, layer and iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any, Final, get_args

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.cost.kernel_graph import Batch, timed_gpu
from c2c.errors import SettingError
from c2c.hardware import load_node
from c2c.models import ModelSpec, load_spec
from c2c.ranges import Count, FromZero, In, Share, check_fields
from c2c.systems.weaver import (
    Cut,
    Limits,
    Pair,
    Threshold,
    ThresholdOf,
    best_cut,
    guarded_cut,
    printed_cut,
    printed_stall,
    profile_of,
    woven,
)
from experiments.plain_settings import Ran, run_settings

__all__ = ["PlanSettings", "cuts", "main", "pair_of", "starts"]

READINGS: Final = get_args(ThresholdOf)


@dataclass
class PlanSettings:
    """Settings, as key=value on the command line.

    Attributes:
      hot: sender's model: name of a shipped model, or a config.json's path.
      cold: receiver's model, as `hot`.
      node: node of `conf/node`; the first GPU sends, the second receives.
      ratio: remote share of the hot sequences.
      batch: rows of the hot decode step.
      context: tokens of KV cache of each row.
      cold_batch: rows of the cold decode step.
      threshold: share of the sender's step above which Algorithm 1 splits.
      weight: of a second of the cold step, for our plan.
      nodes: nodes of the table of thresholds; []: no table.
      ratios: ratios of that table.
      batches: hot rows of that table.
    """

    hot: str = "llama-3-8b"
    cold: str = "llama-3-8b"
    node: str = "a100_40_nvlink"
    ratio: Share = 0.45
    batch: Count = 118
    context: Count = 1093
    cold_batch: Count = 16
    threshold: Annotated[float, In("[0, inf)", "a share")] = 0.05
    weight: FromZero = 0.1
    nodes: list[str] = field(default_factory=lambda: ["a100_40_nvlink", "l40s_pcie"])
    ratios: list[Share] = field(default_factory=lambda: [0.15, 0.3, 0.45, 0.6])
    batches: list[Count] = field(default_factory=lambda: [8, 16, 32, 64, 90, 118, 161, 231])


def pair_of(settings: PlanSettings) -> Pair:
    """Return the pair's times."""
    check_fields(settings)
    node = load_node(settings.node)
    there, back = node.link(0, 1), node.link(1, 0)
    if there is None or back is None:
        raise SettingError("node", settings.node, "a node with a link between its first two GPUs")
    return profile_of(
        _spec("hot", settings.hot), _spec("cold", settings.cold),
        [timed_gpu(gpu) for gpu in node.platforms[:2]],
        batches=(
            Batch(rows=settings.batch, chunk=1, context=settings.context),
            Batch(rows=settings.cold_batch, chunk=1, context=settings.context),
        ),
        ratio=settings.ratio, wire_s=(there.latency_s, back.latency_s),
        gbps=min(there.gbps, back.gbps),
    )  # fmt: skip


def _spec(name: str, model: str) -> ModelSpec:
    try:
        return load_spec(model)
    except SettingError as error:
        if error.field != "model":
            raise
        raise SettingError(name, model, error.allowed) from None


def threshold_of(settings: PlanSettings, pair: Pair, reading: ThresholdOf) -> Threshold:
    """Return Algorithm 1's threshold under a reading of the paper."""
    return Threshold(seconds=settings.threshold * pair.iteration_s, of=reading, layers=pair.layers)


def cuts(settings: PlanSettings, pair: Pair) -> dict[str, Cut | None]:
    """Return plans by name; None: the printed Algorithm 1 does not end."""
    limits = pair.limits(Limits())
    whole = Cut(pieces=tuple((t,) for t in pair.ops))
    result: dict[str, Cut | None] = {"whole": whole}
    if not pair.away:
        return result
    for reading in READINGS:
        threshold = threshold_of(settings, pair, reading)
        try:
            result[f"printed, {reading}"] = printed_cut(pair.ops, pair.slack_s, threshold)
        except SettingError:
            result[f"printed, {reading}"] = None
        result[f"guarded, {reading}"] = guarded_cut(pair.ops, pair.slack_s, threshold, limits)
    result["ours"] = best_cut(
        pair.ops, pair.slack_s, layers=pair.layers, weight=settings.weight, limits=limits
    )
    return result


def starts(settings: PlanSettings) -> Iterator[dict[str, Any]]:
    """Yield stalls, thresholds and splits of guarded Algorithm 1 by node, ratio, batch."""
    for node in settings.nodes:
        for ratio in settings.ratios:
            for batch in settings.batches:
                here = replace(settings, node=node, ratio=ratio, batch=batch)
                pair = pair_of(here)
                if not pair.away:
                    continue
                limits = pair.limits(Limits())
                splits: Mapping[str, int] = {
                    reading: guarded_cut(
                        pair.ops, pair.slack_s, threshold_of(here, pair, reading), limits
                    ).splits
                    for reading in READINGS
                }
                whole = woven(pair, Cut(pieces=tuple((t,) for t in pair.ops)), limits.poll_s)
                yield {
                    "node": node, "ratio": ratio, "batch": batch, "slack_s": pair.slack_s,
                    "stall_s": whole.stall_s, "step_stall_s": pair.layers * whole.stall_s,
                    "threshold_s": here.threshold * pair.iteration_s, **splits,
                }  # fmt: skip


def _check(settings: PlanSettings) -> None:
    check_fields(settings)
    for name in settings.nodes:
        load_node(name)


def _print(settings: PlanSettings) -> Ran:
    out = Console(highlight=False, width=130)
    _check(settings)
    pair = pair_of(settings)
    out.print(
        f"{settings.hot} sends from GPU 0 of {settings.node}, {settings.cold} receives on GPU 1: "
        f"{pair.away} of {settings.batch} sequences remote, {settings.context} tokens each\n"
        f"K {_us(pair.local_s)}, N {_us(pair.away_s)}, transfers {_us(pair.wire_s)}, "
        f"slack {_us(pair.slack_s)}; the sender's step without stalls "
        f"{1e3 * pair.iteration_s:.2f} ms, threshold {settings.threshold:g} of it"
    )
    out.print(_operators(pair))
    table = _plans(settings, pair)
    out.print(table)
    if settings.nodes:
        out.print(_starts(list(starts(settings))))
    return Ran(table)


def _operators(pair: Pair) -> Table:
    table = Table(title="operators of the receiver", title_justify="left", box=SIMPLE_HEAD)
    for head in ("operator", "count", "T us", "share of the step", "most pieces"):
        table.add_column(head, justify="left" if head == "operator" else "right")
    rows = sorted(zip(pair.kinds, pair.ops, pair.most, strict=True), key=lambda op: (-op[1], op[0]))
    for (kind, seconds, most), group in groupby(rows):
        count = len(list(group))
        share = count * seconds / sum(pair.ops)
        table.add_row(kind, f"{count}", f"{1e6 * seconds:.1f}", f"{share:.1%}", f"{most}")
    return table


def _plans(settings: PlanSettings, pair: Pair) -> Table:
    table = Table(title="plans", title_justify="left", box=SIMPLE_HEAD)
    heads = ("plan", "splits", "longest us", "printed stall us", "stall us", "hot step ms",
             "cold step ms", "cost to cold")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "plan" else "right")
    cut_of = cuts(settings, pair)
    poll_s, alone_s = Limits().poll_s, sum(pair.ops)
    for name, cut in cut_of.items():
        if cut is None:
            table.add_row(name, "does not end", *["" for _ in heads[2:]])
            continue
        w = woven(pair, cut, poll_s)
        printed = printed_stall(cut.lengths, pair.slack_s) if pair.away else 0.0
        table.add_row(
            name, f"{cut.splits}", f"{1e6 * w.longest_s:.1f}", f"{1e6 * printed:.2f}",
            f"{1e6 * w.stall_s:.2f}", f"{1e3 * w.hot_s:.3f}", f"{1e3 * w.cold_s:.3f}",
            f"{w.cold_s / alone_s - 1:+.2%}",
        )  # fmt: skip
    return table


def _starts(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="splits of the guarded Algorithm 1, by reading of its threshold",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    heads = ("node", "ratio", "batch", "slack us", "stall us a layer", "ms a step", "threshold ms")
    for head in (*heads, *READINGS):
        table.add_column(head, justify="left" if head == "node" else "right")
    for r in rows:
        table.add_row(
            r["node"], f"{r['ratio']:g}", f"{r['batch']}", f"{1e6 * r['slack_s']:.1f}",
            f"{1e6 * r['stall_s']:.1f}", f"{1e3 * r['step_stall_s']:.2f}",
            f"{1e3 * r['threshold_s']:.2f}", *(f"{r[reading]}" for reading in READINGS),
        )  # fmt: skip
    return table


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us"


def main(arguments: Sequence[str]) -> int:
    """Print the plans; return the exit status."""
    return run_settings(PlanSettings, arguments, _print)
