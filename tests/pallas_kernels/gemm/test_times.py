"""The formula of a launch's time, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pallas_kernels.gemm import Rates, times

RATES = Rates(
    sm_flops=1e12, link_bytes_s=1e11, hbm_bytes_s=1e12, sm_store_bytes_s=1e10, output_s=1e-6,
    launch_s=5e-6, stores_overlap=False,
)  # fmt: skip


def test_bytes_and_fixed_costs_of_outputs_add_up_or_overlap() -> None:
    outputs, nbytes = np.array([1, 8]), np.array([40_000, 40_000])  # 4 us to leave
    assert times.busy_s(2e-6, outputs, nbytes, RATES) == pytest.approx([7e-6, 14e-6])
    overlapping = replace(RATES, stores_overlap=True)
    assert times.busy_s(2e-6, outputs, nbytes, overlapping) == pytest.approx([6e-6, 10e-6])


def test_the_slowest_resource_is_the_time_and_gives_it_its_name() -> None:
    slow = {"link_s": 1.0, "hbm_s": 2.0, "l2_s": 3.0, "tensor_s": 1.0, "issue_s": 2.5}
    found = times.predicted(None, **slow, launch_s=0.5)
    assert (found.time_s, found.bound, found.sum_s) == (3.5, "l2", 8.5)
    several = times.predicted(None, **slow | {"issue_s": np.array([1.0, 8.0, 3.5])}, launch_s=0.5)
    assert list(several.bound) == ["l2", "issue", "issue"]
    assert list(several.time_s) == [3.5, 8.5, 4.0]
    assert times.predicted(
        None, **slow | {"tensor_s": 2.0, "issue_s": 4.0}, launch_s=0.0
    ).bound == ("tensor")
