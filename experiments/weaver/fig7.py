"""Fig. 7(a): control by the CPU, by the GPU, and with operator cuts, on L40S."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa

from c2c.systems.weaver.times import fitted
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.weaver.served import L40S, SAID, TRACE, Found, Served, served

__all__ = ["HOT_RATE", "compute", "variants"]

# The largest whole rate at which 256 sequences of 232 tokens can have the printed TPOT of 175 ms.
HOT_RATE: Final = 6.0
CUTS: Final = ("none", "printed", "guarded", "best")


@figure("weaver.fig7", title="WEAVER, Fig. 7(a): control and cuts", draw="weaver.draw_ablation",
        needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TPOT of both models by variant."""
    base = Served(seed=context.seeds[0], traces=context.traces, node=L40S, hot_rate=HOT_RATE)
    rows = [{"variant": name, **asdict(one)} for name, one in variants(base).items()]

    def answers(*, ablation_rate: float = HOT_RATE, **reading: Any) -> Iterator[Result]:
        return _results(variants(replace(base, hot_rate=ablation_rate, **reading)))

    able = SAID | {"ablation_rate"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={"variants": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        caption=("Bars: TPOT of the hot and cold model by control and cut; diamonds: the paper."),
        assumptions=(
            "The node has L40S over PCIe, and lengths are Azure's.",
            "Each model has a GPU of its own in the variant apart.",
            "The CPU or the GPU controls tasks in the variants cpu and gpu, without cuts.",
            "Algorithm 1 cuts operators in the variant splitting, our rule in the variant ours.",
            f"The hot model has {HOT_RATE:g} requests/s, the cold one {base.cold_rate:g} "
            "request/s.",
            f"{base.ratio:.0%} of the hot sequences are away.",
            "The CPU issues 3.8 ms of the cold model's kernels ahead, fitted to the printed 175 "
            "ms (in-sample).",
            "Algorithm 1 splits operators if the stalls of an iteration exceed 5 % of it.",
            "Our cut weighs a second of the cold model's step by 0.1.",
        ),
    )


def variants(base: Served) -> dict[str, Found]:
    """Return the ablation's variants in order, and our cut; `apart`: each model on its own GPU."""
    gpu = replace(base, cut="none")
    return {
        "apart": served(replace(base, way="dedicated")),
        "cpu": served(replace(base, ahead_s=fitted()["ahead_s"])),
        "gpu": served(gpu),
        "splitting": served(base),
        "ours": served(replace(base, cut="best")),
    }


def _results(found: dict[str, Found]) -> Iterator[Result]:
    cold = {name: 1e3 * one.cold_s for name, one in found.items()}
    hot = {name: 1e3 * one.hot_s for name, one in found.items()}
    yield answer("weaver.fig7a.cpu_control", hot["cpu"], "Fitted.", sample="in-sample")
    yield _answer("gpu_control", hot["cpu"] / hot["gpu"], "The CPU's 175 ms is fitted.")
    yield _answer("gpu_control_cold", cold["gpu"] - cold["cpu"], "Polls after each operator.")
    yield _answer("op_splitting", 100 * (1 - hot["splitting"] / hot["gpu"]), "By iteration.")
    yield _answer("op_splitting_cold", cold["splitting"] - cold["gpu"], "")
    more = cold["splitting"] - cold["cpu"]
    yield _answer("total_cold", more, "Against the CPU's control.")
    yield _answer("total_cold_relative", 100 * more / cold["cpu"], "Against the CPU's control.")


def _answer(name: str, ours: float, note: str) -> Result:
    return answer(f"weaver.fig7a.{name}", ours, note)
