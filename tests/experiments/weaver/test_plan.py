"""The command that prints cuts."""

from __future__ import annotations

import pytest

from c2c.systems.weaver import expected_stall
from experiments.papers.weaver.plan import PlanSettings, cuts, main, pair_of, starts


def test_ours_is_best_by_its_own_measure() -> None:
    settings = PlanSettings(node="l40s_pcie", batch=90)
    pair = pair_of(settings)
    found = cuts(settings, pair)
    costs = {
        name: pair.layers * expected_stall(cut.lengths, pair.slack_s)
        + settings.weight * sum(cut.lengths)
        for name, cut in found.items()
        if cut is not None and not name.startswith("printed")  # whose splits cost nothing
    }
    assert min(costs, key=costs.__getitem__) == "ours"
    assert costs["ours"] < costs["guarded, iteration"] < costs["whole"]


def test_the_threshold_of_a_layer_splits_nothing_and_that_of_an_iteration_small_batches() -> None:
    rows = list(
        starts(PlanSettings(nodes=["a100_40_nvlink"], ratios=[0.0, 0.45], batches=[16, 90, 231]))
    )
    assert [r["ratio"] for r in rows] == [0.45] * 3  # nothing is away at 0
    assert all(r["layer"] == r["operator"] == 0 for r in rows)
    assert all(36e-6 < r["stall_s"] < 83e-6 for r in rows)
    small, middle, large = (r["iteration"] for r in rows)
    assert small > middle > large == 0


def test_the_command_prints_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node=l40s_pcie", "nodes=[l40s_pcie]", "ratios=[0.6]", "batches=[16]"]) == 0
    said = capsys.readouterr().out
    for words in ("K ", "N ", "slack", "operators of the receiver", "plans", "ours", "splits of"):
        assert words in said
    assert main(["ratio=1", "nodes=[]"]) == 0
    assert "does not end" in capsys.readouterr().out  # slack is below 0
    assert main(["ratio=0", "nodes=[]"]) == 0
    assert "ours" not in capsys.readouterr().out
