"""Pairs of the papers' mechanisms in the serving loop."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pyarrow as pa

from c2c.config import build, simulate
from c2c.ranges import AboveZero, Count
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures
from experiments.papers.c2cserve.settings import composed

__all__ = ["Pair", "Pairs", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair of mechanisms on a node under loads.

    Attributes:
      settings: overrides of all systems.
      systems: overrides by name; the pair first.
      rates_rps: requests a second of the node.
    """

    settings: tuple[str, ...]
    systems: dict[str, tuple[str, ...]]
    rates_rps: tuple[AboveZero, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Experiment: the pairs, requests and seeds of a run.

    Attributes:
      pairs: pairs by name.
      requests: requests of a run.
      seeds: number of seeds.
    """

    pairs: dict[str, Pair]
    requests: Count
    seeds: Count


@figure("pairs", title="Mechanisms in pairs, against each alone", experiment=Pairs,
        draw=".drawing.draw_pairs", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Pairs) -> Computed:
    """Serve pairs and their mechanisms under the same requests."""
    seeds = context.seeds[: experiment.seeds]
    runs = [
        (name, system, rate, seed)
        for name, pair in experiment.pairs.items()
        for system in pair.systems
        for rate in pair.rates_rps
        for seed in seeds
    ]
    rows = []
    for name, system, rate, seed in context.each(runs):
        pair = experiment.pairs[name]
        values = {"seed": seed, "workload.rate_rps": rate, "workload.requests": experiment.requests}
        settings = composed(
            ["system=composed", "workload=poisson", *pair.settings, *pair.systems[system],
             f"link={context.link_variant}"],
            values,
        )  # fmt: skip
        got = simulate(build(settings))
        tokens = got.summary["output_tokens_per_s"]
        rows.append({"pair": name, "system": system, "rate_rps": rate, "seed": seed,
                     "tokens_per_s": tokens, **measures(got)})  # fmt: skip
    return Computed(
        tables={"pairs": pa.Table.from_pylist(rows)},
        results=(),
        finding=_finding(experiment, rows),
        caption=(
            "Lines: requests within both targets by the node's rate, for a pair of mechanisms "
            f"(thick) and for what it is compared with; link variant '{context.link_variant}'."
        ),
        assumptions=(
            f"{experiment.requests} requests a run, Poisson arrivals; seeds {list(seeds)}.",
            "All systems of a pair serve the same requests on the same chips.",
            "Lengths, popularity of models and targets are the workload's and catalog's defaults.",
            "Shares, copies and layouts of a pair are set in its file and not searched for.",
        ),
        report=_report(experiment, rows),
    )


def _mean(rows: list[dict[str, Any]], column: str, **filters: Any) -> float:
    return fmean(r[column] for r in rows if all(r[k] == v for k, v in filters.items()))


def _finding(experiment: Pairs, rows: list[dict[str, Any]]) -> str:
    def gain(name: str) -> str:
        pair = experiment.pairs[name]
        first, *others = [
            fmean(_mean(rows, "both_percent", pair=name, system=s, rate_rps=r)
                  for r in pair.rates_rps)
            for s in pair.systems
        ]  # fmt: skip
        return f"{name} {first - max(others):+.0f}"

    return "Points of attainment over the better of the others: " + ", ".join(
        map(gain, experiment.pairs)
    )


def _report(experiment: Pairs, rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    body = [
        (name, f"{rate:g}", system,
         f"{_mean(rows, 'both_percent', pair=name, system=system, rate_rps=rate):.1f}",
         f"{_mean(rows, 'ttft_p95_s', pair=name, system=system, rate_rps=rate):.2f}",
         f"{1e3 * _mean(rows, 'tpot_p50_s', pair=name, system=system, rate_rps=rate):.1f}",
         f"{_mean(rows, 'tokens_per_s', pair=name, system=system, rate_rps=rate):.0f}")
        for name, pair in experiment.pairs.items()
        for rate in pair.rates_rps
        for system in pair.systems
    ]  # fmt: skip
    title = ("pair", "requests/s", "system", "within both targets %", "TTFT p95 s", "TPOT p50 ms",
             "tokens/s")  # fmt: skip
    return (title, *body)
