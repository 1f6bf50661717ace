"""The errors that the project promises on public rows, held on its own copy of them."""

from __future__ import annotations

import pytest

from experiments.measured.chips import FITTED
from experiments.measured.compare import Comparison, Skipped, compare, errors_by, unseen_chips
from experiments.measured.errors import Error
from experiments.measured.rows import OWN, read_folder
from tests.tiers import tiered

# Median and 90th percentile, issue 11.
BOUNDS = {
    "gemm": (0.085, 0.20),
    "prefill attention": (0.15, 0.35),
    "decode attention": (0.15, 0.35),
    "moe": (0.15, None),
}
WIDE_GEMM_P90 = {"gb200": 0.30, "b200": 0.30, "l40s": 0.30}
# As if never measured, within twice the bounds; what is not stands here with why.
UNSEEN_BEYOND = {
    # Blackwell's attention takes a third of the other chips' time a sequence when it decodes, and
    # two thirds of it a token of a prompt; no datasheet says so.
    ("gb200", "decode attention"),
    ("gb200", "prefill attention"),
}
# Chips that nothing was fitted to, and what is beyond these medians stands here with why.
NEVER_FITTED = ("h200_pcie5", "rtx_pro_6000", "b200", "b300", "gb300")
NEVER_BEYOND = {
    # Memory that reaches 94 % of its datasheet's rate, where the fitted chips' reach 73 to 89.
    ("rtx_pro_6000", "gemm"): 0.125,
    # Blackwell Ultra takes half as long for exponentials, which bound its forerunner's prompts.
    ("b300", "prefill attention"): 0.26,
    ("gb300", "prefill attention"): 0.26,
}
NEVER = {"gemm": 0.09, "prefill attention": 0.15, "decode attention": 0.155, "moe": 0.15}
# As if never measured, by constants fitted to the other chips together: medians. That of GEMM
# takes minutes to compile (`jointly=true`).
LEFT_OUT = {
    ("a100_sxm", "prefill attention"): 0.09, ("h100_sxm", "prefill attention"): 0.20,
    ("gb200", "prefill attention"): 0.15, ("l40s", "prefill attention"): 0.18,
    ("a100_sxm", "decode attention"): 0.23, ("h100_sxm", "decode attention"): 0.14,
    # Blackwell decodes in a third of the other chips' time a sequence; no datasheet says so.
    ("gb200", "decode attention"): 0.28, ("l40s", "decode attention"): 0.15,
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[Comparison]:
    own, skipped = read_folder(OWN), Skipped()
    found = compare(own, own, skipped)
    assert not skipped.lines()
    return [row for row in found if row.is_bound]


def within(error: Error | None, median: float, p90: float | None) -> bool:
    assert error is not None
    return error.median <= median and (p90 is None or error.p90 <= p90)


@pytest.mark.parametrize("op", BOUNDS)
@pytest.mark.parametrize("chip", FITTED)
def test_errors_of_calls_are_within_the_bounds(rows: list[Comparison], chip: str, op: str) -> None:
    ours = [row for row in rows if (row.chip, row.op) == (chip, op)]
    if op == "moe" and chip not in ("a100_sxm", "h100_sxm"):
        assert not ours  # nobody published any
        return
    median, p90 = BOUNDS[op]
    if op == "gemm":
        p90 = WIDE_GEMM_P90.get(chip, p90)
    ((fitted, held),) = errors_by(ours, "op").values()
    assert within(fitted, median, p90), fitted
    assert within(held, median, p90), held
    assert held is not None
    assert held.count > 15


@pytest.mark.parametrize("op", NEVER)
@pytest.mark.parametrize("chip", NEVER_FITTED)
def test_errors_of_chips_that_nothing_was_fitted_to(
    rows: list[Comparison], chip: str, op: str
) -> None:
    ours = [row for row in rows if (row.chip, row.op) == (chip, op)]
    ((fitted, held),) = errors_by(ours, "op").values()
    assert fitted is None
    assert held is not None
    assert held.count > 20
    assert held.median <= NEVER_BEYOND.get((chip, op), NEVER[op]), held


def test_a_chip_nobody_measured_is_within_twice_the_bounds() -> None:
    found = unseen_chips(read_folder(OWN))
    assert {chip for chip, _ in found} == set(FITTED)
    beyond = set()
    for (chip, op), error in found.items():
        median, p90 = BOUNDS[op]
        if op == "gemm":
            p90 = WIDE_GEMM_P90.get(chip, p90)
        if not within(error, 2 * median, None if p90 is None else 2 * p90):
            beyond.add((chip, op))
    assert beyond <= UNSEEN_BEYOND


@pytest.mark.parametrize(
    "op", tiered(["prefill attention", "decode attention"], "decode attention")
)
def test_errors_of_each_chip_left_out_of_a_joint_fit(op: str) -> None:
    found = unseen_chips(read_folder(OWN), (op,), jointly=True)
    assert set(found) == {key for key in LEFT_OUT if key[1] == op}
    for key, error in found.items():
        assert within(error, LEFT_OUT[key], None), (key, error)
