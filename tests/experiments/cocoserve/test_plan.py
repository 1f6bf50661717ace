"""The command that prints plans of copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from c2c.systems.cocoserve import transitions
from experiments.papers.cocoserve.plan import (
    ALGORITHMS,
    PlanSettings,
    main,
    planned,
    problem_of,
    row_of,
)

FREE = [36.0, 20.0, 14.0, 9.0]


def test_plans_of_all_algorithms() -> None:
    problem = problem_of(PlanSettings(free_gib=FREE, gamma=0.1))
    rows = {name: row_of(problem, planned(problem, name)) for name in ALGORITHMS}
    room = sum(problem.room().values())
    assert {name: row["copies"] for name, row in rows.items()} == {
        name: 40 if name == "spread" else room for name in ALGORITHMS
    }
    for row in rows.values():
        assert row["counted"] <= rows["exact"]["counted"] * (1 + 1e-9)
        assert row["step_s"] >= rows["fastest"]["step_s"] * (1 - 1e-9)
        assert row["eq_4"] <= rows["runs"]["eq_4"] * (1 + 1e-9)
        # by Eq. 4 far more than by bytes read
        assert row["eq_4"] > 1.3 > 1.15 > row["step_gain"] > 1
    assert rows["printed"]["eq_4"] < rows["spread"]["eq_4"]


def test_the_literal_gamma_adds_nothing() -> None:
    problem = problem_of(PlanSettings())
    assert problem.gamma == pytest.approx(2.4375)
    assert transitions(planned(problem, "printed")) == 0


def test_a_model_over_four_gpus_has_room_for_few_copies() -> None:
    """70B leaves twelve layers of 80: Eq. 4's bound is 1.08."""
    settings = PlanSettings(model="llama-2-70b", over=4, memory_share=1.0, gamma=0.0)
    problem = problem_of(settings)
    found = {name: row_of(problem, planned(problem, name)) for name in ("spread", "runs", "exact")}
    for row in found.values():
        assert row["copies"] == 12
        assert row["eq_4"] == pytest.approx(160 / 148)
    assert found["exact"]["transitions"] == 6 < found["spread"]["transitions"]
    assert row_of(problem, problem.start)["step_gain"] == 1


def test_a_plan_is_written_and_taken_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "plan.json"
    told = f"free_gib={FREE}"
    assert main([told, "algorithms=[exact]", f"write={made}"]) == 0
    said = capsys.readouterr().out
    assert "replicate layer 0-29 from device 0 to 1: 18,150 MiB moved, 18,739 MiB taken" in said
    assert "device 1: weights 18,240 MiB" in said
    held = json.loads(made.read_text())
    assert [tuple(each)[:2] == (0, 1) for each in held["copies"]] == [True] * 30 + [False] * 10
    then = tmp_path / "then.json"
    operations = "operations=[evict 0-9 1, migrate 5 1 attention]"
    assert main([told, f"plan={made}", operations, f"write={then}"]) == 0
    said = capsys.readouterr().out
    held_rows = 4 * 7 + 6 * 5  # of 15, two copies and three
    evicted_mib = held_rows * 341 * 20_480 / 2**20
    assert f"evict layer 0-9 from device 1 to 0: {evicted_mib:,.0f} MiB moved, 0 MiB" in said
    assert "migrate attention 5 from device 0 to 1:" in said
    held = json.loads(then.read_text())
    assert held["parts"] == [[5, "attention", 1]]
    assert main([told, f"plan={then}", "algorithms=[runs]"]) == 0
