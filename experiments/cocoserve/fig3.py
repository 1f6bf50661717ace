"""Figs. 3 and 11: static batches that outgrow memory, and the effect of one migrated layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.cocoserve.compared import HFT, SAID, coco, cut, server
from experiments.cocoserve.drained import (
    CARD_BYTES,
    LOW,
    PEAK,
    Drained,
    Served,
    drained,
    rows_that_fit,
)
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["compute", "compute_failures"]

RATES: Final = (10, 20, 30, 40, 50, 55, 58, 60)
_LAST: Final = 55  # the last rate that Fig. 3 shows
_MOST: Final = 60
_CARDS: Final = (40_000_000_000, CARD_BYTES, 42_949_672_960)
_ALL: Final = replace(HFT, batch="memory")
_POPULATIONS: Final = ("requests", "batches", "runs")
_SLO: Final = 2.0  # latencies at the lowest rate


@figure("cocoserve.fig3", title="CoCoServe, Fig. 3: load at which memory runs out",
        draw="cocoserve.draw_memory", needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return latencies by rate, with all layers on one card and with one layer migrated."""
    rows = [
        {"batch": str(base.batch), "migrated": migrated, "rate": rate, **_told(found)}
        for base in (HFT, _ALL)
        for migrated in (0, 1)
        for rate in RATES
        for found in (drained(replace(base, migrated=migrated), rate),)
    ]
    fits = [
        {
            "hbm_bytes": hbm, "migrated": migrated,
            "requests": rows_that_fit(replace(_ALL, hbm_bytes=hbm, migrated=migrated)),
        }
        for hbm in _CARDS for migrated in (0, 1)
    ]  # fmt: skip
    results = under_readings(_fig3(), _fig3, SAID, everything=not context.quick)
    return Computed(
        tables={
            "latencies": pa.Table.from_pylist(rows),
            "fits": pa.Table.from_pylist(fits),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            "Left: mean latency by requests at once; diamonds: the paper. Right: requests that "
            "fit one card, with all layers there and with one layer moved to another card."
        ),
        assumptions=(
            "The model is LLaMA-13B on an A100 of 40 GB.",
            "Prompts have 85 tokens, answers 256.",
            "A rate of r is read as r requests at once.",
            "A static server serves batches of 15 requests, or all waiting requests as one batch.",
            "The keys and values of a batch grow by concatenation.",
            "A batch that outgrows the card is served again in two halves after a restart of 25 s.",
            "These 25 s are the upper end of the paper's range for an operation on an instance.",
            "Memory counts weights, 499 MiB of a process, keys and values, but no activations.",
        ),
    )


def _told(found: Drained) -> dict[str, Any]:
    return {"latency_s": found.latency_s, "failed": found.failed}


def _fig3(**reading: Any) -> Iterator[Result]:
    base, _ = server(reading)
    home, away = (
        [drained(replace(base, migrated=n), rate).latency_s for rate in (PEAK, _LAST)]
        for n in (0, 1)
    )
    mean = sum(away) / 2
    ours = {
        "default_peak": max(home), "migrate_one": mean, "reduction": cut(mean, sum(home) / 2),
    }  # fmt: skip
    note = "Batches of 15, which never outgrow the card; see the readings."
    yield from (answer(f"cocoserve.fig3.{name}", value, note) for name, value in ours.items())


@figure("cocoserve.fig11", title="CoCoServe, Fig. 11: out-of-memory failures over time",
        draw="cocoserve.draw_failures", needs=SIMULATOR)  # fmt: skip
def compute_failures(context: Context) -> Computed:
    """Return the share of requests that fail, and the share in time, by system and rate."""
    systems = {"HFT": HFT, "CoCoServe": coco(), "CoCoServe, gamma 0": coco(gamma=0.0)}
    everything = {
        name: replace(served, batch="memory")
        for name, served in systems.items()
        if name != "CoCoServe"
    }
    failures = [
        {
            "system": name, "batch": str(served.batch), "rate": rate,
            **{f"{of}_percent": _failed_percent(served, rate, of) for of in _POPULATIONS},
        }
        for group in (systems, everything)
        for name, served in group.items()
        for rate in (40, PEAK, _LAST, _MOST)
    ]  # fmt: skip
    in_time = [
        {"system": name, "rate": rate, "in_time_percent": 100.0 * _in_time(served, rate)}
        for name, served in systems.items()
        for rate in (LOW[0], *range(10, _MOST + 1, 10))
    ]
    able = SAID | {"slo", "oom_rate", "oom_load"}
    results = under_readings(_fig11(), _fig11, able, everything=not context.quick)
    return Computed(
        tables={
            "failures": pa.Table.from_pylist(failures),
            "in_time": pa.Table.from_pylist(in_time),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            "Left: requests whose batch outgrew the card, for servers that batch all waiting "
            "requests; diamonds: the paper. Right: requests within twice HFT's mean latency at "
            "the lowest rate."
        ),
        assumptions=(
            "Model, card, lengths and restarts are those of Fig. 3.",
            "Batches of 15 requests never outgrow the card, so that the left panel leaves them "
            "out.",
            "A server with copies of layers limits its batch to the requests that fit.",
            "Servers in the right panel have batches of 15; copies of layers enlarge them.",
            "CoCoServe with the literal gamma of Eq. 4 copies no layer and equals HFT.",
            "CoCoServe with gamma 0 copies all layers to a second card.",
        ),
    )


def _in_time(served: Served, rate: int, slo: float = _SLO) -> float:
    target = slo * drained(replace(served, layers=0), LOW[0]).latency_s
    found = drained(served, rate).latencies_s
    return sum(s <= target for s in found) / len(found)


def _last_full(served: Served, slo: float) -> int:
    """Return the highest rate up to which all requests are in time."""
    low, high = LOW[0], _MOST + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _in_time(served, middle, slo) == 1.0 else (low, middle)
    return low


def _fig11(
    *, slo: float = _SLO, oom_rate: str = "requests", oom_load: int = _LAST, **reading: Any
) -> Iterator[Result]:
    base, _ = server(reading)
    hft, ours = (_failed_percent(served, oom_load, oom_rate) for served in (base, coco(base)))
    fifteen = "Batches of 15 do not outgrow the card."
    yield answer("cocoserve.fig11a.oom_hft", hft, fifteen)
    yield answer("cocoserve.fig11a.oom_coco", ours, fifteen)
    one = 100.0 / oom_load  # request
    ratio = 1.0 if hft == ours else hft / max(ours, one)
    yield answer("cocoserve.fig11a.oom_ratio", ratio, "Neither fails: 1.")
    start = _last_full(base, slo)
    yield answer("cocoserve.fig11b.hft_start", start, "The last rate without a miss.")
    yield answer(
        "cocoserve.fig11b.hft_fail", _MOST,
        f"It does not fail up to {_MOST} at once: the first batch is always in time.",
    )  # fmt: skip
    full = _last_full(coco(base), slo)
    yield answer("cocoserve.fig11b.coco_full", full, "Without copies it is HFT.")


def _failed_percent(served: Served, rate: int, of: str) -> float:
    found = drained(served, rate)
    return 100.0 * {
        "requests": found.failed / rate, "batches": found.failed_batches / max(1, found.batches),
        "runs": float(found.failed > 0),
    }[of]  # fmt: skip
