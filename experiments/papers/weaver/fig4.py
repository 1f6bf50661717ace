"""Fig. 4 and section 5.1: TPOT by hot rate, largest rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from c2c.ranges import AboveZero, Count
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.weaver.two_models import (
    A100,
    L40S,
    MOST_TOKENS,
    SAID,
    TRACE,
    Found,
    Lengths,
    Served,
    Way,
    gpu_share,
    largest_rate,
    mean_of,
    served,
)

__all__ = ["HotRates", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Two GPUs, a source of lengths, and ways of sharing."""

    node: str
    lengths: Lengths
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Hot rates of section 5.1, with the seeds of a mean."""

    dedicated_rps: AboveZero
    low_rps: AboveZero
    high_rps: AboveZero
    seeds: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRates:
    """Experiment of Fig. 4: pair, panels, hot rates, and points of section 5.1."""

    pair: Served
    panels: tuple[Panel, ...]
    hot_rps: tuple[AboveZero, ...]
    memory: Memory


@figure("weaver.fig4", title="WEAVER, Fig. 4: TPOT by the hot rate, memory", experiment=HotRates,
        draw=".drawing.draw_rates", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: HotRates) -> Computed:
    """Return TPOT by rate and largest rates by panel, in full with alternatives."""
    base = replace(experiment.pair, seed=context.seeds[0], traces=context.traces)
    runs = _Runs(base, experiment)
    lines = [(panel, way) for panel in experiment.panels for way in panel.ways]
    curves = [
        {"node": panel.node, "lengths": panel.lengths, "way": way, "hot_rps": rate, **asdict(point)}
        for panel, way in context.each(lines)
        for rate, point in runs.line(panel, way).items()
    ]
    largest = [
        {
            "node": panel.node, "lengths": panel.lengths, "way": way,
            "largest_rps": runs.largest(panel, way),
        }
        for panel, way in lines
    ]  # fmt: skip
    memory = [
        {"point": f"{way} at {rate:g}", **asdict(runs.mean(way, rate))}
        for way, rate in (runs.apart, runs.low, runs.high)
    ]

    def answers(*, low_rate: float = experiment.hot_rps[0], **reading: Any) -> Iterator[Result]:
        return _results(_Runs(replace(base, **reading), experiment), low_rate)

    able = SAID | {"low_rate"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={
            "curves": pa.Table.from_pylist(curves),
            "largest": pa.Table.from_pylist(largest),
            "memory": pa.Table.from_pylist(memory),
            "readings": readings_table(results),
        },
        results=results,
        finding=_finding(results),
        caption=(
            "Lines: TPOT of the hot model (above) and of the cold one (below) by the hot rate; "
            "dotted: largest rate."
        ),
        assumptions=(
            f"Models: catalog {base.catalog}. The cold one has {base.cold_rps:g} request/s.",
            "Two GPUs decode, and prefill is never the limit.",
            f"Sequences have at most {MOST_TOKENS:,} tokens.",
            "BurstGPT's lengths are drawn by their means alone.",
            "MuxServe is built by its mechanism: both models use tensor parallelism.",
            "MuxServe's steps alternate (temporal), or each model has half of the SMs (spatial).",
            "The largest rate is the rate at which requests end while many wait.",
        ),
    )


def _finding(results: Iterable[Result]) -> str:
    ours = {result.claim_id.removeprefix("weaver.fig4."): result.ours for result in results}
    gains = [
        f"{ours[f'hot.{key}']:+.0f} % against {theirs}"
        for key, theirs in (
            ("vs_dedicated", "dedicated GPUs"), ("vs_mux_a100", "MuxServe (A100)"),
            ("vs_mux_l40s", "MuxServe (L40S)"),
        )
        if f"hot.{key}" in ours
    ]  # fmt: skip
    slower = 100 * (ours["cold.low_load"] - 1)
    return f"Largest hot rate of WEAVER: {', '.join(gains)}; cold TPOT {slower:+.0f} %"


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of all panels under one reading, on demand."""

    base: Served
    experiment: HotRates

    @property
    def apart(self) -> tuple[str, float]:
        return "dedicated", self.experiment.memory.dedicated_rps

    @property
    def low(self) -> tuple[str, float]:
        return "woven", self.experiment.memory.low_rps

    @property
    def high(self) -> tuple[str, float]:
        return "woven", self.experiment.memory.high_rps

    @property
    def first(self) -> Panel:
        return self.experiment.panels[0]

    def on(self, node: str) -> list[Panel]:
        return [panel for panel in self.experiment.panels if panel.node == node]

    def _of(self, panel: Panel, way: str) -> Served:
        return replace(self.base, node=panel.node, lengths=panel.lengths, way=way)

    def largest(self, panel: Panel, way: str) -> float:
        return largest_rate(self._of(panel, way))

    def at(self, panel: Panel, way: str, rate: float) -> Found | None:
        if rate > self.largest(panel, way):
            return None
        return served(replace(self._of(panel, way), hot_rps=rate))

    def line(self, panel: Panel, way: str) -> dict[float, Found]:
        points = {rate: self.at(panel, way, rate) for rate in self.experiment.hot_rps}
        return {rate: one for rate, one in points.items() if one is not None}

    def mean(self, way: str, rate: float) -> Found:
        return mean_of(
            replace(self._of(self.first, way), hot_rps=rate), self.experiment.memory.seeds
        )

    def gain(self, panel: Panel, *others: str) -> float:
        mine, *theirs = (math.floor(self.largest(panel, way)) for way in ("woven", *others))
        return 100.0 * (mine / max(theirs) - 1.0)

    def hot_cuts(self) -> Iterator[float]:
        for panel in self.experiment.panels:
            apart = self.line(panel, "dedicated")
            for rate, point in self.line(panel, "woven").items():
                if rate in apart:
                    yield 100.0 * (1.0 - point.hot_s / apart[rate].hot_s)


