"""Fig. 5: TPOT by the ratio of rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.ranges import AboveZero, Share
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.weaver.two_models import SAID, TRACE, Found, Served, Way, served

__all__ = ["Sensitivity", "compute", "is_linear"]

_SLOW_SHARES: Final = (0.05, 0.1)  # that the paper says slow the hot model
_HALF: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fig. 5(a): a hot rate, cold ones, and compared ways."""

    hot_rps: AboveZero
    cold_rps: tuple[AboveZero, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Fig. 5(b): rates, and shares of away hot sequences."""

    hot_rps: AboveZero
    cold_rps: AboveZero
    ratios: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Experiment of Fig. 5: the pair, and its two panels."""

    pair: Served
    rates: Rates
    shares: Shares


@figure("weaver.fig5", title="WEAVER, Fig. 5: ratios of rates and of sequences",
        experiment=Sensitivity, draw=".drawing.draw_shares", needs=SIMULATOR,
        traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: Sensitivity) -> Computed:
    """Return TPOT by ratio of rates and by share."""
    base = replace(experiment.pair, seed=context.seeds[0], traces=context.traces)
    rates, shares = experiment.rates, experiment.shares
    by_rate = [
        {"hot_rps": rates.hot_rps, "cold_rps": cold, "way": way,
         **asdict(_at_rate(base, rates, cold, way))}
        for cold in rates.cold_rps
        for way in rates.ways
    ]  # fmt: skip
    by_share = [
        {"share": share, **asdict(_at_share(base, shares, share))} for share in shares.ratios
    ]

    def answers(**reading: Any) -> Iterator[Result]:
        other = replace(base, **reading)
        yield from _of_rates(other, rates)
        yield from _of_shares(other, shares)

    results = under_readings(answers(), answers, SAID, everything=not context.quick)
    best = min(by_share, key=lambda row: row["hot_s"])
    none, half = (_at_share(base, shares, share) for share in (0.0, _HALF))
    return Computed(
        tables={
            "rates": pa.Table.from_pylist(by_rate),
            "shares": pa.Table.from_pylist(by_share),
            "readings": readings_table(results),
        },
        results=results,
        finding=(
            "Half of the hot sequences away change hot TPOT by "
            f"{100 * (half.hot_s / none.hot_s - 1):+.0f} % and cold TPOT by "
            f"{1e3 * (half.cold_s - none.cold_s):+.1f} ms; hot TPOT is lowest with "
            f"{100 * best['share']:.0f} % away"
        ),
        caption=(
            f"Left: TPOT of the hot and cold model by the cold rate, {rates.hot_rps:g} hot "
            f"requests/s. Right: TPOT by the share of hot sequences away, {shares.hot_rps:g} hot "
            "requests/s; diamonds: the paper's change."
        ),
        assumptions=(
            f"Node: {base.node}. Lengths are BurstGPT's, drawn by their means alone."
            if base.lengths == "burstgpt"
            else f"Node: {base.node}. Lengths: {base.lengths}.",
            f"The cold rate in the right panel is {shares.cold_rps:g} request/s.",
        ),
    )


def _at_rate(base: Served, rates: Rates, cold: float, way: str) -> Found:
    return served(replace(base, way=way, hot_rps=rates.hot_rps, cold_rps=cold))


def _at_share(base: Served, shares: Shares, share: float) -> Found:
    return served(replace(base, ratio=share, hot_rps=shares.hot_rps, cold_rps=shares.cold_rps))


def _of_rates(base: Served, rates: Rates) -> Iterator[Result]:
    def cuts(column: str, *others: str) -> list[float]:
        def tpot_s(cold: float, way: str) -> float:
            return float(getattr(_at_rate(base, rates, cold, way), column))

        return [
            100.0 * (1.0 - tpot_s(cold, "woven") / min(tpot_s(cold, way) for way in others))
            for cold in rates.cold_rps
        ]

    def by_turns() -> list[float]:
        values = cuts("hot_s", "temporal")
        return [min(values), max(values)]

    yield _answer("fig5a.vs_muxserve", lambda: float(np.mean(cuts("hot_s", "temporal", "spatial"))),
                  "Against the better mode at each ratio, in the mean over three.")  # fmt: skip
    yield _answer("fig5a.vs_mux_temporal", by_turns, "Over three ratios.")
    yield _answer("fig5a.cold_vs_temporal", lambda: max(cuts("cold_s", "temporal")),
                  "Largest over three ratios.")  # fmt: skip


def _of_shares(base: Served, shares: Shares) -> Iterator[Result]:
    def hot_ms(share: float) -> float:
        return 1e3 * _at_share(base, shares, share).hot_s

    def cold_ms(share: float) -> float:
        return 1e3 * _at_share(base, shares, share).cold_s

    def linear() -> dict[str, str]:
        some = [share for share in shares.ratios if share > 0.0]
        is_line = is_linear(some, [cold_ms(share) for share in some])
        return {"cold_tpot": "linear in offload ratio" if is_line else "not linear"}

    def slower() -> dict[str, float]:
        return {f"hot_at_{100 * share:g}": hot_ms(share) for share in (0.0, *_SLOW_SHARES)}

    yield _answer("fig5b.linear_cold", linear,
                  "R^2 from 0.98 over shares above 0: polls come with the first one.")  # fmt: skip
    yield _answer("fig5b.low_ratio", slower,
                  "TPOT of the hot model, in ms.")  # fmt: skip
    yield _answer("fig5b.at_50.hot", lambda: 100 * (1 - hot_ms(_HALF) / hot_ms(0.0)),
                  "Against none away.")  # fmt: skip
    yield _answer("fig5b.at_50.cold", lambda: cold_ms(_HALF) - cold_ms(0.0), "Against none away.")
    yield _answer("fig5b.best_ratio", lambda: 100 * lowest(shares.ratios, hot_ms, base.ratio),
                  f"Of {len(shares.ratios)} shares.")  # fmt: skip


def lowest(points: Sequence[float], value: Callable[[float], float], start: float) -> float:
    """Return the lowest point, from the one nearest a start downwards."""
    ordered = sorted(points)
    index = min(range(len(ordered)), key=lambda k: abs(ordered[k] - start))
    while True:
        near = range(max(0, index - 1), min(len(ordered), index + 2))
        best = min(near, key=lambda k: value(ordered[k]))
        if best == index:
            return ordered[index]
        index = best


def is_linear(x: list[float], y: list[float], least: float = 0.98) -> bool:
    """Return whether a line fits, with R^2 of at least the bound."""
    return float(np.corrcoef(x, y)[0, 1]) ** 2 >= least


def _answer(name: str, ours: Callable[[], Any], note: str) -> Result:
    return answer(f"weaver.{name}", ours, note)
