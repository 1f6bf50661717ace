"""Fig. 7(a): control by the CPU, by the GPU, and with operator cuts, on L40S."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from c2c.systems.weaver.times import fitted
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.weaver.two_models import SAID, TRACE, Found, Served, served

__all__ = ["Ablation", "compute", "variants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Experiment of Fig. 7(a): the pair."""

    pair: Served


@figure("weaver.fig7", title="WEAVER, Fig. 7(a): control and cuts", experiment=Ablation,
        draw=".drawing.draw_ablation", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: Ablation) -> Computed:
    """Return TPOT of both models by variant."""
    base = replace(experiment.pair, seed=context.seeds[0], traces=context.traces)
    cases = variants(base)
    rows = [{"variant": name, **asdict(one)} for name, one in cases.items()]

    def answers(*, ablation_rate: float = base.hot_rps, **reading: Any) -> Iterator[Result]:
        return _results(replace(base, hot_rps=ablation_rate, **reading))

    able = SAID | {"ablation_rate"}
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={"variants": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        finding=(
            f"Control by the GPU cuts hot TPOT {cases['cpu'].hot_s / cases['gpu'].hot_s:.1f} times;"
            f" cutting operators changes it by "
            f"{100 * (cases['splitting'].hot_s / cases['gpu'].hot_s - 1):+.0f} %, our cut by "
            f"{100 * (cases['ours'].hot_s / cases['gpu'].hot_s - 1):+.0f} %"
        ),
        caption=("Bars: TPOT of the hot and cold model by control and cut; diamonds: the paper."),
        assumptions=(
            f"Node: {base.node}. Lengths: {base.lengths}.",
            "Each model has a GPU of its own in the variant apart.",
            "The CPU or the GPU controls tasks in the variants cpu and gpu, without cuts.",
            "Algorithm 1 cuts operators in the variant splitting, our rule in the variant ours.",
            f"The hot model has {base.hot_rps:g} requests/s, the cold one {base.cold_rps:g} "
            "request/s.",
            f"{base.ratio:.0%} of the hot sequences are away.",
            "The CPU issues 3.8 ms of the cold model's kernels ahead, fitted to the printed 175 "
            "ms (in-sample).",
            "Algorithm 1 splits operators if the stalls of an iteration exceed 5 % of it.",
            "Our cut weighs a second of the cold model's step by 0.1.",
        ),
    )


def variants(base: Served) -> dict[str, Found]:
    """Return the ablation's variants, and our cut; `apart`: a GPU each."""
    return {name: _variant(base, name) for name in ("apart", "cpu", "gpu", "splitting", "ours")}


def _variant(base: Served, name: str) -> Found:
    changes: dict[str, dict[str, Any]] = {
        "apart": {"way": "dedicated"}, "cpu": {"ahead_s": fitted()["ahead_s"]},
        "gpu": {"cut": "none"}, "splitting": {}, "ours": {"cut": "best"},
    }  # fmt: skip
    return served(replace(base, **changes[name]))


def _results(base: Served) -> Iterator[Result]:
    def hot_ms(name: str) -> float:
        return 1e3 * _variant(base, name).hot_s

    def cold_ms(name: str) -> float:
        return 1e3 * _variant(base, name).cold_s

    def more_ms() -> float:
        return cold_ms("splitting") - cold_ms("cpu")

    yield answer("weaver.fig7a.cpu_control", lambda: hot_ms("cpu"), "Fitted.", sample="in-sample")
    yield _answer("gpu_control", lambda: hot_ms("cpu") / hot_ms("gpu"),
                  "The CPU's 175 ms is fitted.")  # fmt: skip
    yield _answer("gpu_control_cold", lambda: cold_ms("gpu") - cold_ms("cpu"),
                  "Polls after each operator.")  # fmt: skip
    yield _answer("op_splitting", lambda: 100 * (1 - hot_ms("splitting") / hot_ms("gpu")),
                  "By iteration.")  # fmt: skip
    yield _answer("op_splitting_cold", lambda: cold_ms("splitting") - cold_ms("gpu"), "")
    yield _answer("total_cold", more_ms, "Against the CPU's control.")
    yield _answer("total_cold_relative", lambda: 100 * more_ms() / cold_ms("cpu"),
                  "Against the CPU's control.")  # fmt: skip


def _answer(name: str, ours: Callable[[], float], note: str) -> Result:
    return answer(f"weaver.fig7a.{name}", ours, note)
