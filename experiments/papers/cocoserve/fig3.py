"""Figs. 3 and 11: static batches that outgrow memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from c2c.ranges import AboveZero, Count
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.cocoserve.baselines import OURS, SAID, coco, cut, under
from experiments.papers.cocoserve.batch_server import (
    ANSWER_TOKENS,
    Drained,
    Served,
    drained,
    rows_that_fit,
)

__all__ = ["Failures", "Memory", "compute", "compute_failures"]

_POPULATIONS: Final = ("requests", "batches", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Experiment of Fig. 3: server, burst, readings of memory; `peak`, `last` rates."""

    server: Served
    rates: tuple[Count, ...]
    peak: Count
    last: Count
    cards_bytes: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Experiment of Fig. 11: server, burst, and target."""

    server: Served
    failure_rates: tuple[Count, ...]
    in_time_rates: tuple[Count, ...]
    last: Count
    slo: AboveZero


@figure("cocoserve.fig3", title="CoCoServe, Fig. 3: load at which memory runs out",
        experiment=Memory, draw=".drawing.draw_memory", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: Memory) -> Computed:
    """Return latencies by rate, on one card and with a migrated layer."""
    server = experiment.server
    takes_all = replace(server, batch="memory")
    rows = [
        {"batch": str(base.batch), "migrated": migrated, "rate": rate, **_told(outcome)}
        for base in (server, takes_all)
        for migrated in (0, 1)
        for rate in experiment.rates
        for outcome in (drained(replace(base, migrated=migrated), rate),)
    ]
    fits = [
        {
            "hbm_bytes": hbm, "migrated": migrated,
            "requests": rows_that_fit(replace(takes_all, hbm_bytes=hbm, migrated=migrated)),
        }
        for hbm in experiment.cards_bytes for migrated in (0, 1)
    ]  # fmt: skip
    home, away = (rows_that_fit(replace(takes_all, migrated=n)) for n in (0, 1))

    def answers(**reading: Any) -> Iterator[Result]:
        return _fig3(under(server, reading)[0], experiment)

    results = under_readings(answers(), answers, SAID, everything=not context.quick)
    return Computed(
        tables={
            "latencies": pa.Table.from_pylist(rows),
            "fits": pa.Table.from_pylist(fits),
            "readings": readings_table(results),
        },
        results=results,
        finding=(
            f"One card serves up to {home} requests at once, {away} with one layer on another "
            "card; a larger batch fails and is served again"
        ),
        caption=(
            "Left: mean latency by requests at once; diamonds: the paper. Right: requests that "
            "fit one card, with all layers there and with one layer moved to another card."
        ),
        assumptions=(
            f"The model is {server.model} on an A100 of 40 GB.",
            f"Prompts have {server.prompt_tokens} tokens, answers {ANSWER_TOKENS}.",
            "A rate of r is read as r requests at once.",
            f"A static server serves batches of {server.batch} requests, or all waiting requests "
            "as one batch.",
            "The keys and values of a batch grow by concatenation.",
            "A batch that outgrows the card is served again in two halves after a restart of "
            f"{server.restart_seconds:g} s.",
            "25 s are the upper end of the paper's range for an operation on an instance.",
            "Memory counts weights, 499 MiB of a process, keys and values, but no activations.",
        ),
    )


def _told(result: Drained) -> dict[str, Any]:
    return {"latency_s": result.latency_s, "failed": result.failed}


def _fig3(base: Served, experiment: Memory) -> Iterator[Result]:
    rates = experiment.peak, experiment.last
    home, away = (
        [drained(replace(base, migrated=n), rate).latency_s for rate in rates] for n in (0, 1)
    )
    mean = sum(away) / 2
    ours = {
        "default_peak": max(home), "migrate_one": mean, "reduction": cut(mean, sum(home) / 2),
    }  # fmt: skip
    note = "Batches of 15, which never outgrow the card; see the readings."
    yield from (answer(f"cocoserve.fig3.{name}", value, note) for name, value in ours.items())


@figure("cocoserve.fig11", title="CoCoServe, Fig. 11: out-of-memory failures over time",
        experiment=Failures, draw=".drawing.draw_failures", needs=SIMULATOR)  # fmt: skip
def compute_failures(context: Context, experiment: Failures) -> Computed:
    """Return shares of failed and of timely requests."""
    base, slo = experiment.server, experiment.slo
    systems = {
        "HFT": base, "CoCoServe": coco(base), "CoCoServe, static": coco(base, batching="static"),
    }  # fmt: skip
    everything = {
        name: replace(served, batch="memory")
        for name, served in systems.items()
        if served.engine == "static"
    }
    failures = [
        {
            "system": name, "batch": str(served.batch), "rate": rate,
            **{f"{unit}_percent": _failed_percent(served, rate, unit) for unit in _POPULATIONS},
        }
        for group in (systems, everything)
        for name, served in group.items()
        for rate in experiment.failure_rates
    ]  # fmt: skip
    target_s = slo * drained(base, min(experiment.in_time_rates)).latency_s
    in_time = [
        {
            "system": name,
            "rate": rate,
            "in_time_percent": 100.0 * _in_time(served, rate, target_s),
        }
        for name, served in systems.items()
        for rate in experiment.in_time_rates
    ]

    def answers(**reading: Any) -> Iterator[Result]:
        other, more = under(base, reading)
        return _fig11(other, experiment, **more)

    able = SAID | OURS | {"slo", "oom_rate", "oom_load"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={
            "failures": pa.Table.from_pylist(failures),
            "in_time": pa.Table.from_pylist(in_time),
            "readings": readings_table(results),
        },
        results=results,
        finding=_failing(in_time),
        caption=(
            "Left: requests whose batch outgrew the card, for servers that batch all waiting "
            f"requests; diamonds: the paper. Right: requests within {slo:g} times "
            "HFT's (Hugging Face Transformers) mean latency at the lowest rate."
        ),
        assumptions=(
            "Model, card, lengths and restarts are those of Fig. 3.",
            "Batches of 15 requests never outgrow the card, so that the left panel leaves them "
            "out.",
            "A server with copies of layers limits its batch to the requests that fit.",
            "Servers in the right panel have batches of 15; copies of layers enlarge them.",
            "CoCoServe copies all layers to a second card; its batches are continuous, or static.",
            "With the literal gamma of Eq. 4 it copies none.",
        ),
    )


def _failing(rows: list[dict[str, Any]]) -> str:
    most = max(r["rate"] for r in rows)
    shares = ", ".join(
        f"{r['system']} {r['in_time_percent']:.0f} %" for r in rows if r["rate"] == most
    )
    return f"In time with {most} requests at once: {shares}"


def _in_time(served: Served, rate: int, target_s: float) -> float:
    times_s = drained(served, rate).latencies_s
    return sum(s <= target_s for s in times_s) / len(times_s)


def _last_full(served: Served, target_s: float, rates: Sequence[int]) -> int:
    low, high = min(rates), max(rates) + 1
    while high - low > 1:
        middle = (low + high) // 2
        is_full = _in_time(served, middle, target_s) == 1.0
        low, high = (middle, high) if is_full else (low, middle)
    return low


def _fig11(
    base: Served, experiment: Failures, *, slo: float | None = None, oom_rate: str = "requests",
    oom_load: int | None = None, **reading: Any,
) -> Iterator[Result]:  # fmt: skip
    rates = experiment.in_time_rates
    most, load, slo = max(rates), oom_load or experiment.last, slo or experiment.slo
    mine = coco(base, **reading)
    hft, ours = (_failed_percent(served, load, oom_rate) for served in (base, mine))
    fifteen = "Batches of 15 do not outgrow the card."
    yield answer("cocoserve.fig11a.oom_hft", hft, fifteen)
    yield answer("cocoserve.fig11a.oom_coco", ours, "It admits what fits.")
    one = 100.0 / load  # request
    ratio = 1.0 if hft == ours else hft / max(ours, one)
    yield answer("cocoserve.fig11a.oom_ratio", ratio, "Neither fails: 1.")
    target_s = slo * drained(base, min(rates)).latency_s
    start = _last_full(base, target_s, rates)
    yield answer("cocoserve.fig11b.hft_start", start, "The last rate without a miss.")
    yield answer(
        "cocoserve.fig11b.hft_fail", most,
        f"It does not fail up to {most} at once: the first batch is always in time.",
    )  # fmt: skip
    full = _last_full(mine, target_s, rates)
    yield answer("cocoserve.fig11b.coco_full", full, "The last rate without a miss.")


def _failed_percent(served: Served, rate: int, unit: str) -> float:
    run = drained(served, rate)
    return 100.0 * {
        "requests": run.failed / rate, "batches": run.failed_batches / max(1, run.batches),
        "runs": float(run.failed > 0),
    }[unit]  # fmt: skip
