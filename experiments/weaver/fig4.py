"""Fig. 4 with the memory of section 5.1: hot and cold TPOT by the hot rate, and largest rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
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

Key = tuple[str, str, str]


@figure("weaver.fig4", title="WEAVER, Fig. 4: TPOT by the hot rate, memory",
        draw="weaver.draw_rates", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT by rate and largest rates of each panel; the full profile has alternatives."""
    base = Served(seed=context.seeds[0], traces=context.traces)
    largest = dict(_largest(base))
    rows = list(_rows(base, largest, context.progress))
    best = [
        {"node": node, "lengths": lengths, "way": way, "largest_rps": rate}
        for (node, lengths, way), rate in largest.items()
    ]
    memory = _memory(base)

    def answers(*, low_rate: float = LOW, **reading: Any) -> Iterator[Result]:
        return _results(replace(base, **reading), low_rate)

    able = SAID | {"low_rate"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={
            "curves": pa.Table.from_pylist(rows),
            "largest": pa.Table.from_pylist(best),
            "memory": pa.Table.from_pylist(
                [{"point": name, **asdict(found)} for name, found in memory.items()]
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


def _ways(node: str) -> tuple[str, ...]:
    return WAYS if node == A100 else WAYS[:3]  # L40S without MPS


def _largest(base: Served) -> Iterator[tuple[Key, float]]:
    for node, lengths in PANELS:
        for way in _ways(node):
            here = replace(base, node=node, lengths=lengths, way=way)
            yield (node, lengths, way), largest_rate(here)


def _rows(
    base: Served, largest: dict[Key, float], progress: Callable[[float, float], None] | None = None
) -> Iterator[dict[str, Any]]:
    for done, (node, lengths) in enumerate(PANELS):
        yield from _curves(replace(base, node=node, lengths=lengths), largest)
        if progress:
            progress(done + 1, len(PANELS))


def _curves(base: Served, largest: dict[Key, float]) -> Iterator[dict[str, Any]]:
    for way in _ways(base.node):
        for rate in RATES:
            if rate <= largest[base.node, base.lengths, way]:
                found = served(replace(base, way=way, hot_rate=rate))
                yield {"node": base.node, "lengths": base.lengths, "way": way, "hot_rps": rate,
                       **asdict(found)}  # fmt: skip


def _memory(base: Served) -> dict[str, Found]:
    return {
        "dedicated at 15": mean_of(replace(base, way="dedicated", hot_rate=15.0)),
        "woven at 15": mean_of(replace(base, hot_rate=15.0)),
        "woven at 22": mean_of(replace(base, hot_rate=22.0)),
    }


def _results(base: Served, low_rate: float) -> Iterator[Result]:
    largest = dict(_largest(base))
    rows, memory = list(_rows(base, largest)), _memory(base)
    at = {(r["node"], r["lengths"], r["way"], r["hot_rps"]): r for r in rows}

    def gain(node: str, lengths: str, *others: str) -> float:
        mine = math.floor(largest[node, lengths, "woven"])
        theirs = max(math.floor(largest[node, lengths, way]) for way in others)
        return 100.0 * (mine / theirs - 1.0)

    mux = ("temporal", "spatial")
    dedicated = {panel: gain(*panel, "dedicated") for panel in PANELS}
    on_a100 = max(gain(A100, lengths, *mux) for _, lengths in PANELS[:2])
    on_l40s = max(gain(L40S, lengths, "temporal") for _, lengths in PANELS[2:])
    most = "Largest of the four panels; whole rates."
    yield _answer("fig4.hot.vs_dedicated", max(dedicated.values()), most)
    yield _answer("intro.vs_multiplexing", max(dedicated.values()), "As section 5.1 pairs it.")
    yield _answer("fig4.hot.vs_mux_a100", on_a100, "Larger of the two traces.")
    yield _answer("fig4.hot.vs_mux_l40s", on_l40s, "Larger of the two traces.")
    yield _answer("abstract.throughput_max", on_l40s, "As section 5.1 pairs it.")
    cuts = [
        100.0 * (1.0 - r["hot_s"] / at[r["node"], r["lengths"], "dedicated", r["hot_rps"]]["hot_s"])
        for r in rows
        if r["way"] == "woven" and (r["node"], r["lengths"], "dedicated", r["hot_rps"]) in at
    ]
    yield _answer("fig4.hot.tpot_vs_dedicated", max(cuts), "Of rates that both carry.")
    yield _answer("fig4.hot.low_rate", _crossing(at), "A100, Azure: below it ours is slower.")
    cold = {
        (way, rate): at[A100, "azure", way, rate] for way in WAYS[:2] for rate in RATES
        if (A100, "azure", way, rate) in at
    }  # fmt: skip
    woven, apart = (
        served(replace(base, way=way, hot_rate=low_rate)).cold_s for way in ("woven", "dedicated")
    )
    yield _answer("fig4.cold.low_load", woven / apart, "A100, Azure, at the lowest hot rate.")
    p99 = [1e3 * r["cold_p99_s"] for (way, _), r in cold.items() if way == "woven"]
    gaps = [1e3 * (r["cold_p99_s"] - r["cold_s"]) for (way, _), r in cold.items() if way == "woven"]
    yield _answer("fig4.cold.p99", [min(p99), max(p99)], "Over the hot rates.")
    yield _answer("fig4.cold.p99_gap", [min(gaps), max(gaps)], "Over the hot rates.")
    alone_s = memory["dedicated at 15"].cold_s
    high = [1e3 * (memory[f"woven at {rate}"].cold_s - alone_s) for rate in (15, 22)]
    yield _answer("abstract.cold_overhead", high, "At 15 and 22 hot requests a second.")
    yield from _of_memory(base, largest, memory)


def _crossing(at: dict[tuple[str, str, str, float], dict[str, Any]]) -> float:
    """Return the lowest rate at which the woven pair is no slower, linear between two rates."""
    before: tuple[float, float] | None = None
    for rate in RATES:
        keys = [(A100, "azure", way, rate) for way in ("woven", "dedicated")]
        if any(key not in at for key in keys):
            break
        more_s = float(at[keys[0]]["hot_s"] - at[keys[1]]["hot_s"])
        if more_s <= 0.0:
            if before is None:
                return rate
            last, was_s = before
            return last + (rate - last) * was_s / (was_s - more_s)
        before = rate, more_s
    return RATES[-1]


def _of_memory(
    base: Served, largest: dict[Key, float], memory: dict[str, Found]
) -> Iterator[Result]:
    dedicated, low, high = (memory[f"{name}"] for name in memory)
    queue = "The last whole rate whose queue does not grow."
    yield _answer(
        "mem.dedicated.qps", float(math.floor(largest[A100, "azure", "dedicated"])), queue
    )
    yield _answer("mem.weaver.qps", float(math.floor(largest[A100, "azure", "woven"])), queue)
    yield _answer("mem.dedicated.batch", dedicated.batch, "At 15 requests a second.")
    yield _answer("mem.weaver.batch", high.batch, "At 22 requests a second.")
    yield _answer(
        "mem.batch_doubling", high.batch / dedicated.batch, "At 22 against 15 requests a second."
    )
    tokens = "Tokens in use over the room for keys and values; mean of four seeds."
    yield _answer("mem.dedicated.kv", 100 * dedicated.hot_kv, tokens)
    yield _answer("mem.weaver.hot_kv", 100 * low.hot_kv, tokens)
    yield _answer("mem.weaver.cold_kv", 100 * low.cold_kv, tokens)
    yield _answer(
        "sec23.cold_mem", 100 * gpu_share(dedicated, base),
        "Weights, the reserve of 1 GB, keys and values at one request a second.",
    )  # fmt: skip
    word = "all" if dedicated.kept > 0.9 else f"{dedicated.kept:.0%}"
    yield _answer(
        "sec23.hot_mem", {"utilization": word},
        "All: sequences may grow into over 90 % of the room for keys and values.",
    )  # fmt: skip


def _answer(name: str, ours: Any, note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
