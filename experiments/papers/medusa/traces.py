"""p99 TTFT of a service that starts without instances (MEDUSA, Figs. 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.ranges import AboveZero, Count
from c2c.systems.medusa import STARTS, load_measured_start, loading_s, stages_of
from experiments.claims import Result, answer, claim
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.medusa.fleet import Fleet, tail_of

__all__ = ["LENGTHS", "Tails", "compute"]

LENGTHS: Final = "sharegpt_lengths.parquet"
Key = tuple[str, float, int, str]  # model, rate, threshold, start


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Rates of Fig. 11 at the largest threshold, and seeds."""

    rates_rps: tuple[AboveZero, ...]
    seeds: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """Experiment of Figs. 10 and 11; see `conf/experiment/medusa/fig10.yaml`."""

    models: tuple[str, ...]
    gpus: Count
    seconds: AboveZero
    rates_rps: tuple[AboveZero, ...]
    thresholds: tuple[Count, ...]
    seeds: Count
    swept: Swept

    def __post_init__(self) -> None:
        for name in ("models", "rates_rps", "thresholds"):
            if not getattr(self, name):
                raise SettingError(f"experiment.{name}", (), "at least one")


@figure("medusa.fig10", title="MEDUSA, Figs. 10, 11: tails of TTFT", experiment=Tails,
        draw=".drawing.draw_traces", needs=SIMULATOR, traces=(LENGTHS,))  # fmt: skip
def compute(context: Context, experiment: Tails) -> Computed:
    """Return p99 TTFT by model, rate, threshold, start, with bands."""
    lengths, source = _lengths(context)
    models, rates, thresholds = experiment.models, experiment.rates_rps, experiment.thresholds
    seeds, few = (
        range(context.seeds[0], context.seeds[0] + count)
        for count in (experiment.seeds, experiment.swept.seeds)
    )
    keys = [
        (m, r, threshold, s)
        for m in models
        for r in rates
        for threshold in thresholds
        for s in STARTS
    ]
    swept_keys = [
        (m, r, thresholds[-1], s)
        for m in models for r in experiment.swept.rates_rps for s in STARTS
    ]  # fmt: skip
    jobs = len(keys) * len(seeds) + len(swept_keys) * len(few)
    done = 0

    def run(key: Key, which: Sequence[int]) -> dict[str, Any]:
        nonlocal done
        row = _row(key, which, lengths, experiment)
        done += len(which)
        if context.progress:
            context.progress(done, jobs)
        return row

    rows = [run(key, seeds) for key in keys]
    swept = [run(key, few) for key in swept_keys]
    caption = (
        "Left: p99 TTFT of services that start from no instance; bars: median, whiskers: 90% "
        f"interval over {len(seeds)} seeds. Others: p99 TTFT by served rate."
    )
    assumptions = (
        f"Requests arrive by a Poisson process for {experiment.seconds:g} s with {source}.",
        f"The services run on {experiment.gpus} A100 of 40 GB.",
        "Another instance starts when the least busy one has a threshold of outstanding requests.",
        f"The paper names no rule, so that claims use the median over thresholds {thresholds}.",
        f"Bars are at threshold {thresholds[0]}, lines at {thresholds[-1]}.",
        "Every start reads the drives, and the request that causes a start waits for it.",
    )
    return Computed(
        tables={"tails": pa.Table.from_pylist(rows), "sweep": pa.Table.from_pylist(swept)},
        results=(
            *_fig10(rows, experiment),
            *_fig11([row for row in swept if row["model"] == models[0]]),
        ),
        finding=(
            f"p99 TTFT from no instance: MEDUSA is {_reduction(rows, experiment, rates[0])[0]:.0f} "
            f"% below vLLM at {rates[0]:g} requests/s and "
            f"{_reduction(rows, experiment, rates[-1])[0]:.0f} % at {rates[-1]:g} ({models[0]})"
        ),
        caption=caption,
        assumptions=assumptions,
    )


def _lengths(context: Context) -> tuple[str, str]:
    if context.traces is not None and (context.traces / LENGTHS).is_file():
        return str(context.traces / LENGTHS), "ShareGPT lengths"
    return "synthetic", "synthetic lengths (the public ones are not available)"


