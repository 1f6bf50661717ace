"""`c2c bench planner`: rows for every step and way, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.papers.tessera.planner import main


def test_a_measurement_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path / 'run'}", "kernels=[30,60]", "gap=0.01"]) == 0
    rows = json.loads((tmp_path / "run" / "planner.json").read_text("utf-8"))["rows"]
    assert {(r["kernels"], r["step"], r["policy"]) for r in rows} == {
        (count, step, policy)
        for count in (32, 60)
        for step in ("decode", "prefill")
        for policy in ("throughput", "latency")
    }
    for row in rows:
        assert row["gap"] <= 0.01
        assert row["no_communication_s"] <= row["objective_s"] * (1 + 1e-9)
        assert row["objective_s"] <= row["best_single_s"] * (1 + 1e-9)
    # the cut is what the integer program finds
    by_way = {(r["kernels"], r["step"], r["how"], r["policy"]): r["objective_s"] for r in rows}
    for count in (32, 60):
        for step in ("decode", "prefill"):
            cut = by_way[count, step, "cut", "latency"]
            assert cut == pytest.approx(by_way[count, step, "milp", "latency"], rel=0.011)
    assert "the planner" in capsys.readouterr().out
