"""Fig. 6: long outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from c2c.ranges import AboveZero
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.weaver.two_models import LONG, SAID, Served, largest_rate, served

__all__ = ["LongOutputs", "compute"]

WAYS: Final = ("dedicated", "woven", "temporal", "spatial")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongOutputs:
    """Experiment of Fig. 6: the pair and hot rates."""

    pair: Served
    hot_rps: tuple[AboveZero, ...]


@figure("weaver.fig6", title="WEAVER, Fig. 6: long outputs", experiment=LongOutputs,
        draw=".drawing.draw_long", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: LongOutputs) -> Computed:
    """Return TPOT by rate and largest rates."""
    base = replace(experiment.pair, seed=context.seeds[0], traces=context.traces)
    rates = experiment.hot_rps
    largest = {way: largest_rate(replace(base, way=way)) for way in WAYS}
    rows = [
        {"way": way, "hot_rps": rate, **asdict(served(replace(base, way=way, hot_rps=rate)))}
        for way in WAYS
        for rate in rates
        if rate <= largest[way]
    ]

    def answers(**reading: Any) -> Iterator[Result]:
        return _results(replace(base, **reading), rates)

    results = under_readings(answers(), answers, SAID, everything=not context.quick)
    return Computed(
        tables={"curves": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        finding=(
            f"Long outputs: WEAVER carries {largest['woven']:.1f} hot requests/s, dedicated GPUs "
            f"{largest['dedicated']:.1f}, MuxServe "
            f"{max(largest['temporal'], largest['spatial']):.1f}"
        ),
        caption=(
            "Lines: TPOT of the hot model (left) and of the cold one (right) by the hot rate, "
            "answers of 1,024 tokens. Largest hot rates: "
            + ", ".join(f"{way} {rate:.1f}" for way, rate in largest.items())
            + " requests/s."
        ),
        assumptions=(
            f"Node: {base.node}. The cold model has {base.cold_rps:g} request/s.",
            "Every prompt has {:,} tokens, every answer {:,}.".format(*LONG)
            if base.lengths == "long"
            else f"Lengths: {base.lengths}.",
        ),
    )


def _results(base: Served, rates: Sequence[float]) -> Iterator[Result]:
    def gain() -> float:
        # At a few requests a second whole rates would be too coarse.
        tenth = {
            way: math.floor(10 * largest_rate(replace(base, way=way))) / 10 for way in WAYS[1:]
        }
        return 100 * (tenth["woven"] / max(tenth["temporal"], tenth["spatial"]) - 1)

    def overhead() -> float:
        woven = replace(base, way="woven")
        alone_s = served(replace(base, way="dedicated", hot_rps=rates[0])).cold_s
        each_s = [served(replace(woven, hot_rps=rate)).cold_s
                  for rate in rates if rate <= largest_rate(woven)]  # fmt: skip
        return 1e3 * (max(each_s) - alone_s)

    yield answer("weaver.fig6.vs_muxserve", gain, "Against the better mode; tenths of a rate.")
    yield answer("weaver.fig6.cold_overhead", overhead, "Largest over the hot rates.")
