"""Throughput and latency over slow links, and planning time (Tessera, Fig. 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from c2c.cost.kernel_graph import step_kernels
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.ranges import AboveZero, BelowOne, Count
from c2c.systems.tessera import load_pair, plan, ways, work_of
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.arrivals import TRACE, poisson, source
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.pairs_online import capacity_rps, latency_s
from experiments.papers.tessera.planner import STEPS, PlannerSettings, measure
from experiments.papers.tessera.workloads import GPT_OSS, gpus_of, workload

__all__ = ["Links", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Experiment of Fig. 11; see `conf/experiment/tessera/fig11.yaml`."""

    pair: str
    gbits: tuple[AboveZero, ...]
    load: AboveZero
    requests: Count
    gap: BelowOne
    kernels: tuple[Count, ...]

    def __post_init__(self) -> None:
        for name in ("gbits", "kernels"):
            if not getattr(self, name):
                raise SettingError(f"experiment.{name}", (), "at least one number")


@figure("tessera.fig11", title="Tessera, Fig. 11: slow links, time to plan", experiment=Links,
        draw=".drawing.draw_network", needs=SYSTEMS, traces=(TRACE,))  # fmt: skip
def compute(context: Context, experiment: Links) -> Computed:
    """Return throughput and latency at light load by link, and planner seconds."""
    name, count = experiment.pair, len(experiment.gbits)
    pair = load_pair(name)
    rows = []
    base = capacity_rps(name)
    arrivals = poisson(context, experiment.load * base, experiment.requests)
    alone_s = latency_s(name, "left", arrivals)
    for k, gbits in enumerate(experiment.gbits):
        gbps = gbits / 8
        results = ways(
            workload(GPT_OSS), pair.gpus, gbps=gbps, latency_s=pair.wire.latency_s,
            gap=experiment.gap,
        )  # fmt: skip
        offline = {way.name: way.requests_per_s for way in results}
        rows.append(
            {
                "gbits": gbits,
                "offline": offline["kernels"] / offline["left"],
                "replicas": offline["replicas"] / offline["left"],
                "online_ms": 1e3 * latency_s(name, "light", arrivals, gbps),
                "alone_ms": 1e3 * alone_s,
            }
        )
        if context.progress:
            context.progress(k + 1, count + 1)
    times = [
        row
        for size in experiment.kernels
        for row in measure(PlannerSettings(), size, steps=("decode",))
    ]
    fastest, slowest = rows[0], rows[-1]
    return Computed(
        tables={"network": pa.Table.from_pylist(rows), "planner": pa.Table.from_pylist(times)},
        results=(*_of_links(fastest, slowest, name), *_of_planner(times)),
        finding=(
            f"From {fastest['gbits']:g} to {slowest['gbits']:g} Gbit/s throughput falls by "
            f"{100 * (1 - slowest['offline'] / fastest['offline']):.0f} %, and latency stays at "
            f"{slowest['online_ms'] / slowest['alone_ms']:.2f} of one GPU's"
        ),
        caption=(
            "Left: offline throughput by link rate, relative to the left GPU. Middle: latency a "
            "token at light load by link rate. Right: CPU seconds to plan a decode step by "
            "kernels; diamonds: the paper."
        ),
        assumptions=(
            f"The model is GPT-oss 20B on {' + '.join(gpus_of(name))}.",
            f"The light load is {experiment.load:g} of the left GPU's capacity, with lengths of "
            f"{source(context)}.",
            "Planning uses HiGHS on this machine; the paper's planning uses Gurobi on another one.",
        ),
    )


def _of_links(fastest: dict[str, Any], slowest: dict[str, Any], pair: str) -> tuple[Any, ...]:
    anchor = f"Two GPUs apart need no link: {fastest['replicas']:.2f} of the A100 alone."
    latency = slowest["online_ms"]
    return (
        answer("fig11a.offline_drop", 100 * (1 - slowest["offline"] / fastest["offline"]), anchor),
        answer(
            "fig11a.online_vs_a100",
            {"tessera@25Gbps": bool(latency < slowest["alone_ms"])},
            f"{latency:.3f} against {slowest['alone_ms']:.3f} ms a token.",
        ),
        answer(
            "fig11a.degenerate", _cuts_without_a_link(pair), "The latency policy, no link at all."
        ),
    )


def _cuts_without_a_link(name: str) -> int:
    pair = load_pair(name)
    work = work_of(workload(GPT_OSS).phases[1].kernels, pair.gpus)
    return plan(work, pair.link(0.0), "latency").cuts


def _of_planner(times: list[dict[str, Any]]) -> tuple[Any, ...]:
    milp = {
        r["kernels"]: r["seconds"]
        for r in times
        if (r["how"], r["policy"]) == ("milp", "throughput")
    }
    small, large = min(milp), min(milp, key=lambda n: abs(n - 1000))
    clock = "CPU seconds of this machine, HiGHS to 1%, blocks of layers first."
    spec = load_spec(GPT_OSS)
    kernels = step_kernels(spec, STEPS["decode"])
    one = measure(PlannerSettings(model=GPT_OSS), len(kernels), steps=("decode",))
    solved = next(r for r in one if (r["how"], r["policy"]) == ("milp", "throughput"))
    return (
        answer("fig11b.solve_200", milp[small], f"{small} kernels. {clock}"),
        answer("fig11b.solve_1000", milp[large], f"{large} kernels. {clock}"),
        answer("sec3b.kernels_typical", len(kernels), "Ours by shape; vLLM's fuse otherwise."),
        answer("sec3b.solve_time", 1e3 * solved["seconds"], clock),
    )
