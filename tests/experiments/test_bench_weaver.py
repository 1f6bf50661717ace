"""The benchmark of cuts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench.weaver import main
from tests.experiments.refused import is_refused


@pytest.mark.parametrize(
    "given", ["kernels=[0]", "kernels=[]", "share=0", "repeats=0", "seed=-1", "slack_us=.inf"]
)
def test_bad_settings_are_one_line(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_refused(main, given, f"error: {given.split('=', maxsplit=1)[0]}=", tmp_path, capsys)


def test_all_plans_are_timed(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    assert main(["kernels=[3,30]", "repeats=1", f"out={out}"]) == 0
    rows = json.loads((out / "weaver.json").read_text())["rows"]
    assert [(r["kernels"], r["plan"]) for r in rows] == [
        (n, plan) for n in (3, 30) for plan in ("printed", "guarded", "ours")
    ]
    assert all(0 <= r["stall"] <= 1 for r in rows)
