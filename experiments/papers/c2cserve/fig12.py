"""TTFT over time under a bursty trace, of C2CServe and others (C2CServe, Fig. 12, dense)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.config import SimulationResult
from c2c.ranges import AboveZero, Count
from experiments.claims import Result, answer, claim
from experiments.claims.classes import readings
from experiments.claims.robust import readings_table, under_all
from experiments.experiment import named
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.baselines import engine_settings
from experiments.papers.c2cserve.public import (
    aegaeon_ttft_s,
    routed_ttft_s,
    served_ttft_s,
)
from experiments.papers.c2cserve.replay import (
    TRACES,
    busy_share,
    describe,
    fit_load,
    load_of_half,
    replay,
)

__all__ = ["Replay", "Systems", "bands", "compute", "totals"]

PERCENTS: Final = np.linspace(0.0, 100.0, 201)  # of the curves of TTFT


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoads:
    """Other rules for the load, of a folded table."""

    compressions: tuple[AboveZero, ...]
    rate_rps: AboveZero
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows of the printed curve, with `least_requests`."""

    target_s: AboveZero
    width_s: AboveZero
    least_requests: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Systems:
    """Systems in a replay; `settings` of `c2c simulate` are shared."""

    settings: tuple[str, ...]
    systems: dict[str, tuple[str, ...]]
    shown: tuple[str, ...]
    half_busy: str
    windows: Windows

    def __post_init__(self) -> None:
        for name in (*self.shown, self.half_busy):
            named(self.systems, name, "systems")

    def of(self, system: str) -> list[str]:
        """Return the settings of a system's runs."""
        return [*self.settings, *self.systems[system]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Systems):
    """Experiment of Fig. 12; by default `half_busy` sets the load."""

    compression: AboveZero | None
    other_loads: OtherLoads


@figure("fig12", title="Fig. 12: trace replay, dense models", experiment=Replay,
        draw=".drawing.serving.draw_fig12", needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context, experiment: Replay) -> Computed:
    """Return TTFT by percentile and window, totals, and claims."""
    windows: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    link_gbps = 0.0
    compression = experiment.compression or load_of_half(
        context, experiment.of(experiment.half_busy)
    )
    runs = [(name, seed) for name in experiment.shown for seed in context.seeds]
    for name, seed in context.each(runs):
        got = replay(context, compression, experiment.of(name), seed)
        windows += _windows(name, seed, got, experiment.windows)
        summary.append({"system": name, "seed": seed, **totals(got, experiment.windows)})
        values = np.percentile(served_ttft_s(got)[0], PERCENTS, method="inverted_cdf").tolist()
        curves += [
            {"system": name, "seed": seed, "percent": percent, "ttft_s": value}
            for percent, value in zip(PERCENTS.tolist(), values, strict=True)
        ]
        link_gbps = got.stats.link_capacity_gbps
    results = _results(summary, context, experiment, compression)
    caption = (
        "(a) Requests over time. (b) Share of requests by TTFT; bands: range over seeds. (c) p5 to "
        "p95 of the windows' 95th percentiles of TTFT. GH200, "
        f"{context.link_text(link_gbps)}."
    )
    load = (
        "The load is set."
        if experiment.compression
        else "The paper states no load; ours is the one at which the GPU of "
        f"{experiment.half_busy} would be half busy, by its busy time at the trace's own speed."
    )
    assumptions = (
        f"Load: {describe(context, compression)}.",
        load,
        *(f"{name}: {', '.join(experiment.of(name))}." for name in experiment.shown),
        "'To the letter' (full profile) does what the paper says and nothing where the paper is "
        "silent; 'plus' is our system.",
        f"A window is {experiment.windows.width_s / 60:g} minutes and counts if it has at least "
        f"{experiment.windows.least_requests} requests.",
        "Every load, statistic, engine and scheduler of experiments/claims/readings.yaml is "
        "computed, too, with the first seed; two at once, in the full profile all.",
    )
    return Computed(
        tables={
            "ttft": pa.Table.from_pylist(curves),
            "windows": pa.Table.from_pylist(windows),
            "summary": pa.Table.from_pylist(summary),
            "readings": readings_table(results),
        },
        results=results,
        caption=caption,
        finding=_finding(summary, experiment),
        assumptions=assumptions,
        report=() if context.quick else _report(context, experiment, compression, summary),
    )


