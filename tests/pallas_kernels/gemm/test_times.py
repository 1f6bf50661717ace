"""The formula of a launch's time, by hand, and that both kernels' predictions are made by it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pallas_kernels.gemm import (
    FAMILY,
    MACHINES,
    Gemm,
    Rates,
    plans,
    predict,
    prediction,
    published,
    times,
)

TILES = SimpleNamespace(
    cluster=1,
    sym=SimpleNamespace(tm=256, tn=128, tk=64, kc=64, stages=4),
    asym=SimpleNamespace(tm=256, tn=128, tk=64, kc=512, stages=2),
)
RATES = Rates(
    sm_flops=1e12,
    link_bytes_s=1e11,
    hbm_bytes_s=1e12,
    sm_store_bytes_s=1e10,
    output_s=1e-6,
    launch_s=5e-6,
    stores_overlap=False,
)


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


def test_both_kernels_are_timed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_stores(products_s: float, *_: object, **__: object) -> float:
        return 0.0 * products_s

    machine, gemm = MACHINES["NVIDIA GH200 480GB"], Gemm(m=10240, k=4096, n=16384)
    config = FAMILY["256x128"]
    traffic = published.gemm_traffic(
        gemm.m, gemm.n, gemm.k, 0.0, tiles=TILES, sm_count=132, l2_bytes=machine.l2_bytes
    )

    def both() -> list[float]:
        ours = predict(gemm, config, plans(gemm, config, 0.0), machine)
        paper = published.gemm_time(
            traffic, replace(machine.rates, stores_overlap=False), sm_count=132
        )
        return [float(ours.issue_s), float(paper.issue_s)]

    before = both()
    for module in (prediction, published):
        monkeypatch.setattr(module, "busy_s", without_stores)
    assert all(after < whole for after, whole in zip(both(), before, strict=True))


def test_an_empty_gemm_takes_no_time_not_even_a_launch() -> None:
    traffic = published.gemm_traffic(
        np.array([0, 1]), 64, 64, 0.5, tiles=TILES, sm_count=4, l2_bytes=0
    )
    empty, one = published.gemm_time(traffic, RATES, sm_count=4).time_s
    assert empty == 0.0
    assert one > RATES.launch_s
