"""Throughput and latency over slow links, and planning time (Tessera, Fig. 11)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import step_kernels
from c2c.models import load_spec
from c2c.systems.tessera import load_pair, plan, ways, work_of
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.tessera.answering import answer
from experiments.tessera.arrivals import TRACE, poisson, source
from experiments.tessera.pairs_online import capacity_rps, latency_s
from experiments.tessera.planner import STEPS, PlannerSettings, measure
from experiments.tessera.workloads import GPT_OSS, workload

__all__ = ["compute"]

PAIR: Final = "a100_l40s"
_GBITS: Final = (200, 100, 50, 25)
_LIGHT: Final = 0.1  # share of the A100's own capacity
_REQUESTS: Final = {"quick": 300, "full": 1500}
_KERNELS: Final = {"quick": (200, 1000), "full": (200, 500, 1000, 1500)}
_GAP: Final = {"quick": 0.06, "full": 0.01}  # the solver is slow at slow links


@figure("tessera.fig11", title="Tessera, Fig. 11: slow links, time to plan",
        draw="tessera.draw_network", needs=SYSTEMS, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return throughput and latency at light load by link, and seconds of the planner."""
    pair = load_pair(PAIR)
    rows = []
    base = capacity_rps(PAIR)
    arrivals = poisson(context, _LIGHT * base, _REQUESTS[context.profile])
    alone_s = latency_s(PAIR, "left", arrivals)
    for k, gbits in enumerate(_GBITS):
        gbps = gbits / 8
        found = ways(
            workload(GPT_OSS), pair.gpus, gbps=gbps, latency_s=pair.wire.latency_s,
            gap=_GAP[context.profile],
        )  # fmt: skip
        offline = {way.name: way.requests_per_s for way in found}
        rows.append(
            {
                "gbits": gbits,
                "offline": offline["kernels"] / offline["left"],
                "replicas": offline["replicas"] / offline["left"],
                "online_ms": 1e3 * latency_s(PAIR, "light", arrivals, gbps),
                "alone_ms": 1e3 * alone_s,
            }
        )
        if context.progress:
            context.progress(k + 1, len(_GBITS) + 1)
    times = [
        row
        for count in _KERNELS[context.profile]
        for row in measure(PlannerSettings(), count, steps=("decode",))
    ]
    fastest, slowest = rows[0], rows[-1]
    return Computed(
        tables={"network": pa.Table.from_pylist(rows), "planner": pa.Table.from_pylist(times)},
        results=(*_of_links(fastest, slowest), *_of_planner(times)),
        caption=(
            "Left: offline throughput by link rate, relative to the A100 alone. Middle: latency a "
            "token at light load by link rate. Right: CPU seconds to plan a decode step by "
            "kernels; diamonds: the paper."
        ),
        assumptions=(
            "The model is GPT-oss 20B on A100 + L40s.",
            f"The light load is {_LIGHT:g} of the A100's capacity, with lengths of "
            f"{source(context)}.",
            "Planning uses HiGHS on this machine; the paper's planning uses Gurobi on another one.",
        ),
    )


def _of_links(fastest: dict[str, Any], slowest: dict[str, Any]) -> tuple[Any, ...]:
    anchor = f"Two GPUs apart need no link: {fastest['replicas']:.2f} of the A100 alone."
    latency = slowest["online_ms"]
    return (
        answer("fig11a.offline_drop", 100 * (1 - slowest["offline"] / fastest["offline"]), anchor),
        answer(
            "fig11a.online_vs_a100",
            {"tessera@25Gbps": bool(latency < slowest["alone_ms"])},
            f"{latency:.3f} against {slowest['alone_ms']:.3f} ms a token.",
        ),
        answer("fig11a.degenerate", _cuts_without_a_link(), "The latency policy, no link at all."),
    )


def _cuts_without_a_link() -> int:
    pair = load_pair(PAIR)
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
