"""Requests a second of every system of `conf/system`, each on its default catalog.

    c2c bench systems
    c2c bench systems systems=[moe_infinity,finemoe] requests=3000

The same command resumes a stopped measurement. Writes JSON and Parquet with provenance to a folder
in runs/bench; each run stays in `runs`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from omegaconf import DictConfig
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.config import build, config_dir, load, simulate
from c2c.errors import SettingError
from c2c.ranges import Count, Index
from c2c.runs import RunDir
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.simulation import execute

__all__ = ["SystemsSettings", "default_settings", "main", "measure", "systems"]

TARGET_RPS: Final = 1000.0
"""Planned requests a second of every system."""
FEW: Final = 20  # requests of the warm-up run, which compiles machine code


def systems() -> list[str]:
    """Return the names of all systems."""
    return sorted(path.stem for path in (config_dir() / "system").glob("*.yaml"))


@dataclass
class SystemsSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      systems: names of systems; empty: all.
      requests: of each run, at the rate of `workload=poisson`.
      seed: seed of the workload.
      runs: folder of the systems' own runs.
      again: whether to measure again systems with a run.
    """

    systems: list[str] = field(default_factory=list)
    requests: Count = 10_000
    seed: Index = 0
    runs: str = "runs/bench/systems"
    again: bool = False


def default_settings(system: str) -> list[str]:
    """Return a system's settings: catalog and number of chips."""
    overrides = [f"system={system}", "workload=poisson"]
    cfg = load(overrides)
    if cfg.system.experts.policy != "all_experts":
        overrides.append("catalog=moe")
    if cfg.system.one_each:
        overrides.append(f"superchips={len(load(overrides).catalog.models)}")
    return overrides


def measure(settings: SystemsSettings, system: str) -> dict[str, Any]:
    """Return a system's speed, from any run in `settings.runs`."""
    overrides = [*default_settings(system), f"seed={settings.seed}", "figures=false", "shards=1"]

    def of(requests: int) -> DictConfig:
        return load([*overrides, f"workload.requests={requests}", f"folder={folder}"])

    def compiles(_: bool) -> None:
        simulate(build(of(FEW)), compiled=True)

    folder = Path(settings.runs) / system
    cfg = of(settings.requests)
    cfg.resume, cfg.overwrite = not settings.again, True
    setup = build(cfg)
    outcome = execute(setup, before=compiles)
    speed = json.loads((outcome.folder / "speed.json").read_text(encoding="utf-8"))
    run = outcome.summary["run"]
    return {
        "system": system,
        "catalog": cfg.catalog.name,
        "chips": run["chips"],
        "instances": run["instances"],
        "requests": speed["requests"],
        "requests_per_s": speed["requests"] / speed["simulate_s"],
        "target_rps": TARGET_RPS,
        "events_s": speed["events_s"],
        "simulate_s": speed["simulate_s"],
        "steps": run["steps"],
        "walked": run["walked"],
        "finished": outcome.summary["finished"],
        "slo_attainment": outcome.summary["attainment"]["both"],
        "kept": outcome.skipped,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    title = f"requests/s of each system, goal {TARGET_RPS:,.0f}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    heads = ("system", "catalog", "slices", "requests", "requests/s", "of the goal", "walked",
             "us each", "SLO %")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right", no_wrap=True)
    for r in rows:
        table.add_row(
            r["system"] + (" (kept)" if r["kept"] else ""), r["catalog"], f"{r['instances']}",
            f"{r['requests']:,}", f"{r['requests_per_s']:,.0f}",
            f"{r['requests_per_s'] / r['target_rps']:.2g}", f"{r['walked'] / r['requests']:.1f}",
            f"{1e6 * r['events_s'] / r['walked']:.2f}", f"{100 * r['slo_attainment']:.1f}",
        )  # fmt: skip
    return table


def _check(settings: SystemsSettings) -> None:
    names = systems()
    for system in settings.systems:
        if system not in names:
            raise SettingError("systems", system, f"names of systems: {', '.join(names)}")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""

    def work(settings: SystemsSettings, folder: RunDir, out: Console) -> None:
        rows = []
        for system in settings.systems or systems():
            rows.append(measure(settings, system))
            out.print(f"  {system}: {rows[-1]['requests_per_s']:,.0f} requests/s")
        out.print(_table(rows))
        folder.write_json("systems", {"rows": rows})
        folder.write_table("systems", pa.Table.from_pylist(rows))

    return benchmark(
        SystemsSettings, arguments, work, check=_check, packages=("c2c",), name="systems"
    )
