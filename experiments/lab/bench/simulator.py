"""Speed and memory of the simulator: requests, systems, instances, start-up.

    c2c bench simulator requests=3500000

Takes two minutes. The workload has the volume of C2CServe's trace: 89 models, three weeks, 3.5 M
requests. Writes JSON and Parquet with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import config_dir
from c2c.errors import SettingError
from c2c.ranges import Count, In, Index
from c2c.runs import RunDir
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import answer_of

__all__ = ["BenchSettings", "main", "measure_point", "measure_start"]

PAPER_REQUESTS = 3_500_000
# Sixteen is where 3.5 M requests in three weeks meet their targets in 99% of cases (eight: 95%).
# One slice serves the most popular model's bursts only if a second instance is allowed.
SCALE_OUT = "system/scale=at_outstanding"
# Settings that systems need beyond their file; slices that hold weights are not the smallest ones.
NEEDS: Final = {
    "c2cserve_letter": (SCALE_OUT,),
    "c2cserve": (SCALE_OUT,),
    "mig_resident": ("mig=4x24gb",),
    "dedicated": ("mig=4x24gb",),
}


@dataclass
class BenchSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      requests: of the largest point; two more have a tenth and a hundredth.
      superchips: Superchips of these points.
      fleets: Superchips of the points over instances, 7 instances and 16 models each.
      systems: systems with a tenth of the requests each, beside the first.
      seed: seed of the workload.
    """

    requests: Annotated[int, In("[1000, inf)")] = PAPER_REQUESTS
    superchips: int = 16
    fleets: list[Count] = field(default_factory=lambda: [1, 10, 100])
    systems: list[str] = field(
        default_factory=lambda: [
            "c2cserve_letter", "c2cserve", "c2cserve_plus", "serverlessllm",
            "serverlessllm_hybrid", "mig_resident", "dedicated",
            "layer_staging", "aegaeon", "aegaeon_hybrid",
        ]
    )  # fmt: skip
    seed: Index = 0


