"""The monitor's window and threshold on a real trace (Tessera, Fig. 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.errors import SettingError
from c2c.policies import ByWait, ByWaiting
from c2c.ranges import AboveZero, Count, FromZero
from c2c.serving import Prepared
from c2c.systems.tessera import SWITCH_S
from experiments.claims import claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.arrivals import TRACE, of_trace, source
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.pairs_online import (
    Online,
    apart,
    capacity_rps,
    one_policy,
    served,
    tessera_on,
)
from experiments.papers.tessera.workloads import gpus_of

__all__ = ["Monitor", "compute"]

_FIELDS: Final = {"window": "window_s", "threshold": "threshold"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """Experiment of Fig. 10; see `conf/experiment/tessera/fig10.yaml`."""

    pair: str
    load: AboveZero
    pieces: Count
    seconds: AboveZero
    windows_s: tuple[AboveZero, ...]
    thresholds: tuple[AboveZero, ...]
    window_s: AboveZero
    threshold: AboveZero
    band: FromZero
    prompts: AboveZero

    def __post_init__(self) -> None:
        for name, (values, usual) in self.varied.items():
            if usual not in values:
                raise SettingError(f"experiment.{_FIELDS[name]}", usual, f"one of {values}")

    @property
    def varied(self) -> dict[str, tuple[tuple[float, ...], float]]:
        """Values of each monitor setting, with its default."""
        return {
            "window": (self.windows_s, self.window_s),
            "threshold": (self.thresholds, self.threshold),
        }


@figure("tessera.fig10", title="Tessera, Fig. 10: the monitor", experiment=Monitor,
        draw=".drawing.draw_switching", needs=SYSTEMS, traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: Monitor) -> Computed:
    """Return latency a token and switches over windows and thresholds."""
    rate = experiment.load * capacity_rps(experiment.pair)
    pieces = [
        of_trace(context, experiment.seconds, rate, piece) for piece in range(experiment.pieces)
    ]
    usual = {name: default for name, (_, default) in experiment.varied.items()}
    rows = [
        {"varied": varied, "value": value, "is_usual": value == usual.get(varied, value),
         **_row([served(case, p) for p in pieces])}
        for varied, value, case in context.each(_settings(experiment))
    ]  # fmt: skip
    return Computed(
        tables={"settings": pa.Table.from_pylist(rows)},
        results=_results(rows, experiment),
        finding=_finding(rows),
        caption=(
            "Lines: mean latency a token by the monitor's window and threshold; bars: lowest to "
            "highest piece of the trace; numbers: switches. Dashed: one policy throughout, or two "
            "GPUs apart. Diamonds: the paper's worst."
        ),
        assumptions=(
            f"GPT-oss 20B on {' + '.join(gpus_of(experiment.pair))} serves {experiment.pieces} "
            f"pieces of {experiment.seconds:.0f} s of "
            f"{source(context)}.",
            f"The load is {experiment.load:g} of the left GPU's capacity, and the mean is over "
            "generated tokens.",
            f"A switch stalls {1e3 * SWITCH_S:.0f} ms, an input.",
            "Diamonds are the paper's worst latency relative to its default.",
            f"Our square on the left has a band of {100 * experiment.band:.0f}% around the "
            "threshold.",
            f"Our square on the right switches at {experiment.prompts:g} waiting prompts, "
            "without a threshold.",
            _shape(rows, experiment),
        ),
        report=_report(rows),
    )


def _settings(settings: Monitor) -> list[tuple[str, float, Prepared]]:
    def monitor(rule: Any) -> Prepared:
        return tessera_on(settings.pair, rule)

    usual = ByWait(window_s=settings.window_s, threshold=settings.threshold)
    waiting = ByWaiting(window_s=settings.window_s, prompts=settings.prompts)
    return [
        *(("window", w, monitor(usual._replace(window_s=w))) for w in settings.windows_s),
        *(("threshold", b, monitor(usual._replace(threshold=b))) for b in settings.thresholds),
        ("band", settings.band, monitor(usual._replace(band=settings.band))),
        ("prompts", settings.prompts, monitor(waiting)),
        ("latency only", 0.0, one_policy(settings.pair, throughput=False)),
        ("throughput only", 0.0, one_policy(settings.pair, throughput=True)),
        ("two GPUs apart", 0.0, apart(settings.pair)),
    ]


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    ms = {r["varied"]: 1e3 * r["per_token_s"] for r in rows if r["is_usual"]}
    return (
        f"The monitor takes {ms['window']:.1f} ms a token, one policy for good "
        f"{min(ms['throughput only'], ms['latency only']):.1f}, two GPUs apart "
        f"{ms['two GPUs apart']:.1f}"
    )


def _row(pieces: Sequence[Online]) -> dict[str, float]:
    per_token = [piece.per_token_s for piece in pieces]
    return {
        "per_token_s": float(np.mean(per_token)),
        "lowest_s": min(per_token),
        "highest_s": max(per_token),
        "switches": float(np.mean([piece.switches for piece in pieces])),
        "worst_s": max(piece.worst_s for piece in pieces),
    }


def _results(rows: Sequence[Mapping[str, Any]], settings: Monitor) -> tuple[Any, ...]:
    time_of = {(r["varied"], r["value"]): r["per_token_s"] for r in rows}
    worst = {(r["varied"], r["value"]): r["worst_s"] for r in rows}
    usual = time_of["window", settings.window_s]
    short, long = (
        max(time_of[name, values[end]] for name, (values, _) in settings.varied.items()) / usual
        for end in (0, -1)
    )
    ends = {
        name: min(time_of[name, values[0]], time_of[name, values[-1]]) > usual
        for name, (values, _) in settings.varied.items()
    }
    fixed = min(time_of["latency only", 0.0], time_of["throughput only", 0.0]) / usual
    alone = time_of["two GPUs apart", 0.0] / usual
    starved = worst["window", settings.window_s] / max(
        worst["latency only", 0.0], worst["throughput only", 0.0]
    )
    note = (
        f"At {settings.load:g} of the left GPU's rate. One policy for good: {fixed:.2f}; two GPUs "
        f"apart: {alone:.2f}, both over the default's latency. Its longest latency of a request is "
        f"{starved:.2f} of the worse policy's for good."
    )
    return (
        answer("fig10.aggressive_penalty", short, note),
        answer("fig10.conservative_penalty", long, note),
        answer(
            "fig10.u_shape",
            {"shape": all(ends.values()), "minimum": usual <= 1.01 * min(time_of.values())}, note,
        ),
        answer("fig10.switch_stall", 1e3 * SWITCH_S, "An input.", "in-sample"),
    )  # fmt: skip


def _shape(rows: Sequence[Mapping[str, Any]], settings: Monitor) -> str:
    texts = []
    for name, (values, usual) in settings.varied.items():
        time_of = {r["value"]: r["per_token_s"] for r in rows if r["varied"] == name}
        ends = [time_of[values[0]] / time_of[usual], time_of[values[-1]] / time_of[usual]]
        kind = "a U" if min(ends) > 1 else "no U"
        texts.append(f"{name}, {kind}: {ends[0]:.2f} and {ends[1]:.2f}")
    printed = [
        f"{claim(f'tessera.fig10.{kind}_penalty').value:g}"
        for kind in ("aggressive", "conservative")
    ]
    return (
        f"Lowest and highest setting over the default, {'; '.join(texts)} "
        f"(the paper: up to {' and '.join(printed)})."
    )


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    return (
        ("varied", "value", "ms a token", "lowest to highest", "switches", "longest (s)"),
        *(
            (
                r["varied"], f"{r['value']:g}", f"{1e3 * r['per_token_s']:.1f}",
                f"{1e3 * r['lowest_s']:.1f} to {1e3 * r['highest_s']:.1f}",
                f"{r['switches']:.0f}", f"{r['worst_s']:.1f}",
            )
            for r in rows
        ),
    )  # fmt: skip
