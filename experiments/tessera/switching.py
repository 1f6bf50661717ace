"""The monitor's window and threshold on a real trace (Tessera, Fig. 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.policies import ByWait, ByWaiting
from c2c.serving import Prepared
from c2c.systems.tessera import SWITCH_S
from experiments.claims import claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.tessera.answering import answer
from experiments.tessera.arrivals import TRACE, of_trace, source
from experiments.tessera.pairs_online import (
    Online,
    apart,
    capacity_rps,
    one_policy,
    served,
    tessera_on,
)

__all__ = ["compute"]

PAIR: Final = "a100_l40s"
LOAD: Final = 0.8  # share of the left GPU's own capacity, at which both policies are in use
PIECES: Final = 3  # pieces of the trace, one after the other
_SECONDS: Final = 360.0
_WINDOWS: Final = (0.03, 0.1, 0.3, 0.7, 1.5)
_THRESHOLDS: Final = (1.1, 1.25, 1.5, 2.0, 3.0)
_WINDOW, _THRESHOLD = 0.3, 1.5
_BAND, _PROMPTS = 0.2, 4.0  # settings of the rules that are ours


@figure("tessera.fig10", title="Tessera, Fig. 10: the monitor", draw="tessera.draw_switching",
        needs=SYSTEMS, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return the latency a token and the switches over windows and thresholds."""
    rate = LOAD * capacity_rps(PAIR)
    pieces = [of_trace(context, _SECONDS, rate, piece) for piece in range(PIECES)]
    settings = _settings()
    rows = []
    for varied, value, what in context.each(settings):
        rows.append({"varied": varied, "value": value, **_row([served(what, p) for p in pieces])})
    return Computed(
        tables={"settings": pa.Table.from_pylist(rows)},
        results=_results(rows),
        caption=(
            "Lines: mean latency a token by the monitor's window and threshold; bars: lowest to "
            "highest piece of the trace; numbers: switches. Dashed: one policy throughout, or two "
            "GPUs apart. Diamonds: the paper's worst."
        ),
        assumptions=(
            f"GPT-oss 20B on A100 + L40s serves {PIECES} pieces of {_SECONDS:.0f} s of "
            f"{source(context)}.",
            f"The load is {LOAD:g} of the A100's capacity alone, and the mean is over generated "
            "tokens.",
            f"A switch stalls {1e3 * SWITCH_S:.0f} ms, an input.",
            "Diamonds are the paper's worst latency relative to its default.",
            f"Our square on the left has a band of {100 * _BAND:.0f}% around the threshold.",
            f"Our square on the right switches at {_PROMPTS:g} waiting prompts, without a "
            "threshold.",
            _shape(rows),
        ),
        report=_report(rows),
    )


def _settings() -> list[tuple[str, float, Prepared]]:
    def monitor(rule: Any) -> Prepared:
        return tessera_on(PAIR, rule)

    return [
        *(("window", w, monitor(ByWait(window_s=w, threshold=_THRESHOLD))) for w in _WINDOWS),
        *(("threshold", b, monitor(ByWait(window_s=_WINDOW, threshold=b))) for b in _THRESHOLDS),
        ("band", _BAND, monitor(ByWait(window_s=_WINDOW, threshold=_THRESHOLD, band=_BAND))),
        ("prompts", _PROMPTS, monitor(ByWaiting(window_s=_WINDOW, prompts=_PROMPTS))),
        ("latency only", 0.0, one_policy(PAIR, throughput=False)),
        ("throughput only", 0.0, one_policy(PAIR, throughput=True)),
        ("two GPUs apart", 0.0, apart(PAIR)),
    ]


def _row(pieces: Sequence[Online]) -> dict[str, float]:
    per_token = [piece.per_token_s for piece in pieces]
    return {
        "per_token_s": float(np.mean(per_token)),
        "lowest_s": min(per_token),
        "highest_s": max(per_token),
        "switches": float(np.mean([piece.switches for piece in pieces])),
        "worst_s": max(piece.worst_s for piece in pieces),
    }


def _results(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    found = {(r["varied"], r["value"]): r["per_token_s"] for r in rows}
    worst = {(r["varied"], r["value"]): r["worst_s"] for r in rows}
    usual = found["window", _WINDOW]
    short = max(found["window", _WINDOWS[0]], found["threshold", _THRESHOLDS[0]]) / usual
    long = max(found["window", _WINDOWS[-1]], found["threshold", _THRESHOLDS[-1]]) / usual
    ends = {
        name: min(found[name, values[0]], found[name, values[-1]]) > usual
        for name, values in (("window", _WINDOWS), ("threshold", _THRESHOLDS))
    }
    fixed = min(found["latency only", 0.0], found["throughput only", 0.0]) / usual
    alone = found["two GPUs apart", 0.0] / usual
    starved = worst["window", _WINDOW] / max(
        worst["latency only", 0.0], worst["throughput only", 0.0]
    )
    note = (
        f"At {LOAD:g} of the A100's rate. One policy for good: {fixed:.2f}; two GPUs apart: "
        f"{alone:.2f}, both over the default's latency. Its longest latency of a request is "
        f"{starved:.2f} of the worse policy's for good."
    )
    return (
        answer("fig10.aggressive_penalty", short, note),
        answer("fig10.conservative_penalty", long, note),
        answer(
            "fig10.u_shape",
            {"shape": all(ends.values()), "minimum": usual <= 1.01 * min(found.values())}, note,
        ),
        answer("fig10.switch_stall", 1e3 * SWITCH_S, "An input.", "in-sample"),
    )  # fmt: skip


def _shape(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a description of latency over both settings: U-shaped as in the paper, or not."""
    told = []
    for name, values, usual in (
        ("window", _WINDOWS, _WINDOW), ("threshold", _THRESHOLDS, _THRESHOLD)
    ):  # fmt: skip
        of = {r["value"]: r["per_token_s"] for r in rows if r["varied"] == name}
        ends = [of[values[0]] / of[usual], of[values[-1]] / of[usual]]
        kind = "a U" if min(ends) > 1 else "no U"
        told.append(f"{name}, {kind}: {ends[0]:.2f} and {ends[1]:.2f}")
    printed = [
        f"{claim(f'tessera.fig10.{kind}_penalty').value:g}"
        for kind in ("aggressive", "conservative")
    ]
    return (
        f"Lowest and highest setting over the default, {'; '.join(told)} "
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