def _finding(summary: Sequence[Mapping[str, Any]], experiment: Replay) -> str:
    def text(system: str) -> str:
        mine = [r for r in summary if r["system"] == system]
        p50, p95 = (np.median([r[f"ttft_{p}_s"] for r in mine]) for p in ("p50", "p95"))
        return f"{system} {p50:.2g} and {p95:.2g} s"

    systems = "; ".join(map(text, experiment.shown))
    return f"TTFT at p50 and p95 in a bursty trace: {systems}"


def _report(
    context: Context, experiment: Replay, compression: float, summary: list[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    other = experiment.other_loads
    before = fit_load(
        context,
        other.compressions,
        experiment.of("ServerlessLLM"),
        claim("c2cserve.fig12.dense.sllm.ttft").value,
        lambda result: [
            totals(result, experiment.windows)[k] for k in ("ttft_p50_s", "ttft_p95_s")
        ],
    )
    seed = context.seeds[0]
    now = [("half busy", compression, r) for r in summary if r["seed"] == seed]
    whole = float(f"{other.rate_rps / (now[0][2]['rate_rps'] / compression):.3g}")
    then = [
        (rule, load, {"system": name, **totals(got, experiment.windows)})
        for rule, load in (("by ServerlessLLM's latency", before), ("the whole trace", whole))
        for name in other.shown
        for got in [replay(context, load, experiment.of(name), seed)]
    ]
    within = f"within {experiment.windows.target_s:g} s %"
    head = ("load", "compression", "system", "TTFT p50 s", "p95", "p99", within, "busy %")
    body = [
        (
            rule,
            f"{load:g}",
            str(r["system"]),
            *(f"{r[f'ttft_{p}_s']:.3g}" for p in ("p50", "p95", "p99")),
            f"{r['within_target_percent']:.1f}",
            f"{r['busy_percent']:.0f}",
        )
        for rule, load, r in (*now, *then)
    ]
    return (head, *body)


def _windows(
    name: str, seed: int, result: SimulationResult, windows: Windows
) -> list[dict[str, Any]]:
    ttft, arrival = served_ttft_s(result)
    return [
        {"system": name, "seed": seed, **row} for row in _window_rows(ttft, arrival, windows)
    ]  # fmt: skip


def _window_rows(ttft: Any, arrival: Any, windows: Windows) -> list[dict[str, Any]]:
    window = (arrival // windows.width_s).astype(int)
    rows = []
    indices, counts = np.unique(window, return_counts=True)
    parts = np.split(ttft[np.argsort(window, kind="stable")], np.cumsum(counts)[:-1])
    for index, count, part in zip(indices, counts, parts, strict=True):
        chosen = part[np.isfinite(part)]
        if len(chosen):
            rows.append(
                {
                    "start_h": float(index * windows.width_s / 3600),
                    "hours": windows.width_s / 3600,
                    "requests": int(count),
                    "counts": bool(count >= windows.least_requests),
                    "p50_s": float(np.median(chosen)),
                    "p95_s": float(np.percentile(chosen, 95)),
                }
            )
    return rows


def bands(ttft: Any, arrival: Any, windows: Windows) -> dict[str, list[float]]:
    """Return 5th and 95th percentile of a curve by reading `statistic`."""
    rows = [r for r in _window_rows(ttft, arrival, windows) if r["counts"]]
    points = {
        "p95": [r["p95_s"] for r in rows],
        "medians": [r["p50_s"] for r in rows],
        "requests": ttft[np.isfinite(ttft)],
    }
    return {
        name: np.percentile(values if len(values) else [math.nan], (5, 95)).tolist()
        for name, values in points.items()
    }


def totals(result: SimulationResult, windows: Windows) -> dict[str, Any]:
    """Return latencies, attainment and busy time of a replay."""
    s = result.summary
    ttft, arrival = served_ttft_s(result)
    low, high = bands(ttft, arrival, windows)["p95"]
    return {
        "requests": s["requests"],
        "rate_rps": s["requests"] / float(arrival.max()),
        "busy_percent": 100.0 * busy_share(result),
        "failed": s["failed"],
        **{f"ttft_{p}_s": s["ttft_s"][p] for p in ("p50", "p95", "p99")},
        **{f"tpot_{p}_s": s["tpot_s"][p] for p in ("p50", "p95", "p99")},
        "curve_p5_s": low,
        "curve_p95_s": high,
        "within_target_percent": 100.0 * float(np.mean(ttft <= windows.target_s)),
        "attainment_both_percent": 100.0 * s["attainment"]["both"],
    }


def _results(
    summary: list[dict[str, Any]], context: Context, experiment: Replay, compression: float
) -> tuple[Result, ...]:
    lookup = _Readings(context, experiment, compression)

    def middle(system: str, column: str) -> float:
        return float(np.median([r[column] for r in summary if r["system"] == system]))

    ours = (
        "5th and 95th percentile of the windows' 95th percentiles; the load is set by "
        "ServerlessLLM's busy time, see the figure's assumptions."
    )
    within = f"Share of requests with TTFT within {experiment.windows.target_s:g} s."
    both = "TTFT and TPOT targets of catalog dense6; the paper prints no TPOT target."
    claims: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
        ("fig12.dense.c2cserve.ttft", "C2CServe", ours, ("curve_p5_s", "curve_p95_s")),
        ("fig12.dense.sllm.ttft", "ServerlessLLM", ours, ("curve_p5_s", "curve_p95_s")),
        ("fig12.dense.aegaeon.ttft", "Aegaeon", ours, ("curve_p5_s", "curve_p95_s")),
        ("fig12.attainment", "C2CServe", within, ("within_target_percent",)),
        ("abstract.slo_attainment", "C2CServe", both, ("attainment_both_percent",)),
    )

    def answers(**reading: Any) -> Iterator[Result]:
        is_default = all(
            value == readings("c2cserve")[name].default for name, value in reading.items()
        )
        for name, system, note, columns in claims:
            if system not in experiment.shown:
                continue

            def value(system: str = system, columns: tuple[str, ...] = columns) -> Any:
                if is_default:
                    values = [middle(system, column) for column in columns]
                elif len(columns) == 1:
                    values = [lookup.totals(reading["load"])[columns[0]]]
                else:
                    values = lookup.band(system, **reading)
                return values if len(values) > 1 else values[0]

            yield answer(f"c2cserve.{name}", value, note, link_variant=context.link_variant)

    names = ("engine", "sllm_system", "aegaeon_system", "statistic", "load")
    return under_all(answers, names, "c2cserve", together=2 if context.quick else None)


class _Readings:
    """Bands of TTFT under other readings, of the first seed."""

    def __init__(self, context: Context, experiment: Replay, compression: float) -> None:
        self._context, self._experiment = context, experiment
        self._loads = {"half_busy": compression, "own_speed": 1.0, "twice": 2.0}
        self._kept: dict[tuple[str, ...], Any] = {}

    def totals(self, load: str) -> dict[str, Any]:
        got = self._once(("run", "C2CServe", load), lambda: self._replayed("C2CServe", load, ()))
        return totals(got, self._experiment.windows)

    def band(
        self, system: str, *, engine: str, sllm_system: str, aegaeon_system: str, statistic: str,
        load: str,
    ) -> list[float]:  # fmt: skip
        return self._bands(system, engine, sllm_system, aegaeon_system, load)[statistic]

    def _bands(
        self, system: str, engine: str, sllm: str, aegaeon: str, load: str
    ) -> dict[str, list[float]]:
        key: tuple[str, ...] = (system, load)
        if system == "Aegaeon":
            key = (system, engine, aegaeon, load)
        elif system != "C2CServe":
            key = (system, engine, sllm, load)
        result: dict[str, list[float]] = self._once(key, lambda: bands(
            *self._ttft_s(system, engine, sllm, aegaeon, load), self._experiment.windows
        ))  # fmt: skip
        return result

    def _ttft_s(
        self, system: str, engine: str, sllm: str, aegaeon: str, load: str
    ) -> tuple[Any, Any]:
        context, compression, (seed, *_) = self._context, self._loads[load], self._context.seeds
        settings = [s for s in self._experiment.of(system) if not s.startswith("system=")]
        if system == "C2CServe":
            got = self._once(("run", system, load), lambda: self._replayed(system, load, ()))
            return served_ttft_s(got)
        if system == "Aegaeon":
            return aegaeon_ttft_s(context, compression, settings, engine=engine,
                                  scheduler=aegaeon, seed=seed)  # fmt: skip
        if sllm == "mechanism":
            more = engine_settings("serverlessllm", engine)
            return served_ttft_s(self._replayed(system, load, more))
        return routed_ttft_s(
            context, compression, settings, engine=engine, seed=seed,
            at_client=sllm == "public_client", has_ticks=sllm == "public_start",
        )  # fmt: skip

    def _replayed(self, system: str, load: str, more: Sequence[str]) -> SimulationResult:
        settings = [*self._experiment.of(system), *more]
        return replay(self._context, self._loads[load], settings, self._context.seeds[0])

    def _once(self, key: tuple[str, ...], value: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = value()
        return self._kept[key]
