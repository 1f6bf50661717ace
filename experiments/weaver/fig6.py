"""Fig. 6: long outputs, 512 tokens in and 1,024 out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import SAID, Served, largest_rate, served

__all__ = ["RATES", "compute"]

RATES: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
WAYS: Final = ("dedicated", "woven", "temporal", "spatial")


@figure("weaver.fig6", title="WEAVER, Fig. 6: long outputs", draw="weaver.draw_long",
        needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT by rate and largest rates."""
    base = Served(seed=context.seeds[0], traces=context.traces, lengths="long")
    largest = _largest(base)
    rows = list(_rows(base, largest))

    def answers(**reading: Any) -> Iterator[Result]:
        return _results(replace(base, **reading))

    results = under_readings(answers(), answers, SAID, everything=not context.quick)
    return Computed(
        tables={"curves": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        caption=(
            "Lines: TPOT of the hot model (left) and of the cold one (right) by the hot rate, "
            "answers of 1,024 tokens. Largest hot rates: "
            + ", ".join(f"{way} {rate:.1f}" for way, rate in largest.items())
            + " requests/s."
        ),
        assumptions=(
            "The node has A100, and the cold model has 1 request/s.",
            "Every prompt has 512 tokens, every answer 1,024.",
        ),
    )


def _largest(base: Served) -> dict[str, float]:
    return {way: largest_rate(replace(base, way=way)) for way in WAYS}


def _rows(base: Served, largest: dict[str, float]) -> Iterator[dict[str, Any]]:
    for way in WAYS:
        for rate in RATES:
            if rate <= largest[way]:
                found = served(replace(base, way=way, hot_rate=rate))
                yield {"way": way, "hot_rps": rate, **asdict(found)}


def _results(base: Served) -> Iterator[Result]:
    def gain() -> float:
        # At a few requests a second whole rates would be too coarse.
        tenth = {
            way: math.floor(10 * largest_rate(replace(base, way=way))) / 10 for way in WAYS[1:]
        }
        return 100 * (tenth["woven"] / max(tenth["temporal"], tenth["spatial"]) - 1)

    def overhead() -> float:
        woven = replace(base, way="woven")
        alone_s = served(replace(base, way="dedicated", hot_rate=RATES[0])).cold_s
        each_s = [served(replace(woven, hot_rate=rate)).cold_s
                  for rate in RATES if rate <= largest_rate(woven)]  # fmt: skip
        return 1e3 * (max(each_s) - alone_s)

    yield answer("weaver.fig6.vs_muxserve", gain, "Against the better mode; tenths of a rate.")
    yield answer("weaver.fig6.cold_overhead", overhead, "Largest over the hot rates.")