def _results(runs: _Runs, low_rate: float) -> Iterator[Result]:
    first = runs.first

    def vs_dedicated() -> float:
        return max(runs.gain(panel, "dedicated") for panel in runs.experiment.panels)

    def vs_mux(node: str, *ways: str) -> float:
        return max(runs.gain(panel, *ways) for panel in runs.on(node))

    def vs_mux_l40s() -> float:
        return vs_mux(L40S, "temporal")

    def low_load() -> float:
        woven, apart = (
            served(
                replace(
                    runs.base, node=first.node, lengths=first.lengths, way=way, hot_rps=low_rate
                )
            ).cold_s
            for way in ("woven", "dedicated")
        )
        return woven / apart

    def p99() -> list[float]:
        times_ms = [1e3 * one.cold_p99_s for one in runs.line(first, "woven").values()]
        return [min(times_ms), max(times_ms)]

    def p99_gap() -> list[float]:
        line = runs.line(first, "woven").values()
        times_ms = [1e3 * (one.cold_p99_s - one.cold_s) for one in line]
        return [min(times_ms), max(times_ms)]

    def overhead() -> list[float]:
        alone_s = runs.mean(*runs.apart).cold_s
        return [1e3 * (runs.mean(*point).cold_s - alone_s) for point in (runs.low, runs.high)]

    most = "Largest of the four panels; whole rates."
    yield _answer("fig4.hot.vs_dedicated", vs_dedicated, most)
    yield _answer("intro.vs_multiplexing", vs_dedicated, "As section 5.1 pairs it.")
    if runs.on(A100):
        yield _answer(
            "fig4.hot.vs_mux_a100", lambda: vs_mux(A100, "temporal", "spatial"),
            "Larger of the two traces.",
        )  # fmt: skip
    if runs.on(L40S):
        yield _answer("fig4.hot.vs_mux_l40s", vs_mux_l40s, "Larger of the two traces.")
        yield _answer("abstract.throughput_max", vs_mux_l40s, "As section 5.1 pairs it.")
    yield _answer(
        "fig4.hot.tpot_vs_dedicated", lambda: max(runs.hot_cuts()), "Of rates that both carry."
    )
    yield _answer(
        "fig4.hot.low_rate", lambda: _crossing(runs), "A100, Azure: below it ours is slower."
    )
    yield _answer("fig4.cold.low_load", low_load, "A100, Azure, at the lowest hot rate.")
    yield _answer("fig4.cold.p99", p99, "Over the hot rates.")
    yield _answer("fig4.cold.p99_gap", p99_gap, "Over the hot rates.")
    yield _answer("abstract.cold_overhead", overhead, "At 15 and 22 hot requests a second.")
    yield from _of_memory(runs)


def _crossing(runs: _Runs) -> float:
    before: tuple[float, float] | None = None
    rates = runs.experiment.hot_rps
    for rate in rates:
        woven, apart = (runs.at(runs.first, way, rate) for way in ("woven", "dedicated"))
        if woven is None or apart is None:
            break
        more_s = woven.hot_s - apart.hot_s
        if more_s <= 0.0:
            if before is None:
                return rate
            last, was_s = before
            return last + (rate - last) * was_s / (was_s - more_s)
        before = rate, more_s
    return rates[-1]


def _of_memory(runs: _Runs) -> Iterator[Result]:
    def whole(way: str) -> float:
        return float(math.floor(runs.largest(runs.first, way)))

    def hot_mem() -> dict[str, str]:
        share = runs.mean(*runs.apart).kept
        return {"utilization": "all" if share > 0.9 else f"{share:.0%}"}

    queue = "The last whole rate whose queue does not grow."
    yield _answer("mem.dedicated.qps", lambda: whole("dedicated"), queue)
    yield _answer("mem.weaver.qps", lambda: whole("woven"), queue)
    yield _answer(
        "mem.dedicated.batch", lambda: runs.mean(*runs.apart).batch, "At 15 requests a second."
    )
    yield _answer(
        "mem.weaver.batch", lambda: runs.mean(*runs.high).batch, "At 22 requests a second."
    )
    yield _answer(
        "mem.batch_doubling", lambda: runs.mean(*runs.high).batch / runs.mean(*runs.apart).batch,
        "At 22 against 15 requests a second.",
    )  # fmt: skip
    tokens = "Tokens in use over the room for keys and values; mean of four seeds."
    yield _answer("mem.dedicated.kv", lambda: 100 * runs.mean(*runs.apart).hot_kv, tokens)
    yield _answer("mem.weaver.hot_kv", lambda: 100 * runs.mean(*runs.low).hot_kv, tokens)
    yield _answer("mem.weaver.cold_kv", lambda: 100 * runs.mean(*runs.low).cold_kv, tokens)
    yield _answer(
        "sec23.cold_mem", lambda: 100 * gpu_share(runs.mean(*runs.apart), runs.base),
        "Weights, the reserve of 1 GB, keys and values at one request a second.",
    )  # fmt: skip
    yield _answer(
        "sec23.hot_mem", hot_mem,
        "All: sequences may grow into over 90 % of the room for keys and values.",
    )  # fmt: skip


def _answer(name: str, ours: Callable[[], Any], note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
