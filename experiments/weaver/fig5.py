"""Fig. 5: TPOT of both models by the ratio of their rates, and by the remote share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import SAID, TRACE, Served, served

__all__ = ["COLD_RATES", "SHARES", "compute", "is_linear"]

COLD_RATES: Final = (1.0, 2.0, 5.0)  # with 10 hot requests a second
SHARES: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6)
_HOT_OF_RATES: Final = 10.0
_HOT_OF_SHARES: Final = 15.0
WAYS: Final = ("woven", "temporal", "spatial", "dedicated")


@figure("weaver.fig5", title="WEAVER, Fig. 5: ratios of rates and of sequences",
        draw="weaver.draw_shares", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT by ratio of rates and by share."""
    base = Served(seed=context.seeds[0], traces=context.traces, lengths="burstgpt")
    rates, shares = list(_by_rate(base)), list(_by_share(base))

    def answers(**reading: Any) -> Iterator[Result]:
        other = replace(base, **reading)
        yield from _of_rates(list(_by_rate(other)))
        yield from _of_shares(list(_by_share(other)))

    results = under_readings(answers(), answers, SAID, everything=not context.quick)
    return Computed(
        tables={
            "rates": pa.Table.from_pylist(rates),
            "shares": pa.Table.from_pylist(shares),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            "Left: TPOT of the hot and cold model by the cold rate, 10 hot requests/s. Right: "
            "TPOT by the share of hot sequences away, 15 hot requests/s; diamonds: the paper's "
            "change."
        ),
        assumptions=(
            "The node has A100, and lengths are BurstGPT's, drawn by their means alone.",
            "The cold rate in the right panel is 1 request/s.",
        ),
    )


def _by_rate(base: Served) -> Iterator[dict[str, Any]]:
    for cold in COLD_RATES:
        for way in WAYS:
            found = served(replace(base, way=way, hot_rate=_HOT_OF_RATES, cold_rate=cold))
            yield {"cold_rps": cold, "way": way, **asdict(found)}


def _by_share(base: Served) -> Iterator[dict[str, Any]]:
    for share in SHARES:
        found = served(replace(base, ratio=share, hot_rate=_HOT_OF_SHARES))
        yield {"share": share, **asdict(found)}


def _of_rates(rows: list[dict[str, Any]]) -> Iterator[Result]:
    at = {(r["cold_rps"], r["way"]): r for r in rows}

    def cut(column: str, cold: float, *others: str) -> float:
        theirs = min(at[cold, way][column] for way in others)
        return float(100.0 * (1.0 - at[cold, "woven"][column] / theirs))

    best = [cut("hot_s", cold, "temporal", "spatial") for cold in COLD_RATES]
    by_turns = [cut("hot_s", cold, "temporal") for cold in COLD_RATES]
    yield _answer("fig5a.vs_muxserve", float(np.mean(best)),
                  "Against the better mode at each ratio, in the mean over three.")  # fmt: skip
    yield _answer("fig5a.vs_mux_temporal", [min(by_turns), max(by_turns)], "Over three ratios.")
    cold = max(cut("cold_s", cold, "temporal") for cold in COLD_RATES)
    yield _answer("fig5a.cold_vs_temporal", cold, "Largest over three ratios.")


def _of_shares(rows: list[dict[str, Any]]) -> Iterator[Result]:
    hot = {r["share"]: 1e3 * r["hot_s"] for r in rows}
    cold = {r["share"]: 1e3 * r["cold_s"] for r in rows}
    some = [share for share in SHARES if share > 0.0]
    yield _answer(
        "fig5b.linear_cold",
        {"cold_tpot": "linear in offload ratio" if is_linear(some, [cold[s] for s in some])
         else "not linear"},
        "R^2 from 0.98 over shares above 0: polls come with the first one.",
    )  # fmt: skip
    worse = [100 * share for share in (0.05, 0.1) if hot[share] > hot[0.0]]
    yield _answer("fig5b.low_ratio", [min(worse), max(worse)] if worse else 0.0,
                  "Shares of 5 and 10 % that slow the hot model; 0: neither.")  # fmt: skip
    yield _answer("fig5b.at_50.hot", 100 * (1 - hot[0.5] / hot[0.0]), "Against none away.")
    yield _answer("fig5b.at_50.cold", cold[0.5] - cold[0.0], "Against none away.")
    yield _answer("fig5b.best_ratio", 100 * min(SHARES, key=lambda s: hot[s]), "Of nine shares.")


def is_linear(x: list[float], y: list[float], least: float = 0.98) -> bool:
    """Return whether a line fits, with R^2 of at least the bound."""
    return float(np.corrcoef(x, y)[0, 1]) ** 2 >= least


def _answer(name: str, ours: Any, note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
