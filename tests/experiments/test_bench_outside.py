"""The benchmark of what a step takes outside its worker, over processes that wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench.outside import main


@pytest.mark.parametrize("argument", ["workers=[0]", "models=0", "step_s=0", "seconds=-1"])
def test_bad_settings_are_one_line(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument, f"out={tmp_path / 'bench'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert argument.split("=", maxsplit=1)[0] in line


@pytest.mark.slow
def test_all_workers_step_and_what_passes_between_steps_is_told(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    settings = ["workers=[1,2]", "models=3", "seconds=0.5", "repeats=1", "step_s=0.002"]
    assert main([*settings, f"out={out}"]) == 0
    rows = json.loads((out / "outside.json").read_text())["rows"]
    assert [row["workers"] for row in rows] == [1, 2]
    assert all(0 < row["plans"] <= row["steps"] for row in rows)
    assert all(row["p5_ms"] <= row["p50_ms"] <= row["p99_ms"] for row in rows)
