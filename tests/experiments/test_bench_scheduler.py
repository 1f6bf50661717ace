"""The benchmark of the live loop's step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench.scheduler import main


@pytest.mark.parametrize("argument", ["requests=0", "rate_rps=0", "seed=-1", "nope=1"])
def test_bad_settings_are_one_line(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument, f"out={tmp_path / 'bench'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert argument.split("=", maxsplit=1)[0] in line


def test_all_ways_are_timed(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    assert main(["requests=6", f"out={out}"]) == 0
    rows = json.loads((out / "scheduler.json").read_text())["rows"]
    events = {(row["way"], row["event"]): row["events"] for row in rows}
    for event, least in (("Arrival", 6), ("StepEnd", 7)):
        assert events["compiled", event] == events["interpreted", event] >= least
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
