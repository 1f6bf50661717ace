"""Find a fleet's capacity within its targets: largest rate, most models or smallest fleet.

    c2c capacity slo.ttft_s=1 slo.attainment=0.99 workload=poisson catalog=dense6
    c2c capacity capacity.of=models system=c2cserve_plus workload=gentd26
    c2c capacity capacity.of=superchips workload=file workload.path=trace.csv

Settings are those of `c2c simulate`, and

    capacity.of=rate          rate (requests a second, or the trace's speed), models, superchips
    capacity.seeds=[0,1,2]    seeds, for the mean with 95 % confidence
    capacity.tolerance=0.01   relative tolerance of a rate
    capacity.workers=null     number of processes; null: one a core

A value meets the targets if `slo.attainment` of the requests meet both and no queue grows without
end. The same command resumes a stopped search. The answer is a folder in `out=`, or `folder=`: a
table, a figure, answer.json, settings and provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from c2c.config import RunSetup, build, load
from c2c.ranges import In
from c2c.runs import NOT_INPUTS, RunDir, progress_bar
from experiments.answers.capacity import Capacity, Tried, find_capacity, tried_table
from experiments.answers.capacity_answer import answer_line, answer_of, caution
from experiments.answers.command import answer_folder, answering, own_settings, refuse_seed
from experiments.answers.points import needs_compiling
from experiments.answers.quantity import Quantity, quantity_of
from experiments.children import workers_of
from experiments.simulation.execute import CODE
from experiments.simulation.report import console, print_setup
from experiments.tables import print_line

__all__ = ["CapacitySettings", "main"]

OUT = "runs/capacity"
PACKAGES = (*CODE, "experiments.answers", "experiments.figures.capacity")
NAMES = ("capacity.parquet", "answer.json", "capacity.png", "capacity.svg")


@dataclass
class CapacitySettings:
    """Settings of the search, as in the module's docstring."""

    of: str = "rate"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    tolerance: Annotated[float, In("(0, 1)", "a share")] = 0.01
    workers: int | None = None


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status, 2 for invalid settings."""
    return answering(_answer, arguments, str(__doc__))


def _answer(arguments: list[str], folder: str | None) -> int:
    options, overrides = own_settings(CapacitySettings, "capacity", arguments)
    workers = workers_of(options.workers, "capacity.workers")
    refuse_seed("capacity", options.seeds, overrides)
    setup = build(load([f"out={OUT}", f"seed={options.seeds[0]}", *overrides], folder=folder))
    quantity = quantity_of(options.of, setup)
    settings = {k: v for k, v in setup.settings.items() if k not in NOT_INPUTS and k != "seed"}
    if setup.plan is not None:  # planned once for all runs
        settings["mig"] = dict(load([f"mig={setup.plan.mig}"]).mig)
    serving, out = setup.serving, console()
    points = Path(setup.settings["out"]).expanduser() / "points"
    names = (
        options.of, serving.system.name,
        *(f"{part.platform.name}_{part.layout}" for part in serving.parts),
        setup.settings["workload"]["name"],
    )  # fmt: skip
    with answer_folder(
        "capacity", options, setup, names, packages=PACKAGES, files=NAMES
    ) as (run, where, before):  # fmt: skip
        if before:
            for line in filter(None, (before["answer"], before["note"])):
                print_line(out, line)
            print(f"already answered: {where}")
            return 0
        print_setup(out, setup)
        settings |= {
            "out": str(points), "folder": None, "overwrite": False, "objective": None,
            "resume": setup.settings["resume"], "figures": False, "timeline": {"rows": 0},
        }  # fmt: skip
        capacity = _searched(setup, settings, quantity, options, workers, out)
        _write(run, setup, capacity)
    print_line(out, answer_line(capacity, setup), "bold")
    if note := caution(capacity, setup):
        print_line(out, note)
    print(f"written: {where} (runs in {points})")
    return 0


def _searched(
    setup: RunSetup, settings: Mapping[str, Any], quantity: Quantity, options: CapacitySettings,
    workers: int, out: Console,
) -> Capacity:  # fmt: skip
    most = {"rate": "largest rate", "models": "most models", "superchips": "smallest fleet"}
    print(
        f"searching the {most[quantity.name]} with "
        f"{100 * setup.settings['slo']['attainment']:g} % of the requests on target; "
        f"seeds: {len(options.seeds)}, processes: {workers}"
    )
    if needs_compiling(setup):
        out.print("compiling the event loop, once on this machine: about 20 s ...")
    done = 0

    with progress_bar("runs") as advance:

        def on_point(one: Tried) -> None:
            nonlocal done
            done += 1
            advance(done)
            share = (one.point.summary.get("attainment") or {}).get("both")
            shown = one.point.error or f"{100 * (share or 0.0):.2f} % on target"
            why = f", bottleneck: {one.binds}" if one.binds else ""
            print(
                f"  seed {one.seed}: {one.value:.4g} {quantity.unit}: {shown}{why}"
                f"{' (complete already)' if one.point.was_there else ''}",
                flush=True,
            )

        return find_capacity(
            setup, settings, quantity, seeds=options.seeds, tolerance=options.tolerance,
            workers=workers, on_point=on_point,
        )  # fmt: skip


def _write(run: RunDir, setup: RunSetup, capacity: Capacity) -> None:
    from experiments.figures.capacity import draw_capacity
    from experiments.figures.style import look

    table = tried_table(capacity)
    answer = answer_of(capacity, setup)
    run.write_table("capacity", table)
    run.write_json("answer", answer)
    if setup.settings["figures"] is False:
        return
    interval = None
    if (middle := capacity.interval) is not None:
        half = middle.half or 0.0
        interval = (middle.mean, middle.mean - half, middle.mean + half)
    serving = setup.serving
    caption = (
        f"{answer['answer'][0].upper()}{answer['answer'][1:]}. Simulated, link variant "
        f"'{serving.link_variant}'. Points: runs, filled if the targets were met; band: 95 % "
        "confidence over seeds."
    )
    with look():
        figure = draw_capacity(
            table, quantity=capacity.quantity.name, unit=capacity.quantity.unit,
            goal=setup.settings["slo"]["attainment"], best=interval,
            title=f"Capacity of {serving.system.name} on {serving.platform.name}", caption=caption,
        )  # fmt: skip
        run.write_figure("capacity", figure)
