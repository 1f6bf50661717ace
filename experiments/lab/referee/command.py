"""Run the referee: `make referee`, or `c2c bench referee scenarios=[light,busy]`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from c2c.errors import DataError, unknown_name
from c2c.ranges import AboveZero, Count, Index
from c2c.runs import RunDir, progress_bar
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.lab.referee import aisimulate, blis, ours, vidur
from experiments.lab.referee.page import as_page, times_of
from experiments.lab.referee.scenario import SCENARIOS, Requests, Scenario, draw, write_trace

__all__ = ["SIMULATORS", "RefereeSettings", "main"]

SIMULATORS = (ours, aisimulate, vidur, blis)  # modules with NAME, refuses and run


@dataclass
class RefereeSettings(MeasurementSettings):
    """Settings of the referee, as key=value on the command line.

    Attributes:
      scenarios: names of scenarios; empty: all.
      seed: of arrivals and lengths.
      turns: runs of each simulator, of which the quickest counts.
      limit_s: longest run.
    """

    scenarios: list[str] = field(default_factory=list)
    seed: Index = 0
    turns: Count = 2
    limit_s: AboveZero = 600.0


def _check(settings: RefereeSettings) -> None:
    names = [scenario.name for scenario in SCENARIOS]
    for name in settings.scenarios:
        if name not in names:
            raise unknown_name("scenarios", name, names)


def _rows(settings: RefereeSettings, scenario: Scenario, folder: Path) -> list[dict[str, Any]]:
    requests, trace = draw(scenario, settings.seed), folder / f"{scenario.name}.jsonl"
    write_trace(scenario, requests, trace)
    return [_row(settings, scenario, simulator, requests, trace) for simulator in SIMULATORS]


def _row(
    settings: RefereeSettings, scenario: Scenario, simulator: Any, requests: Requests, trace: Path
) -> dict[str, Any]:
    row: dict[str, Any] = {"scenario": scenario.name, "simulator": simulator.NAME}
    if refused := simulator.refuses(scenario):
        return row | {"refused": refused}
    turns = []
    for _ in range(settings.turns):
        try:
            turns.append(simulator.run(scenario, requests, trace, limit_s=settings.limit_s))
        except DataError as error:
            return row | {"failed": str(error)}
    best = min(turns, key=lambda ran: ran.cpu_s)
    return row | times_of(best, requests)


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def main(arguments: Sequence[str]) -> int:
    """Run the scenarios; return the exit status."""

    def work(settings: RefereeSettings, run: RunDir, out: Console) -> None:
        chosen = [s for s in SCENARIOS if not settings.scenarios or s.name in settings.scenarios]
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder, progress_bar("scenarios", len(chosen)) as bar:
            for k, scenario in enumerate(chosen):
                rows += _rows(settings, scenario, Path(folder))
                run.write_table("referee", _table(rows))  # results so far
                bar(k + 1)
        page = as_page(chosen, rows)
        run.write_text("referee.md", page)
        run.write_json("referee", {"rows": rows})
        out.print(page, markup=False, soft_wrap=True)

    return benchmark(
        RefereeSettings, arguments, work, check=_check,
        packages=("c2c", "experiments.lab.referee"), name="referee",
    )  # fmt: skip
