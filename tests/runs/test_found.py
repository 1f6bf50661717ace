"""Run folders as a table: what differs, how each run ended, in types that programs like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from c2c.errors import SettingError
from c2c.runs import RunDir, collect, settings_columns
from experiments.collect import main

SUMMARY = {
    "requests": 3, "ttft_s": {"p99": 0.5}, "attainment": {"both": None},
    "models": {"a": {"requests": 3}}, "verdict": {"state": "overload", "binds": "link"},
}  # fmt: skip


def settings(**more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "system": {"name": "plain", "place": {"policy": "first"}},
        "workload": {"rate_rps": 1, "days": 3}, "seed": 0, "code": [], "out": "here",
    }  # fmt: skip
    return plain | more


def make(folder: Path, summary: dict[str, Any] | None = None, **more: Any) -> None:
    with RunDir.open(folder, settings(**more)) as run:
        run.write_json("summary", SUMMARY if summary is None else summary)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs of which one crashed, beside what is no simulated run."""
    other = {"name": "other", "turn": {"policy": "robin"}}
    make(tmp_path / "b", seed=1, out="elsewhere")
    make(tmp_path / "a", workload={"rate_rps": 2.5, "days": 3})
    make(tmp_path / "deeper" / "c", system=other, code=["x.py"])
    with pytest.raises(ZeroDivisionError), RunDir.open(tmp_path / "d", settings(seed=7)):
        1 / 0  # noqa: B018
    with RunDir.open(tmp_path / "figure", {"figure": "fig1"}) as figure:
        figure.write_json("figure", {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("seed: 3\n")
    make(tmp_path / ".sweeps" / "state")
    return tmp_path


def test_a_table_has_a_row_a_run_and_what_differs(runs: Path) -> None:
    table = collect(runs)
    rows = {row["run"]: row for row in table.to_pylist()}
    assert list(rows) == ["a", "b", "d", "deeper/c"]
    assert [row["status"] for row in rows.values()] == [
        "complete", "complete", "failed", "complete",
    ]  # fmt: skip
    assert rows["d"]["error"].startswith("ZeroDivisionError: ")
    assert [rows[n]["seed"] for n in rows] == [0, 1, 7, 0]
    assert [rows[n]["workload.rate_rps"] for n in rows] == [2.5, 1.0, 1.0, 1.0]
    assert rows["deeper/c"]["system.turn.policy"] == "robin"
    assert rows["deeper/c"]["system.place.policy"] is None
    assert rows["deeper/c"]["code"] == '["x.py"]'
    assert "workload.days" not in table.column_names  # all alike
    assert "out" not in table.column_names
    assert (rows["a"]["ttft_p99_s"], rows["a"]["requests"], rows["a"]["binds"]) == (0.5, 3, "link")
    assert rows["d"]["ttft_p99_s"] is None
    assert {str(table.schema.field(n).type) for n in ("seed", "requests")} == {"int64"}
    # A system's policies follow from its name.
    assert settings_columns(table) == ["system.name", "workload.rate_rps", "seed", "code"]


def test_what_became_of_runs_that_are_not_whole(tmp_path: Path) -> None:
    make(tmp_path / "lost")
    (tmp_path / "lost" / "summary.json").unlink()
    make(tmp_path / "killed", seed=1)
    (tmp_path / "killed" / "DONE").unlink()
    with RunDir.open(tmp_path / "now", settings(seed=2)) as run:
        run.write_json("summary", SUMMARY)
        table = collect(tmp_path)
    assert dict(zip(*(table.column(n).to_pylist() for n in ("run", "status")), strict=True)) == {
        "killed": "unfinished", "lost": "unfinished", "now": "running",
    }  # fmt: skip
    assert table.column("error").to_pylist()[1] == "summary.json was removed"


def test_a_run_by_itself_is_a_table_of_one_row(tmp_path: Path) -> None:
    make(tmp_path / "one")
    assert collect(tmp_path / "one").column("run").to_pylist() == ["one"]
    assert settings_columns(collect(tmp_path / "one")) == []


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SettingError, match="folder="):
            collect(folder)


def test_the_command_prints_and_writes_the_same_table(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs)]) == 0
    printed = capsys.readouterr().out
    for told in ("system", "rate_rps", " other ", " 2.5 ", " 7 ", "overload (link)"):
        assert told in printed
    assert "ZeroDivisionError: " in printed
    kept = pq.read_table(runs / "collected" / "runs.parquet")
    assert kept.equals(collect(runs))  # what it wrote is no run
    as_csv = pyarrow.csv.read_csv(runs / "collected" / "runs.csv")
    assert as_csv.column("ttft_p99_s").to_pylist() == kept.column("ttft_p99_s").to_pylist()
    make(runs / "e", seed=9)
    assert main([f"folder={runs}"]) == 0
    assert pq.read_table(runs / "collected" / "runs.parquet").num_rows == 5


def test_the_command_refuses_what_cannot_work(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "taken").mkdir()
    (runs / "taken" / "letter.txt").write_text("mine")
    for arguments, said in (
        (["nowhere"], "folder='nowhere': expected a folder of runs"),
        ([str(runs), "again"], "argument='again': expected one folder"),
        ([str(runs), "folder=x"], "expected one folder, given once"),
        ([str(runs), "int=x"], "expected a key among folder, into, overwrite"),
        ([str(runs), f"into={runs / 'taken'}"], "It holds letter.txt"),
    ):
        assert main(arguments) == 2
        said_by_it = capsys.readouterr().err
        assert said in said_by_it
        assert said_by_it.count("\n") == 1
    assert (runs / "taken" / "letter.txt").read_text() == "mine"
