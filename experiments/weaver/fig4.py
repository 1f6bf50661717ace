"""Fig. 4 with the memory of section 5.1: hot and cold TPOT by the hot rate, and largest rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import (
    A100,
    L40S,
    MOST_TOKENS,
    SAID,
    TRACE,
    Found,
    Served,
    gpu_share,
    largest_rate,
    mean_of,
    served,
)

__all__ = ["PANELS", "RATES", "compute"]

PANELS: Final = ((A100, "azure"), (A100, "burstgpt"), (L40S, "azure"), (L40S, "burstgpt"))
RATES: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 13.0, 15.0, 18.0, 22.0)
WAYS: Final = ("dedicated", "woven", "temporal", "spatial")
LOW: Final = 1.0  # the reading `low_rate`

Panel = tuple[str, str]


@figure("weaver.fig4", title="WEAVER, Fig. 4: TPOT by the hot rate, memory",
        draw="weaver.draw_rates", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT by rate and largest rates of each panel; the full profile has alternatives."""
    base = Served(seed=context.seeds[0], traces=context.traces)
    runs = _Runs(base)
    lines = [(panel, way) for panel in PANELS for way in _ways(panel)]
    curves = [
        {"node": panel[0], "lengths": panel[1], "way": way, "hot_rps": rate, **asdict(found)}
        for panel, way in context.each(lines)
        for rate, found in runs.line(panel, way).items()
    ]
    largest = [
        {"node": panel[0], "lengths": panel[1], "way": way, "largest_rps": runs.largest(panel, way)}
        for panel, way in lines
    ]

    def answers(*, low_rate: float = LOW, **reading: Any) -> Iterator[Result]:
        return _results(_Runs(replace(base, **reading)), low_rate)

    able = SAID | {"low_rate"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={
            "curves": pa.Table.from_pylist(curves),
            "largest": pa.Table.from_pylist(largest),
            "memory": pa.Table.from_pylist(
                [
                    {"point": f"{way} at {rate:g}", **asdict(runs.mean(way, rate))}
                    for way, rate in (_APART, _LOW, _HIGH)
                ]
            ),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            "Lines: TPOT of the hot model (above) and of the cold one (below) by the hot rate; "
            "dotted: largest rate."
        ),
        assumptions=(
            "Both models are Llama 3 8B, and the cold one has 1 request/s.",
            "Two GPUs decode, and prefill is never the limit.",
            f"Sequences have at most {MOST_TOKENS:,} tokens.",
            "BurstGPT's lengths are drawn by their means alone.",
            "MuxServe is built by its mechanism: both models use tensor parallelism.",
            "MuxServe's steps alternate (temporal), or each model has half of the SMs (spatial).",
            "The largest rate is the rate at which requests end while many wait.",
        ),
    )


# Points of section 5.1 and of the abstract, at which means over seeds are taken.
_APART: Final = ("dedicated", 15.0)
_LOW: Final = ("woven", 15.0)
_HIGH: Final = ("woven", 22.0)


def _ways(panel: Panel) -> tuple[str, ...]:
    return WAYS if panel[0] == A100 else WAYS[:3]  # L40S without MPS


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of all panels under one reading, each made when it is first asked for."""

    base: Served

    def _of(self, panel: Panel, way: str) -> Served:
        return replace(self.base, node=panel[0], lengths=panel[1], way=way)

    def largest(self, panel: Panel, way: str) -> float:
        """Return the largest rate of a line."""
        return largest_rate(self._of(panel, way))

    def at(self, panel: Panel, way: str, rate: float) -> Found | None:
        """Return the results at a rate; None beyond the largest."""
        if rate > self.largest(panel, way):
            return None
        return served(replace(self._of(panel, way), hot_rate=rate))

    def line(self, panel: Panel, way: str) -> dict[float, Found]:
        """Return the results of a line by rate."""
        found = {rate: self.at(panel, way, rate) for rate in RATES}
        return {rate: one for rate, one in found.items() if one is not None}

    def mean(self, way: str, rate: float) -> Found:
        """Return the mean over seeds at a rate on A100 with Azure's lengths."""
        return mean_of(replace(self.base, way=way, hot_rate=rate))

    def gain(self, panel: Panel, *others: str) -> float:
        """Return the gain of the largest whole rate over those of other ways, percent."""
        mine, *theirs = (math.floor(self.largest(panel, way)) for way in ("woven", *others))
        return 100.0 * (mine / max(theirs) - 1.0)

    def hot_cuts(self) -> Iterator[float]:
        """Yield the cut of hot TPOT against the dedicated pair at rates that both carry."""
        for panel in PANELS:
            apart = self.line(panel, "dedicated")
            for rate, found in self.line(panel, "woven").items():
                if rate in apart:
                    yield 100.0 * (1.0 - found.hot_s / apart[rate].hot_s)


