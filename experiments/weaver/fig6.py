"""Fig. 6: long outputs, 512 tokens in and 1,024 out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa

from experiments.claims import Result, answer
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import Served, largest_rate, served

__all__ = ["RATES", "compute"]

RATES: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WAYS: Final = ("dedicated", "woven", "temporal", "spatial")


@figure("weaver.fig6", title="WEAVER, Fig. 6: long outputs", draw="weaver.draw_long",
        needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT by rate and largest rates; the alternatives of these in the full profile."""
    base = Served(seed=context.seeds[0], traces=context.traces, lengths="long")
    largest = {way: largest_rate(replace(base, way=way)) for way in WAYS}
    rows = [
        {"way": way, "hot_rps": rate, **asdict(served(replace(base, way=way, hot_rate=rate)))}
        for way in WAYS for rate in RATES if rate <= largest[way]
    ]  # fmt: skip
    told = [{"reading": "default", "way": w, "largest_rps": r} for w, r in largest.items()]
    if not context.quick:
        told += list(_alternatives(base))
    return Computed(
        tables={"curves": pa.Table.from_pylist(rows), "readings": pa.Table.from_pylist(told)},
        results=tuple(_results(rows, largest)),
        caption=(
            "A100, every prompt of 512 tokens and every answer of 1,024, one cold request/s. "
            "Largest rates: "
            + ", ".join(f"{way} {rate:.1f}" for way, rate in largest.items())
            + " requests/s."
        ),
    )


def _alternatives(base: Served) -> Iterator[dict[str, Any]]:
    changes: tuple[dict[str, Any], ...] = (
        {"batch_limit": 128}, {"batch_limit": "none"}, {"mux_share": "three_quarters"},
        {"constants": "datasheet"}, {"host_seconds": 0.002}, {"kv_share": 0.85},
    )  # fmt: skip
    for change in changes:
        ((name, value),) = change.items()
        for way in WAYS:
            rate = largest_rate(replace(base, way=way, **change))
            yield {"reading": f"{name}={value}", "way": way, "largest_rps": rate}


def _results(rows: list[dict[str, Any]], largest: dict[str, float]) -> Iterator[Result]:
    # Rates of a few requests a second: whole ones would be too coarse.
    tenth = {way: math.floor(10 * rate) / 10 for way, rate in largest.items()}
    mux = max(tenth["temporal"], tenth["spatial"])
    yield answer("weaver.fig6.vs_muxserve", 100 * (tenth["woven"] / mux - 1),
                 "Against the better mode; tenths of a rate.")  # fmt: skip
    cold = {(r["way"], r["hot_rps"]): 1e3 * r["cold_s"] for r in rows}
    alone = cold["dedicated", RATES[0]]
    most = max(value - alone for (way, _), value in cold.items() if way == "woven")
    yield answer("weaver.fig6.cold_overhead", most, "Largest over the hot rates.")
