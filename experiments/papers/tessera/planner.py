"""CPU seconds of the planner at real sizes, and gaps of its plans to the optimum.

    c2c bench planner                        # sizes of Fig. 11(b)
    c2c bench planner kernels=[452] gap=0.001 pair=[b200,h100_sxm]

The throughput policy is planned by the integer program, the latency policy also by the cut. The
paper's times are of Gurobi on another machine. Writes JSON with provenance to a folder in
runs/bench.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.cost.kernel_graph import Batch, TimedGpu, step_kernels, timed_gpus
from c2c.errors import SettingError
from c2c.models import ModelSpec, load_spec
from c2c.systems.tessera import (
    Gpus,
    Options,
    Plan,
    Policy,
    Work,
    blocks_of_layers,
    check_solver,
    plan,
    relaxation_s,
    work_of,
)
from experiments.benchmark import MeasurementSettings, benchmark, measure_each

__all__ = ["PlannerSettings", "main", "measure"]

STEPS = {
    "decode": Batch(rows=64, chunk=1, context=1084),
    "prefill": Batch(rows=4, chunk=1020, context=1020),
}
PAPER_S = {200: 0.07, 500: 0.02, 1000: 0.43, 1500: 1.0}  # fig11b.*, sec3b.solve_time; to compare


@dataclass
class PlannerSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      model: name of the model whose layers are repeated.
      pair: two GPUs of `conf/hardware`.
      gbps: rate of the link.
      latency_s: latency of a transfer.
      kernels: approximate numbers of kernels.
      gap: relative gap at which the solver may stop.
      time_limit_s: limit of one solve.
      blocks: number of blocks of layers.
    """

    model: str = "llama-3-8b"
    pair: list[str] = field(default_factory=lambda: ["a100_80", "l40s"])
    gbps: float = 25.0
    latency_s: float = 5e-6
    kernels: list[int] = field(default_factory=lambda: [200, 500, 1000, 1500])
    gap: float = 0.01
    time_limit_s: float = 60.0
    blocks: int = 4


def measure(
    settings: PlannerSettings, count: int, steps: Sequence[str] = tuple(STEPS)
) -> list[dict[str, Any]]:
    """Return a row a step and planning method, at about `count` kernels."""
    gpus = _gpus(settings)
    machines = Gpus.alike(settings.pair, gbps=settings.gbps, latency_s=settings.latency_s)
    spec = load_spec(settings.model)
    rows = []
    for name in steps:
        batch = STEPS[name]
        one = len(step_kernels(_with_layers(spec, 1), batch))
        layer_kernels = len(step_kernels(_with_layers(spec, 2), batch)) - one
        layers = max(1, round((count - one) / layer_kernels) + 1)
        kernels = step_kernels(_with_layers(spec, layers), batch)
        work = work_of(kernels, gpus)
        tied = blocks_of_layers(
            [k.layer for k in kernels], [k.kind for k in kernels], settings.blocks
        )
        ways: list[tuple[str, Policy, dict[str, Any]]] = [
            ("milp", "throughput", {"first": tied}),
            (f"milp, {settings.blocks} blocks", "throughput", {"tied": tied}),
            ("cut", "latency", {}),
            # an option without effect forces the integer program
            ("milp", "latency", {"options": Options(max_cuts=len(work.transfers))}),
        ]
        for how, policy, more in ways:
            begin = time.process_time()
            best_plan = plan(
                work, machines, policy, gap=settings.gap, time_limit_s=settings.time_limit_s, **more
            )
            rows.append(_row(work, name, how, time.process_time() - begin, best_plan))
    return rows


def _with_layers(spec: ModelSpec, layers: int) -> ModelSpec:
    return replace(
        spec, layers=layers, partial_window=0, partial_window_layers=0, window_layers=(),
        dense_layers=(),
    )  # fmt: skip


def _gpus(settings: PlannerSettings) -> tuple[TimedGpu, ...]:
    return timed_gpus(*settings.pair)


def _row(work: Work, step: str, how: str, seconds: float, result: Plan) -> dict[str, Any]:
    return {
        "kernels": len(work.names),
        "transfers": len(work.transfers),
        "step": step,
        "policy": result.policy,
        "how": how,
        "found_by": result.method,
        "seconds": seconds,
        "objective_s": result.objective_s,
        "gap": result.gap,
        "cuts": result.cuts,
        "best_single_s": float(work.times.sum(0).min()),
        "no_communication_s": relaxation_s(work),
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="the planner, CPU seconds of this machine", box=SIMPLE_HEAD)
    heads = ("kernels", "step", "policy", "how", "found by", "seconds", "gap", "of one GPU", "cuts")
    for head in heads:
        words = head in ("step", "policy", "how", "found by")
        table.add_column(head, justify="left" if words else "right")
    for r in rows:
        table.add_row(
            f"{r['kernels']}", r["step"], r["policy"], r["how"], r["found_by"],
            f"{r['seconds']:.3f}", f"{r['gap']:.2%}",
            f"{r['objective_s'] / r['best_single_s']:.3f}", f"{r['cuts']}",
        )  # fmt: skip
    paper = ", ".join(f"{seconds:g} s at {count}" for count, seconds in PAPER_S.items())
    table.caption = f"the paper, by Gurobi, throughput: {paper}"
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""

    def check(settings: PlannerSettings) -> None:
        if not settings.kernels:
            raise SettingError("kernels", settings.kernels, "at least one number")
        if len(settings.pair) != 2:
            raise SettingError("pair", settings.pair, "two names of chips in conf/hardware")
        Gpus.alike(settings.pair, gbps=settings.gbps, latency_s=settings.latency_s)
        spec = load_spec(settings.model)
        kernels = step_kernels(_with_layers(spec, 1), STEPS["decode"])
        work = work_of(kernels, _gpus(settings))
        blocks_of_layers([0], ["all"], settings.blocks)
        check_solver(settings.gap, settings.time_limit_s)
        for count in settings.kernels:
            if count < len(work.names):
                raise SettingError(
                    "kernels", count, f"at least {len(work.names)}, the kernels of one layer"
                )

    work = measure_each(
        "sizes", lambda s: s.kernels, measure, lambda _, rows: _table(rows), "planner"
    )
    return benchmark(
        PlannerSettings, arguments, work, check=check, name="planner",
        packages=("c2c", "experiments.papers.tessera"),
    )  # fmt: skip