def measure_point(overrides: Sequence[str]) -> dict[str, Any]:
    """Run one point in its own process; return its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "experiments.lab.bench.point",
            *overrides,
            f"folder={folder}",
        ]
        point: dict[str, Any] = answer_of(
            command,
            lambda why: SettingError("point", " ".join(overrides), f"a run that works ({why})"),
            apart=False,
        )
    return point


def measure_start(overrides: Sequence[str] = ()) -> dict[str, float]:
    """Start `c2c simulate`; return seconds to a table, peak MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "experiments.lab.bench.memory",
            "figures=false",
            *overrides,
        ]
        started = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603
            [*command, f"folder={folder}"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first_s, line = float("nan"), ""
        for line in process.stdout:
            if "utilisation" in line:  # the table's second part: percentiles are printed
                first_s = time.perf_counter() - started
        process.stdout.close()
        if code := process.wait():
            raise SettingError("start", code, "exit status 0")
    return {"first_result_s": first_s, "peak_mb": float(line)}


def by_size(settings: BenchSettings) -> list[list[str]]:
    """Return the points over requests, at one rate."""
    return [
        [
            "catalog=fleet89",
            f"superchips={settings.superchips}",
            "system=c2cserve_letter",  # what earlier versions of this benchmark ran
            SCALE_OUT,
            f"seed={settings.seed}",
            f"workload.requests={n}",
            f"workload.compression={PAPER_REQUESTS / n}",
        ]
        for n in (settings.requests // 100, settings.requests // 10, settings.requests)
    ]


def by_system(settings: BenchSettings) -> list[list[str]]:
    """Return the points over systems, each with enough chips."""
    n = max(1, settings.requests // 10)
    return [
        [
            "catalog=fleet89",
            f"superchips={max(settings.superchips, 23 if system == 'dedicated' else 0)}",
            f"system={system}",
            *NEEDS.get(system, ()),
            f"seed={settings.seed}",
            f"workload.requests={n}",
            f"workload.compression={PAPER_REQUESTS / n}",
        ]
        for system in settings.systems
    ]


def by_instances(settings: BenchSettings) -> list[list[str]]:
    """Return the points over instances: models and load grow."""
    n = max(1, settings.requests // 10)
    # On one superchip a tenth of the volume in three weeks is 0.19 requests/s.
    return [
        [
            "catalog=dense16",
            f"catalog.models=[{{spec: llama-3-3b, copies: {8 * chips}, tpot_slo_s: 0.15}},"
            f"{{spec: llama-3-8b, copies: {8 * chips}, tpot_slo_s: 0.3}}]",
            f"superchips={chips}",
            "system=c2cserve_letter",  # what earlier versions of this benchmark ran
            SCALE_OUT,
            f"seed={settings.seed}",
            f"workload.models={16 * chips}",
            f"workload.requests={n}",
            f"workload.compression={float(chips)}",
        ]
        for chips in settings.fleets
    ]


def by_chips(settings: BenchSettings) -> list[list[str]]:
    """Return the points over instances with equal work each."""
    n = max(1, settings.requests // 10)
    return [
        [
            "workload=poisson",
            "workload.zipf_exponent=0",
            *(o for o in overrides if not o.startswith(("workload.requests", "workload.compr"))),
            f"workload.requests={n}",
            f"workload.rate_rps={0.19 * chips}",
        ]
        for chips, overrides in zip(settings.fleets, by_instances(settings), strict=True)
    ]


def by_cells(settings: BenchSettings) -> list[list[str]]:
    """Return `by_chips` in cells of one superchip."""
    return [
        [*point, f"cells={chips}", "shards=1"]
        for chips, point in zip(settings.fleets, by_chips(settings), strict=True)
    ]


def by_turns(settings: BenchSettings) -> list[list[str]]:
    """Return the points where engines share slices."""
    return [
        [
            "catalog=dense16",
            "superchips=1",
            "system=c2cserve_plus",
            f"seed={settings.seed}",
            "workload.models=16",
            f"workload.requests={max(1, settings.requests // 35)}",
            f"workload.compression={compression}",
        ]
        for compression in (8.0, 100.0, 200.0)
    ]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    heads = ("requests", "slices", "make s", "events s", "write s", "all s", "requests/s",
             "switches", "steps", "walked", "walked/s", "MB", "SLO %")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['requests']:,}",
            f"{row['instances']:,}",
            f"{row['generate_s']:.2f}",
            f"{row['events_s']:.2f}",
            f"{row['records_s']:.2f}",
            f"{row['total_s']:.2f}",
            f"{row['requests'] / row['simulate_s']:,.0f}",
            f"{row['switches']:,}",
            f"{row['steps'] / row['requests']:.0f}",
            f"{row['walked'] / row['requests']:.1f}",
            f"{row['walked'] / row['events_s']:,.0f}",
            f"{row['peak_mb']:.0f}",
            f"{100 * row['slo_attainment']:.1f}",
        )
    return table


def _systems_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="over systems, equal requests", title_justify="left", box=SIMPLE_HEAD,
        pad_edge=False, padding=0,
    )  # fmt: skip
    for head in ("system", "slices", "requests/s", "of the first", "walked", "walked/s", "SLO %"):
        table.add_column(head, justify="left" if head == "system" else "right", no_wrap=True)
    speeds = [row["requests"] / row["simulate_s"] for row in rows]
    for row, speed in zip(rows, speeds, strict=True):
        table.add_row(
            row["system"],
            f"{row['instances']:,}",
            f"{speed:,.0f}",
            f"{speed / speeds[0]:.0%}",
            f"{row['walked'] / row['requests']:.1f}",
            f"{row['walked'] / row['events_s']:,.0f}",
            f"{100 * row['slo_attainment']:.1f}",
        )
    return table


def _check(settings: BenchSettings) -> None:
    if settings.superchips < 3:
        raise SettingError(
            "superchips", settings.superchips, "at least 3, which hold the 89 models"
        )
    names = sorted(path.stem for path in (config_dir() / "system").glob("*.yaml"))
    for system in settings.systems:
        if system not in names:
            raise SettingError("systems", system, f"names of systems: {', '.join(names)}")
    if not settings.systems:
        raise SettingError("systems", [], "at least one system")
    if not settings.fleets:
        raise SettingError("fleets", [], "whole numbers above 0")


def run(settings: BenchSettings, out: Console) -> dict[str, Any]:
    """Measure all points, print tables and return measurements."""
    systems = by_system(settings)
    first_of = (by_size(settings)[0], by_instances(settings)[0], by_turns(settings)[0], *systems)
    for first in first_of:
        measure_point([*first, "workload.requests=100"])  # compiles what is not cached yet
    start = measure_start()
    out.print(
        f"start: first result of `c2c simulate` after "
        f"{start['first_result_s']:.2f} s, peak {start['peak_mb']:.0f} MB"
    )
    sizes = []
    for overrides in by_size(settings):
        sizes.append(measure_point(overrides))
        out.print(f"  {sizes[-1]['requests']:,} requests: {sizes[-1]['total_s']:.1f} s")
    out.print(_table(f"over requests, {settings.superchips} Superchips, 89 models", sizes))
    served = [measure_point(overrides) for overrides in systems]
    out.print(_systems_table(served))
    fleets = [measure_point(overrides) for overrides in by_instances(settings)]
    out.print(_table("over instances, with load and models in proportion", fleets))
    chips = [measure_point(overrides) for overrides in by_chips(settings)]
    out.print(_table("over instances, all models equally popular", chips))
    cells = [measure_point(overrides) for overrides in by_cells(settings)]
    out.print(
        _table("over instances, in cells of one Superchip, simulated one after another", cells)
    )
    turns = [measure_point(overrides) for overrides in by_turns(settings)]
    out.print(_table("engines that share slices in turns, few and many of them busy", turns))
    return {
        "start": start,
        "by_requests": sizes,
        "by_system": served,
        "by_instances": fleets,
        "by_chips": chips,
        "by_cells": cells,
        "by_turns": turns,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""

    def work(settings: BenchSettings, folder: RunDir, out: Console) -> None:
        results = run(settings, out)
        folder.write_json("simulator", results)
        rows = [
            {"over": over, **point}
            for over in (
                "by_requests",
                "by_system",
                "by_instances",
                "by_chips",
                "by_cells",
                "by_turns",
            )
            for point in results[over]
        ]
        folder.write_table("points", pa.Table.from_pylist(rows))

    return benchmark(
        BenchSettings, arguments, work, check=_check, packages=("c2c",), name="simulator"
    )
