"""The benchmark of plans of copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench.cocoserve import main


@pytest.mark.parametrize(
    "argument",
    ["layers=[0]", "layers=[]", "room=[2]", "room=[]", "repeats=0", "gamma=-1", "transition=-1"],
)
def test_bad_settings_are_one_line(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument, f"out={tmp_path / 'bench'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {argument.split('=', maxsplit=1)[0]}=")


def test_all_plans_are_timed(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    assert main(["layers=[6,12]", "repeats=1", f"out={out}"]) == 0
    rows = json.loads((out / "cocoserve.json").read_text())["rows"]
    assert [(r["layers"], r["plan"]) for r in rows] == [
        (n, plan) for n in (6, 12) for plan in ("printed", "singly", "runs", "exact")
    ]
    assert all(0 < r["of_best"] <= 1 + 1e-9 for r in rows)
    assert all(r["of_best"] == 1 for r in rows if r["plan"] == "exact")
