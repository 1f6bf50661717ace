"""The runner: a lost child costs one row, a dead device ends the run, rows survive everything."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import DataError
from experiments.lab.gpu import runner
from experiments.lab.gpu.cases import LIMIT_S, LONG_S, Case
from experiments.lab.gpu.rows import Rows
from experiments.lab.gpu.runner import Outcome, look, run_cases
from experiments.lab.gpu.worker import Settings

SETTINGS = Settings(backend="reference", tiny=True, package="tests.experiments.gpu")


def cases(*whats: str) -> list[Case]:
    specs = [{"what": what, "number": number} for number, what in enumerate(whats)]
    return [Case(stage="faults", spec=spec) for spec in specs]


def run(todo: list[Case], path: Path, **more: Any) -> Outcome:
    given: dict[str, Any] = {"until": time.monotonic() + 300, "labels": {"run": "r"}} | more
    return run_cases(todo, Rows(path), SETTINGS, **given)


def outcomes(path: Path) -> list[str]:
    return [row.get("lost") or row["status"] for row in Rows(path).all]


def test_a_lost_child_costs_one_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whats = ("work", "crash", "work", "fail", "skip", "broken", "work")
    run(cases(*whats), path)
    expected = ["ok", "crashed", "ok", "failed", "skipped", "crashed", "ok"]
    assert outcomes(path) == expected
    rows = Rows(path).all
    assert rows[3]["reason"] == "ValueError: row 5: worst ratio 4.1"
    assert "exit status -11" in rows[1]["reason"]
    assert len({rows[i]["process"] for i in (0, 2, 6)}) == 3  # one for each loss


@pytest.mark.slow
def test_a_child_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    path, todo = tmp_path / "rows.jsonl", cases("work", "hang", "work")
    run([todo[0], replace(todo[1], limit_s=3.0), todo[2]], path)
    assert outcomes(path) == ["ok", "hung", "ok"]
    assert "killed at faults.py" in Rows(path).all[1]["reason"]


def test_a_group_that_keeps_losing_children_is_left(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert run(cases("crash", "crash", "crash", "work"), path).left == 1
    assert outcomes(path) == ["crashed", "crashed", "ok"]


def test_a_dead_device_ends_the_run_with_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    found = run(cases("work", "crash", "work"), path, alive=lambda: "no answer within 15 s")
    assert outcomes(path) == ["ok", "crashed"]
    assert "does not answer" in found.dead
    todo = [Case(stage="faults", spec={"what": "work", "compile": "crash"})]
    assert run(todo, tmp_path / "b.jsonl", alive=lambda: "no answer").dead


def test_a_dead_device_is_noticed_within_a_minute() -> None:
    assert max(LIMIT_S, LONG_S, runner.COMPILE_S) + runner.LOOK_S <= 60


def test_a_device_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(look("no such platform", 60.0), str)
    monkeypatch.setattr(runner, "_LOOK", "import time; time.sleep(600)  # {platform!r}")
    assert look("cpu", 0.5) == "no answer within 0 s"


def test_a_compiler_that_crashes_costs_no_case(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    todo = [Case(stage="faults", spec={"what": "work", "compile": "crash"})]
    run(todo, path)
    assert outcomes(path) == ["ok"]


def test_the_same_call_resumes(tmp_path: Path) -> None:
    path, todo = tmp_path / "rows.jsonl", cases("work", "fail", "work")
    run(todo[:2], path)
    first = Rows(path).all[0]["process"]
    assert dict(run(todo, path).counts) == {"ok": 1}
    assert Rows(path).all[0]["process"] == first
    assert dict(run(todo, path, retry_failed=True).counts) == {"failed": 1}
    assert sorted(outcomes(path)) == ["failed", "ok", "ok"]


@pytest.mark.slow
def test_the_end_of_the_time_is_no_fault_of_a_case(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    found = run(cases("hang", "work"), path, until=time.monotonic() + 5)
    assert (found.left, outcomes(path)) == (2, [])


def test_rows_survive_a_machine_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = Rows(path)
    rows.add_run({"device": "a GPU"})
    rows.add([{"case": "a", "status": "ok"}])
    for _ in range(2):
        rows.begin("b")
    with path.open("a") as file:
        file.write('{"rows": [{"case": "c", "sta')
    again = Rows(path)
    assert [row["case"] for row in again.all] == ["a"]
    assert again.finished() == {"a", "b"}  # b has ended the run twice
    assert path.read_text().endswith("\n")
    path.write_text(json.dumps({"case": "x"}) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        Rows(path)
