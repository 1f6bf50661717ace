"""Fig. 5: TPOT of both models by the ratio of their rates, and by the remote share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import SAID, TRACE, Found, Served, served

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
        yield from _of_rates(other)
        yield from _of_shares(other)

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


def _at_rate(base: Served, cold: float, way: str) -> Found:
    return served(replace(base, way=way, hot_rate=_HOT_OF_RATES, cold_rate=cold))


def _at_share(base: Served, share: float) -> Found:
    return served(replace(base, ratio=share, hot_rate=_HOT_OF_SHARES))


def _by_rate(base: Served) -> Iterator[dict[str, Any]]:
    for cold in COLD_RATES:
        for way in WAYS:
            yield {"cold_rps": cold, "way": way, **asdict(_at_rate(base, cold, way))}


def _by_share(base: Served) -> Iterator[dict[str, Any]]:
    for share in SHARES:
        yield {"share": share, **asdict(_at_share(base, share))}


def _of_rates(base: Served) -> Iterator[Result]:
    def cuts(column: str, *others: str) -> list[float]:
        """Return the cuts of TPOT at each ratio against the best of others."""
        return [
            100.0 * (1.0 - getattr(_at_rate(base, cold, "woven"), column)
                     / min(getattr(_at_rate(base, cold, way), column) for way in others))
            for cold in COLD_RATES
        ]  # fmt: skip

    def by_turns() -> list[float]:
        found = cuts("hot_s", "temporal")
        return [min(found), max(found)]

    yield _answer("fig5a.vs_muxserve", lambda: float(np.mean(cuts("hot_s", "temporal", "spatial"))),
                  "Against the better mode at each ratio, in the mean over three.")  # fmt: skip
    yield _answer("fig5a.vs_mux_temporal", by_turns, "Over three ratios.")
    yield _answer("fig5a.cold_vs_temporal", lambda: max(cuts("cold_s", "temporal")),
                  "Largest over three ratios.")  # fmt: skip


def _of_shares(base: Served) -> Iterator[Result]:
    def hot_ms(share: float) -> float:
        return 1e3 * _at_share(base, share).hot_s

    def cold_ms(share: float) -> float:
        return 1e3 * _at_share(base, share).cold_s

    def linear() -> dict[str, str]:
        some = [share for share in SHARES if share > 0.0]
        is_line = is_linear(some, [cold_ms(share) for share in some])
        return {"cold_tpot": "linear in offload ratio" if is_line else "not linear"}

    def slower() -> list[float] | float:
        worse = [100 * share for share in (0.05, 0.1) if hot_ms(share) > hot_ms(0.0)]
        return [min(worse), max(worse)] if worse else 0.0

    yield _answer("fig5b.linear_cold", linear,
                  "R^2 from 0.98 over shares above 0: polls come with the first one.")  # fmt: skip
    yield _answer("fig5b.low_ratio", slower,
                  "Shares of 5 and 10 % that slow the hot model; 0: neither.")  # fmt: skip
    yield _answer("fig5b.at_50.hot", lambda: 100 * (1 - hot_ms(0.5) / hot_ms(0.0)),
                  "Against none away.")  # fmt: skip
    yield _answer("fig5b.at_50.cold", lambda: cold_ms(0.5) - cold_ms(0.0), "Against none away.")
    yield _answer("fig5b.best_ratio", lambda: 100 * lowest(SHARES, hot_ms), "Of nine shares.")


def lowest(points: Sequence[float], value: Callable[[float], float], start: int = -2) -> float:
    """Return the point of the lowest value, from a start down to a local minimum."""
    at = start % len(points)
    while True:
        near = [k for k in (at - 1, at, at + 1) if 0 <= k < len(points)]
        best = min(near, key=lambda k: value(points[k]))
        if best == at:
            return points[at]
        at = best


def is_linear(x: list[float], y: list[float], least: float = 0.98) -> bool:
    """Return whether a line fits, with R^2 of at least the bound."""
    return float(np.corrcoef(x, y)[0, 1]) ** 2 >= least


def _answer(name: str, ours: Callable[[], Any], note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
