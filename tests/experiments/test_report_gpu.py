"""The report's part on GPUs says what was measured, and that nothing was where nothing was."""

from __future__ import annotations

from pathlib import Path

from experiments.gpu.report import findings
from experiments.report import report_html

PROVENANCE = {"git": {"commit": "0" * 40}}


def gpu_part(results: Path) -> str:
    page = report_html(Path("out"), [], [], PROVENANCE, profile="quick", results=results)
    return page[page.index("id='gpu'") : page.index("id='provenance'")]


def test_without_results_every_aim_is_unmeasured(tmp_path: Path) -> None:
    part = gpu_part(tmp_path / "absent")
    assert "no device yet" in part
    assert part.count("<td>unmeasured</td>") == len(findings({})) > 0


def test_a_device_without_rows_is_named_and_unmeasured(tmp_path: Path) -> None:
    (tmp_path / "nvidia_h200" / "link").mkdir(parents=True)
    part = gpu_part(tmp_path)
    assert "nvidia_h200" in part
    assert "no device yet" not in part
    assert "class='yes'" not in part
