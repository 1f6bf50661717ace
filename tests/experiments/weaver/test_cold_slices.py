"""A hot model over cold slices: memory, limits and the closed form at its ends."""

from __future__ import annotations

import pytest

from c2c.models import kv_bytes_per_token, weight_bytes
from experiments.figure import Context, figures
from experiments.papers.weaver import cold_slices

CONTEXT = Context(profile="quick", link_variant="measured", seeds=(0,))
EXPERIMENT: cold_slices.ColdSlices = figures()["weaver.cold_slices"].settings(CONTEXT)


@pytest.fixture(scope="module")
def chip() -> cold_slices._Chip:
    return cold_slices._chip(CONTEXT, EXPERIMENT, "4x24gb")


def test_with_none_away_it_is_the_hot_model_alone(chip: cold_slices._Chip) -> None:
    for load in (0.0, 1.0):
        row = cold_slices._row(chip, EXPERIMENT, 3, load, "none", 0.0)
        assert (row["away"], row["stall_s"], row["taken"]) == (0, 0.0, 0.0)
        pair = cold_slices._pair(chip, EXPERIMENT, 3, 0.0, row["rows"])
        assert row["step_s"] == pair.iteration_s


@pytest.mark.parametrize("receivers", [1, 3])
@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.9])
def test_no_slice_holds_more_than_its_memory(
    chip: cold_slices._Chip, receivers: int, ratio: float
) -> None:
    row = cold_slices._row(chip, EXPERIMENT, receivers, 0.5, "best", ratio)
    each = EXPERIMENT.context * kv_bytes_per_token(chip.spec)
    hot = weight_bytes(chip.spec) + (row["rows"] - row["away"]) * each
    assert hot <= chip.hot.gpu.hbm_bytes
    assert row["away"] / receivers * each <= chip.cold[0].gpu.hbm_bytes
    assert abs(row["away"] - ratio * row["rows"]) <= receivers


def test_an_idle_receiver_answers_at_once_and_cuts_help_a_busy_one(chip: cold_slices._Chip) -> None:
    idle, busy, cut = (
        cold_slices._row(chip, EXPERIMENT, 3, load, how, 0.6)
        for load, how in ((0.0, "none"), (1.0, "none"), (1.0, "best"))
    )
    late = idle["away_s"] + idle["wire_s"] - idle["local_s"]
    assert idle["stall_s"] == pytest.approx(max(0.0, late))
    assert idle["stall_s"] <= cut["stall_s"] < busy["stall_s"]
    # An operator that waits for the link is met in proportion to its seconds.
    assert busy["stall_s"] < busy["longest_op_s"]
