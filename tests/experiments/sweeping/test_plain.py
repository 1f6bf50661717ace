"""`-m` of commands whose settings are one dataclass: points in turn, one table of all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.table import Table

from experiments.papers.tessera.ways import main as plan_tessera
from experiments.papers.weaver.plan import main as plan_weaver
from experiments.plain_settings import Ran, run_settings


@dataclass
class Made:
    """Settings.

    Attributes:
      models: names.
      share: a number.
      write: file.
    """

    models: list[str] = field(default_factory=lambda: ["a"])
    share: float = 0.5
    write: str | None = None


def swept(*arguments: str) -> tuple[int, list[Made]]:
    seen: list[Made] = []

    def work(settings: Made) -> Ran:
        seen.append(settings)
        table = Table("model", "share")
        for model in settings.models:
            table.add_row(model, f"{settings.share:g}")
        return Ran(table, status=int(settings.share > 1))

    return run_settings(Made, arguments, work), seen


def test_each_point_runs_and_one_table_has_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    status, seen = swept("-m", "share=0.25,2", "models=[random:1,b],[c]", "write=x.json")
    assert status == 1  # of the worst point
    assert [(s.models, s.share) for s in seen] == [
        (models, share) for share in (0.25, 2.0) for models in (["random:1", "b"], ["c"])
    ]
    assert [s.write for s in seen] == [f"x_{k}.json" for k in range(4)]
    told = capsys.readouterr().out.split("all points")[1]
    rows = [line.split() for line in told.splitlines() if line.strip()][2:]
    assert rows[0] == ["0.25", "[random:1,", "b]", "random:1", "0.25"]
    assert len(rows) == 2 * (2 + 1)


def test_one_value_is_one_run_without_another_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, seen = swept("-m", "share=1", "write=x.json")
    assert (status, len(seen)) == (0, 1)
    assert "all points" not in capsys.readouterr().out


def test_all_points_are_read_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_weaver(["-m", "ratio=0.3,7", "nodes=[]"]) == 2
    told = capsys.readouterr()
    assert told.err == "error: ratio=7.0: expected a share in [0, 1].\n"
    assert not told.out


def test_points_of_a_benchmark_have_folders_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["model=llama-3-3b", "pairs=[[a100_80,l40s]]", "prompts=1", "gap=0.05"]
    assert plan_tessera(["-m", f"out={tmp_path / 'run'}", "gbps=1,25", *given]) == 0
    kernels = [
        next(row["requests_per_s"] for row in rows if row["way"] == "kernels")
        for k in (0, 1)
        for rows in [json.loads((tmp_path / f"run_{k}" / "ways.json").read_text("utf-8"))["rows"]]
    ]
    assert kernels[0] < kernels[1]
    assert "all points" in capsys.readouterr().out