def _row(key: Key, seeds: Sequence[int], lengths: str, experiment: Tails) -> dict[str, Any]:
    model, rate, threshold, start = key
    fleet = Fleet(model, start, threshold, lengths, experiment.gpus)
    requests = max(round(experiment.seconds * rate), 20)
    tails = [tail_of(fleet, rate, requests, seed) for seed in seeds]
    p99 = np.array([t.p99_ttft_s for t in tails])
    low, mid, high = np.percentile(p99, [5, 50, 95])
    return {
        "model": model,
        "rate_rps": rate,
        "at": threshold,
        "start": start,
        "p99_low_s": float(low),
        "p99_s": float(mid),
        "p99_high_s": float(high),
        "served_rps": float(np.mean([t.served_rps for t in tails])),
        "starts": float(np.mean([t.starts for t in tails])),
        "seeds": len(tails),
    }


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    return {(r["model"], r["rate_rps"], r["at"], r["start"]): r["p99_s"] for r in rows}


def _reduction(
    rows: Sequence[Mapping[str, Any]], experiment: Tails, rate: float
) -> tuple[float, str]:
    p99, model = _by_key(rows), experiment.models[0]
    cut_of = {
        threshold: 100
        * (1 - p99[model, rate, threshold, "medusa"] / p99[model, rate, threshold, "vllm"])
        for threshold in experiment.thresholds
    }
    text = ", ".join(f"{threshold}: {value:.1f}" for threshold, value in cut_of.items())
    return float(np.median(list(cut_of.values()))), f"By threshold: {text}."


def _fig10(rows: Sequence[Mapping[str, Any]], experiment: Tails) -> tuple[Result, ...]:
    p99 = _by_key(rows)
    models, rates, thresholds = experiment.models, experiment.rates_rps, experiment.thresholds
    low, high = (_reduction(rows, experiment, rates[k]) for k in (0, -1))
    least = all(
        p99[m, r, threshold, "medusa"]
        < min(p99[m, r, threshold, s] for s in STARTS if s != "medusa")
        for m in models
        for r in rates
        for threshold in thresholds
    )
    order = {s: p99[models[-1], rates[0], thresholds[0], s] for s in ("medusa", "no_graph")}
    return (
        _result("fig10a.vs_vllm", *low),
        _result("fig10b.vs_vllm", *high),
        _result("abstract.ttft_tail_reduction", *high),
        _result("fig10.all_settings", {"medusa": least}, "Both models, rates and all thresholds."),
        _result("fig10.no_graph_coldstart", order, "p99 TTFT of Qwen1.5 4B at 2 RPS."),
        _result(
            "sec75.warm_pool",
            claim("medusa.sec75.warm_pool").value
            if all(
                _is_loading(m, max(p99[m, rates[0], threshold, "vllm"] for threshold in thresholds))
                for m in models
            )
            else {"launch": "more, or less"},
            "The threshold with most starts: p99 at 2 RPS lies above a loading phase, by less than "
            "a runtime's start.",
            "in-sample",
        ),
    )


def _is_loading(model: str, waited_s: float) -> bool:
    stages = stages_of(load_spec(model), load_measured_start())
    return 0 <= waited_s - loading_s("vllm", stages) < stages.runtime_s


def _fig11(rows: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    at_rate: dict[float, dict[str, float]] = {}
    for row in rows:
        at_rate.setdefault(row["rate_rps"], {})[row["start"]] = row["p99_s"]
    rates = sorted(at_rate)
    near = min(rates, key=lambda r: abs(r - float(claim("medusa.fig11a.throughput").value)))
    there = at_rate[near]
    ratio = {r: at_rate[r]["medusa"] / at_rate[r]["vllm"] for r in rates}
    worst = at_rate[rates[-1]]
    shape = {
        "low_rate": ratio[rates[0]] > 0.9,
        "mid_rate": min(ratio.values()) < 0.7,
        "overload": worst["vllm"] > 2 * there["vllm"] and ratio[rates[-1]] > min(ratio.values()),
    }
    printed = claim("medusa.fig11.shape").value
    note = f"At {near:g} requests a second, threshold {rows[0]['at']}."
    return (
        *(
            _result(f"fig11a.vs_{name}", 100 * (1 - there["medusa"] / there[start]), note)
            for name, start in (("vllm", "vllm"), ("async", "vllm_async"), ("no_graph", "no_graph"))
        ),
        _result(
            "fig11.shape",
            {name: printed[name] if holds else "no" for name, holds in shape.items()},
            f"p99 of MEDUSA over vLLM's by rate: { ({r: round(x, 2) for r, x in ratio.items()}) }.",
        ),
    )


def _result(name: str, ours: Any, note: str, sample: Any = "out-of-sample") -> Result:
    claim_id = f"medusa.{name}"
    return answer(claim_id, ours, note, sample=sample)
