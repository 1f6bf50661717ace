"""The report has a figure's table and assumptions, and no cell breaks the page."""

from __future__ import annotations

from pathlib import Path

from experiments.report import report_html

PROVENANCE = {"git": {"commit": "0" * 40}}


def page(out: Path, **more: object) -> str:
    (out / "one").mkdir(exist_ok=True)
    (out / "one" / "one_bare.webp").write_bytes(b"picture")
    figure = {"name": "one", "title": "One", "caption": "caption", **more}
    return report_html(out, [figure], [], PROVENANCE, profile="quick", results=out / "absent")


def test_the_table_of_a_figure(tmp_path: Path) -> None:
    found = page(tmp_path, report=[["system", "TTFT"], ["a <b>", "0.1"], ["c", "0.2"]])
    table = found[found.index("<summary>Numbers") : found.index("<h2 id='claims'")]
    assert "<th>system</th><th>TTFT</th>" in table
    assert "<td>a &lt;b&gt;</td><td>0.1</td>" in table
    assert table.count("<tr>") == 3


def test_a_figure_without_one(tmp_path: Path) -> None:
    assert "<summary>Numbers" not in page(tmp_path)
    assert "<summary>Numbers" not in page(tmp_path, report=[])


def test_the_assumptions_of_a_figure(tmp_path: Path) -> None:
    found = page(tmp_path, assumptions=["TTFT < 1 s.", "One seed."])
    assert "<summary>Assumptions" in found
    assert found.count("<li>TTFT &lt; 1 s.</li><li>One seed.</li>") == 1
    assert "<summary>Assumptions" not in page(tmp_path)
