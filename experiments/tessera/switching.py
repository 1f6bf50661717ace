"""The monitor's window and threshold on a real trace (Tessera, Fig. 10)."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.systems.tessera import Monitor, Server, serve
from c2c.systems.tessera.monitor import SWITCH_S
from experiments.c2cserve.context import Computed, Context
from experiments.tessera.answering import answer
from experiments.tessera.arrivals import of_trace, source
from experiments.tessera.pairs_online import IN_FLIGHT, capacity_rps, on_pair, tessera_on

__all__ = ["compute"]

PAIR: Final = "a100_l40s"
LOAD: Final = 0.8  # of what the left GPU alone sustains: both policies have their times
_SECONDS: Final = 360.0
_WINDOWS: Final = (0.03, 0.1, 0.3, 0.7, 1.5)
_THRESHOLDS: Final = (1.1, 1.25, 1.5, 2.0, 3.0)
_WINDOW, _THRESHOLD = 0.3, 1.5


def compute(context: Context) -> Computed:
    """Return the latency a token and the switches over windows and thresholds."""
    pair = on_pair(PAIR)
    arrivals = of_trace(context, _SECONDS, LOAD * capacity_rps(pair))
    settings: list[dict[str, Any]] = [
        *({"varied": "window", "value": w, "window": w, "threshold": _THRESHOLD} for w in _WINDOWS),
        *({"varied": "threshold", "value": b, "window": _WINDOW, "threshold": b}
          for b in _THRESHOLDS),
    ]  # fmt: skip
    monitors: list[tuple[dict[str, Any], Server]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a window as long as a switch is what is looked at
        for s in settings:
            monitor = Monitor(window_s=s["window"], threshold=s["threshold"])
            monitors.append((s, tessera_on(pair, monitor)))
    plain = {"window": _WINDOW, "threshold": _THRESHOLD}
    monitors += [
        ({"varied": "rule", "value": 0.2, **plain}, tessera_on(pair, Monitor(band=0.2))),
        ({"varied": "rule", "value": 4.0, **plain}, tessera_on(pair, Monitor(queue=4.0))),
        ({"varied": "latency only", "value": 0.0, **plain}, Server({"latency": (pair.latency,)})),
        ({"varied": "throughput only", "value": 0.0, **plain},
         Server({"latency": (pair.throughput,) * IN_FLIGHT})),
        ({"varied": "two GPUs apart", "value": 0.0, **plain}, Server({"latency": pair.single})),
    ]  # fmt: skip
    rows = []
    for k, (s, server) in enumerate(monitors):
        done, switches = serve(server, arrivals)
        latency = float(np.mean([d.per_token_s for d in done]))
        rows.append({**s, "per_token_s": latency, "switches": switches})
        if context.progress:
            context.progress(k + 1, len(monitors))
    return Computed(
        tables={"settings": pa.Table.from_pylist(rows)},
        results=_results(rows),
        caption=(
            f"GPT-oss 20B on A100 + L40s, {_SECONDS:.0f} s of {source(context)} at {LOAD:g} of "
            "what the A100 alone sustains; mean latency over tokens generated. A switch stalls "
            f"{1e3 * SWITCH_S:.0f} ms, an input. Lines: one policy for good, two GPUs apart. "
            "Diamonds: the paper's worst over its default. Ours: a band of 20% around the "
            "threshold, and the queue's length (4) in its place."
        ),
        report=_report(rows),
    )


def _results(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    found = {(r["varied"], r["value"]): r["per_token_s"] for r in rows}
    usual = found["window", _WINDOW]
    short = max(found["window", _WINDOWS[0]], found["threshold", _THRESHOLDS[0]]) / usual
    long = max(found["window", _WINDOWS[-1]], found["threshold", _THRESHOLDS[-1]]) / usual
    ends = {
        name: min(found[name, values[0]], found[name, values[-1]]) > usual
        for name, values in (("window", _WINDOWS), ("threshold", _THRESHOLDS))
    }
    fixed = min(found["latency only", 0.0], found["throughput only", 0.0]) / usual
    apart = found["two GPUs apart", 0.0] / usual
    note = (
        f"At {LOAD:g} of the A100's rate. One policy for good: {fixed:.2f}; two GPUs apart: "
        f"{apart:.2f}, both over the default's latency."
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


def _report(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    return (
        ("varied", "value", "ms a token", "switches"),
        *(
            (r["varied"], f"{r['value']:g}", f"{1e3 * r['per_token_s']:.1f}", f"{r['switches']}")
            for r in rows
        ),
    )
