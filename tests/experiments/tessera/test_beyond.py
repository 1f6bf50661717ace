"""`python -m experiments.tessera.beyond`: its four questions, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.tessera.beyond import main
from tests.experiments.refused import is_refused


def test_every_question_is_answered(tmp_path: Path) -> None:
    assert main([f"out={tmp_path / 'run'}", "model=llama-3-3b"]) == 0
    rows = json.loads((tmp_path / "run" / "beyond.json").read_text("utf-8"))["rows"]
    assert {row["question"] for row in rows} == {"links", "overlap", "slices", "drift"}
    times = {(r["step"], r["what"]): r["ms"] for r in rows if r["question"] == "slices"}
    for step in {step for step, _ in times}:
        assert times[step, "limit"] <= times[step, "kernels"] <= times[step, "apart"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("questions=[speed]", "questions='speed'"),
        ("questions=[]", "questions=[]"),
        ("pair=[a100_80]", "pair="),
        ("pair=[a100_80,gb200]", "gpu.fp32_tflops=None"),
        ("gbps=-1", "gpus.gbps"),
        ("layout=1x96gb", "layout="),
        ("layout=9x9gb", "9x9gb"),
        ("model=nobody", "nobody"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    given: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_refused(main, given, why, tmp_path, capsys)
