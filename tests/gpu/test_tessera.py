"""Tessera on the device: recording code and a split step leave what the step leaves.

The step is the fixture that the tests of `c2c.systems` use: PTX for an A100, which newer GPUs run.
Its kernels are launched by the driver in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from experiments.gpu.cases import Context, Row, Unmeasurable

pytest.importorskip("omegaconf", reason="c2c's configurations need it, kernels do not")
tessera: Any = pytest.importorskip("experiments.gpu.tessera")

pytestmark = [pytest.mark.gpu, pytest.mark.limit_s(60)]


def measured(what: str, **more: int | str) -> Row:
    try:
        return tessera.measure({"what": what, "rows": 0, **more}, Context(scale="tiny"))[-1]
    except Unmeasurable as why:
        pytest.skip(str(why))


def test_recording_code_writes_the_same_and_stays_within_its_slices() -> None:
    row = measured("recorded")
    assert row["equal"] == row["launches"]
    assert row["inside"] == row["happened"] > 300
    assert row["whole_slices"] > row["slices"] / 2


@pytest.mark.parametrize("apart", ["contexts", "streams"])
@pytest.mark.parametrize("cuts", [0, 1, 8, 40])
def test_a_split_step_is_equal_to_the_bit(cuts: int, apart: str) -> None:
    row = measured("split", cuts=cuts, apart=apart)
    assert row["equal"] == row["outputs"] == 3
    assert row["segments"] == cuts + 1 if cuts else row["segments"] > 3  # 0: the planner's


def test_every_kernel_of_a_step_has_a_time() -> None:
    assert measured("kernels")["kernels_s"] > 0
