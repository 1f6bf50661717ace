"""The benchmark of starts: its starts are real processes, its settings are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench.start import main
from tests.transformer.random_checkpoints import config_of, tensors_of, write


@pytest.mark.parametrize("argument", ["prompt=0", "repeats=0", "linear=[]", "seed=-1", "nope=1"])
def test_bad_settings_are_one_line(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument, f"out={tmp_path / 'bench'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert argument.split("=", maxsplit=1)[0] in line


def test_a_strategy_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"checkpoint={tmp_path}", "linear=[magic]", f"out={tmp_path / 'bench'}"]
    assert main(settings) == 2
    assert "magic" in capsys.readouterr().err


@pytest.mark.slow
def test_every_part_of_a_start_is_reported(tmp_path: Path) -> None:
    config = config_of("llama")
    checkpoint = write(tmp_path / "checkpoint", config, tensors_of(config))
    out = tmp_path / "bench"
    settings = [f"checkpoint={checkpoint}", "linear=[staged]", "repeats=1", f"out={out}"]
    assert main(settings) == 0
    rows = json.loads((out / "start.json").read_text())["rows"]
    assert [row["executables"] for row in rows] == ["compiled", "stored", "beside"]
    compiled, stored, beside = rows
    assert beside["loaded"] == stored["loaded"]  # those that a start runs, and no other
    assert not beside["compiles"]
    assert compiled["compiles"] > 0 == compiled["loaded"]
    assert stored["loaded"] > 0 == stored["compiles"]
    for row in rows:
        parts = row["ready_s"] + row["again_s"]
        assert parts == pytest.approx(row["first_token_s"])
        assert min(row[part] for part in ("import_s", "map_s", "ready_s", "again_s")) > 0
        assert row["over_own_bound"] >= 1.0  # nothing is faster than what it is made of
        (start,) = row["starts"]
        assert start["first_token_s"] == row["first_token_s"]
    assert len({row["starts"][0]["token"] for row in rows}) == 1
