"""Latency a token by request rate on three pairs (Tessera, Fig. 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, OneOf
from experiments.claims import claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.arrivals import TRACE, poisson, source
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.pairs_online import ONLINE, capacity_rps, latency_s
from experiments.papers.tessera.workloads import PAIRS

__all__ = ["OnlineLatency", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineLatency:
    """Experiment of Fig. 7; `loads`: shares of the left GPU's capacity."""

    pairs: tuple[str, ...]
    ways: tuple[Annotated[str, OneOf(*ONLINE)], ...]
    loads: tuple[AboveZero, ...]
    requests: Count

    def __post_init__(self) -> None:
        if "tessera" not in self.ways:
            raise SettingError("experiment.ways", self.ways, "names with tessera")
        if not self.pairs or list(self.loads) != sorted(set(self.loads)) or not self.loads:
            raise SettingError("experiment.loads", self.loads, "ascending numbers, and a pair")


@figure("tessera.fig7", title="Tessera, Fig. 7: latency over the rate",
        experiment=OnlineLatency, draw=".drawing.draw_online", needs=SYSTEMS,
        traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: OnlineLatency) -> Computed:
    """Return the mean latency a token by pair, method and rate."""
    slo_s = float(claim("tessera.fig7.slo").value) / 1e3
    seeds = context.seeds[:1] if context.quick else context.seeds
    rows = []
    points = [(name, load) for name in experiment.pairs for load in experiment.loads]
    for name, load in context.each(points):
        rate = load * capacity_rps(name)
        drawn = [poisson(context, rate, experiment.requests, seed) for seed in seeds]
        rows += [
            {
                "pair": name,
                "way": way,
                "load": load,
                "rate_rps": rate,
                "per_token_s": float(np.mean([latency_s(name, way, a) for a in drawn])),
            }
            for way in experiment.ways
        ]
    rates = [
        {"pair": name, "way": way, "rate_rps": _rate_at(_of(rows, name, way), slo_s)}
        for name in experiment.pairs
        for way in experiment.ways
    ]
    return Computed(
        tables={"latency": pa.Table.from_pylist(rows), "rates": pa.Table.from_pylist(rates)},
        results=_results(rows, rates) if _is_whole(experiment) else (),
        finding=_finding(rows, experiment),
        caption=(
            "Lines: mean latency a token of GPT-oss 20B by request rate, on pairs of GPUs; "
            "dashed: the target of 50 ms."
        ),
        assumptions=(
            f"Requests arrive by a Poisson process with lengths of {source(context)}.",
            f"Each point has {experiment.requests} requests, and its mean is over generated "
            "tokens.",
            "PD and AF run in their better direction.",
            "Tessera's monitor has its defaults, with two batches under its throughput policy.",
            "Two GPUs apart are no column of the paper.",
        ),
    )


def _is_whole(experiment: OnlineLatency) -> bool:
    return set(experiment.pairs) >= set(PAIRS) and set(experiment.ways) == set(ONLINE)


def _finding(rows: Sequence[Mapping[str, Any]], experiment: OnlineLatency) -> str:
    def ratio(load: float) -> float:
        ratios = []
        for pair in experiment.pairs:
            time_of = {r["way"]: r["per_token_s"] for r in rows
                  if (r["pair"], r["load"]) == (pair, load)}  # fmt: skip
            ours = time_of.pop("tessera")
            ratios.append(ours / min(time_of.values(), default=ours))
        return float(np.mean(ratios))

    low, high = experiment.loads[0], experiment.loads[-1]
    return (
        f"Tessera's latency a token is {ratio(low):.2f} times the best other method's at a load of "
        f"{low:g} and {ratio(high):.2f} times at {high:g}"
    )


def _of(rows: Sequence[Mapping[str, Any]], pair: str, way: str) -> list[tuple[float, float]]:
    return [(r["rate_rps"], r["per_token_s"]) for r in rows if (r["pair"], r["way"]) == (pair, way)]


def _rate_at(points: Sequence[tuple[float, float]], slo_s: float) -> float | None:
    for (a, low), (b, high) in pairwise(points):
        if low <= slo_s < high:
            return a + (b - a) * (slo_s - low) / (high - low)
    return None if points[-1][1] <= slo_s else points[0][0]


def _results(
    rows: Sequence[Mapping[str, Any]], rates: Sequence[Mapping[str, Any]]
) -> tuple[Any, ...]:
    least, most = (reducer(r["load"] for r in rows) for reducer in (min, max))
    low = {(r["pair"], r["way"]): r["per_token_s"] for r in rows if r["load"] == least}
    rate_of = {(r["pair"], r["way"]): r["rate_rps"] for r in rates}
    ratio = {
        way: float(np.mean([low[p, way] / low[p, "tessera"] for p in PAIRS]))
        for way in ("pd", "af", "replicas")
    }
    top = {p: max(r["rate_rps"] for r in rows if r["pair"] == p) for p in PAIRS}

    def rate(pair: str, *ways: str) -> float:
        return max(float(rate_of[pair, way] or top[pair]) for way in ways)

    # pairs where no method reaches the target are left out; a method that does not reach it
    # counts with the highest tried rate
    pairs = [p for p in PAIRS if rate_of[p, "tessera"] or (rate_of[p, "pd"] and rate_of[p, "af"])]
    best = max((rate(p, "tessera") / rate(p, "pd", "af") for p in pairs), default=1.0)
    over = (
        f"Of {', '.join(pairs) or 'no pair'}, where the target is reached up to {most:g} of "
        "the left GPU's rate; a way that never does counts with that. Over two GPUs apart: "
        f"{max((rate(p, 'tessera') / rate(p, 'replicas') for p in pairs), default=1.0):.2f}."
    )
    note = f"Mean over pairs; two GPUs apart: {ratio['replicas']:.2f}."
    return (
        answer("fig7.low_vs_pd", ratio["pd"], note),
        answer("fig7.low_vs_af", ratio["af"], note),
        answer("fig7.rate_at_slo", best, over),
        answer("intro.slo_requests", best, over),
    )
