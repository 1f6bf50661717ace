"""`c2c plan tessera`: a row for each way, beside the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from c2c.systems.tessera import WAYS
from experiments.claims import claim
from experiments.papers.tessera.ways import main, published


def test_a_comparison_is_written(tmp_path: Path) -> None:
    given = ["model=llama-3-3b", "pairs=[[a100_80,l40s]]", "prompts=1", "gap=0.05"]
    assert main([f"out={tmp_path / 'run'}", *given]) == 0
    rows = json.loads((tmp_path / "run" / "ways.json").read_text("utf-8"))["rows"]
    assert [row["way"] for row in rows] == list(WAYS)
    assert rows[0]["relative"] == rows[0]["relative_for_price"] == 1
    assert sum(row["is_best"] for row in rows) == 1
    assert rows[1]["relative_for_price"] == pytest.approx(rows[1]["relative"] * 1.5)


def test_a_gpu_without_a_price_is_named_and_may_be_given_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["model=llama-3-3b", "pairs=[[gh200,l40s]]", "prompts=1", "gap=0.05"]
    rows = {}
    for name, more in (("free", []), ("priced", ["prices.gh200=4"])):
        assert main([f"out={tmp_path / name}", *given, *more]) == 0
        rows[name] = json.loads((tmp_path / name / "ways.json").read_text("utf-8"))["rows"]
        said = " ".join(capsys.readouterr().out.split())
        assert ("prices.gh200=..." in said) is (name == "free")
    for free, priced in zip(rows["free"], rows["priced"], strict=True):
        assert free["requests_per_s"] == priced["requests_per_s"]
        assert free["relative_for_price"] is None
        assert not free["is_best_for_price"]
    assert rows["priced"][1]["relative_for_price"] == pytest.approx(
        4 * rows["priced"][1]["relative"]
    )


def test_the_papers_column() -> None:
    pair = ("a100_80", "l40s")
    assert published(pair, "kernels") == claim("tessera.table3.a100_l40s.tessera").value
    # an A100 for 1.5 and an L40S for 1 that does 1.18 for its price
    assert published(pair, "replicas") == pytest.approx((1.5 + 1.18) / 2.5)
    assert published(pair, "limit") is None
    assert published(("l40s", "a100_80"), "kernels") is None
