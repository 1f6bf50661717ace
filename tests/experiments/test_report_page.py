"""The report as a reader meets it: in Chromium, on a screen and on a telephone."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from experiments.claims import Result, fidelity_rows, load_claims
from experiments.report import report_html

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / ".venv-browser" / "bin" / "python"


def picture() -> bytes:
    held = io.BytesIO()
    figure = Figure(figsize=(9, 4))
    figure.subplots().plot([0, 1])
    figure.savefig(held, format="png")
    return held.getvalue()


@pytest.mark.soak
def test_the_report_reads_on_a_screen_and_on_a_telephone(tmp_path: Path) -> None:
    if not BROWSER.exists():
        pytest.skip("there is no browser: make browser")
    (tmp_path / "fig1").mkdir()
    (tmp_path / "fig1" / "fig1_bare.webp").write_bytes(picture())
    claims = load_claims()
    numbers = [c for c in claims.values() if isinstance(c.value, float)][:3]
    note = "a long note about_a_name_that_does_not_break_anywhere_by_itself " * 6
    results = [
        Result(claim_id=c.id, ours=c.value, unit=c.unit, sample="out-of-sample", note=note)
        for c in numbers
    ]
    shown = {"name": "fig1", "title": "Fig. 1: a title", "caption": "A caption. " * 30,
             "report": [["system", "TTFT"], ["c2cserve", "0.1"]]}  # fmt: skip
    page = report_html(
        tmp_path, [shown], fidelity_rows(claims, results, frozenset()),
        {"git": {"commit": "0" * 40}, "command": "x" * 300}, profile="quick",
    )  # fmt: skip
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    done = subprocess.run(
        [BROWSER, ROOT / ".ci" / "look_at.py", tmp_path / "index.html",
         "1280", "420"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["console"] == []
    for at in seen["widths"]:
        assert at["sideways"] == 0, at["width"]
        assert (at["images"], at["broken"]) == (2, 0)
        assert at["titles"].count("Fig. 1: a title") == 1