def _results(runs: _Runs, low_rate: float) -> Iterator[Result]:
    first = PANELS[0]

    def vs_dedicated() -> float:
        return max(runs.gain(panel, "dedicated") for panel in PANELS)

    def vs_mux_l40s() -> float:
        return max(runs.gain(panel, "temporal") for panel in PANELS[2:])

    def low_load() -> float:
        woven, apart = (
            served(replace(runs.base, way=way, hot_rate=low_rate)).cold_s
            for way in ("woven", "dedicated")
        )
        return woven / apart

    def p99() -> list[float]:
        found = [1e3 * one.cold_p99_s for one in runs.line(first, "woven").values()]
        return [min(found), max(found)]

    def p99_gap() -> list[float]:
        line = runs.line(first, "woven").values()
        found = [1e3 * (one.cold_p99_s - one.cold_s) for one in line]
        return [min(found), max(found)]

    def overhead() -> list[float]:
        alone_s = runs.mean(*_APART).cold_s
        return [1e3 * (runs.mean(*point).cold_s - alone_s) for point in (_LOW, _HIGH)]

    most = "Largest of the four panels; whole rates."
    yield _answer("fig4.hot.vs_dedicated", vs_dedicated, most)
    yield _answer("intro.vs_multiplexing", vs_dedicated, "As section 5.1 pairs it.")
    yield _answer(
        "fig4.hot.vs_mux_a100",
        lambda: max(runs.gain(panel, "temporal", "spatial") for panel in PANELS[:2]),
        "Larger of the two traces.",
    )
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
    """Return the lowest rate at which the woven pair is no slower, linear between two rates."""
    before: tuple[float, float] | None = None
    for rate in RATES:
        woven, apart = (runs.at(PANELS[0], way, rate) for way in ("woven", "dedicated"))
        if woven is None or apart is None:
            break
        more_s = woven.hot_s - apart.hot_s
        if more_s <= 0.0:
            if before is None:
                return rate
            last, was_s = before
            return last + (rate - last) * was_s / (was_s - more_s)
        before = rate, more_s
    return RATES[-1]


def _of_memory(runs: _Runs) -> Iterator[Result]:
    def whole(way: str) -> float:
        return float(math.floor(runs.largest(PANELS[0], way)))

    def hot_mem() -> dict[str, str]:
        kept = runs.mean(*_APART).kept
        return {"utilization": "all" if kept > 0.9 else f"{kept:.0%}"}

    queue = "The last whole rate whose queue does not grow."
    yield _answer("mem.dedicated.qps", lambda: whole("dedicated"), queue)
    yield _answer("mem.weaver.qps", lambda: whole("woven"), queue)
    yield _answer(
        "mem.dedicated.batch", lambda: runs.mean(*_APART).batch, "At 15 requests a second."
    )
    yield _answer("mem.weaver.batch", lambda: runs.mean(*_HIGH).batch, "At 22 requests a second.")
    yield _answer(
        "mem.batch_doubling", lambda: runs.mean(*_HIGH).batch / runs.mean(*_APART).batch,
        "At 22 against 15 requests a second.",
    )  # fmt: skip
    tokens = "Tokens in use over the room for keys and values; mean of four seeds."
    yield _answer("mem.dedicated.kv", lambda: 100 * runs.mean(*_APART).hot_kv, tokens)
    yield _answer("mem.weaver.hot_kv", lambda: 100 * runs.mean(*_LOW).hot_kv, tokens)
    yield _answer("mem.weaver.cold_kv", lambda: 100 * runs.mean(*_LOW).cold_kv, tokens)
    yield _answer(
        "sec23.cold_mem", lambda: 100 * gpu_share(runs.mean(*_APART), runs.base),
        "Weights, the reserve of 1 GB, keys and values at one request a second.",
    )  # fmt: skip
    yield _answer(
        "sec23.hot_mem", hot_mem,
        "All: sequences may grow into over 90 % of the room for keys and values.",
    )  # fmt: skip


def _answer(name: str, ours: Callable[[], Any], note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
