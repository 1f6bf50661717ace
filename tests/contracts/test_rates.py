"""A GPU has one set of rates: the kernels' prediction and the cost model's calibration agree."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from c2c.cost import KernelTiles, gemm_time, gemm_traffic, kernel_link_gbps, load_constants
from c2c.hardware import Platform, link_gbps, load_platform, slices
from pallas_kernels.gemm import FAMILY, MACHINES, Gemm, Machine, plans, predict, prediction

PLATFORMS = {
    "NVIDIA H200": "h200_pcie5",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
}
RATES = (
    *("sm_count", "link_gbps", "hbm_gbps", "bf16_tflops", "l2_gbps", "l2_bytes"),
    *("link_latency_s", "tile_s", "launch_s"),
)
# Sustained share of a Hopper GPU's L2 peak: 9,780 of 10,138 GB/s.
# Source: RRZE-HPC/gpu-benches, gpu-l2-cache/h200.txt of 2024-04-03, median of 8 to 41 MB.
L2_EFFICIENCY = 0.9647


def machine(name: str, part: int = 0, platform: Platform | None = None) -> Machine:
    platform = platform or load_platform(name)
    capacity = link_gbps(platform.link, "datasheet")
    slice_, gpu = slices(platform, platform.mig[part])[0], platform.gpu
    chip = load_constants(name).on(slice_)
    assert gpu.l2_gbps is not None
    return Machine(
        device=slice_.name,
        sm_count=slice_.sm_count,
        link_gbps=float(kernel_link_gbps(slice_, chip, capacity)),
        hbm_gbps=slice_.hbm_gbps * chip.hbm_efficiency,
        bf16_tflops=slice_.bf16_tflops * chip.mma_efficiency,
        l2_gbps=gpu.l2_gbps * L2_EFFICIENCY * slice_.sm_count / gpu.sm_count,
        l2_bytes=float(slice_.l2_bytes),
        link_latency_s=platform.link.link_latency_s,
        tile_s=chip.asym_issue_s,
        launch_s=chip.launch_s,
        source="calibration; fixed costs assumed",
    )


@pytest.mark.parametrize(("device", "platform"), PLATFORMS.items())
def test_reads_by_sms_are_within_the_public_range(device: str, platform: str) -> None:
    link, ours = load_platform(platform).link, MACHINES[device]
    assert link.sm_read_low_gbps is not None
    assert link.sm_read_high_gbps is not None
    assert ours.copy_gbps is not None
    # SymGEMM's printed time gives the rate on a GH200, 0.2 % below the lowest measurement
    assert 0.998 * link.sm_read_low_gbps <= ours.link_gbps <= link.sm_read_high_gbps
    assert link.sm_read_high_gbps < ours.copy_gbps <= link_gbps(link, "measured") * 1.001


@pytest.mark.parametrize(("device", "platform"), PLATFORMS.items())
def test_rates_are_those_of_the_calibration(device: str, platform: str) -> None:
    ours, calibrated = MACHINES[device], machine(platform)
    for rate in RATES:
        assert getattr(ours, rate) == pytest.approx(getattr(calibrated, rate), rel=1e-3), rate


@pytest.mark.parametrize(
    ("part", "field", "rate"),
    [
        ("gpu", "sm_count", "sm_count"),
        ("gpu", "hbm_gbps", "hbm_gbps"),
        ("gpu", "bf16_tflops", "bf16_tflops"),
        ("gpu", "l2_gbps", "l2_gbps"),
        ("gpu", "l2_bytes", "l2_bytes"),
        ("link", "datasheet_gbps", "link_gbps"),
        ("link", "link_latency_s", "link_latency_s"),
    ],
)
def test_a_rate_that_only_the_chips_file_changes_is_noticed(
    part: str, field: str, rate: str
) -> None:
    """The positive control: none of the rates compared comes from where it is compared with."""
    platform = load_platform("gh200")
    of = getattr(platform, part)
    changed = replace(platform, **{part: replace(of, **{field: 2 * getattr(of, field)})})
    ours, other = MACHINES["NVIDIA GH200 480GB"], machine("gh200", platform=changed)
    assert getattr(other, rate) == pytest.approx(2 * getattr(ours, rate), rel=1e-3)


def test_a_slice_has_its_own_rates() -> None:
    whole, part = machine("gh200"), machine("gh200", part=-1)
    assert part.sm_count < whole.sm_count
    assert part.bf16_tflops < whole.bf16_tflops
    assert part.l2_bytes < whole.l2_bytes
    assert part.hbm_gbps < whole.hbm_gbps
    assert part.l2_gbps == pytest.approx(whole.l2_gbps * part.sm_count / whole.sm_count)


def test_both_models_agree_where_the_link_binds() -> None:
    """The paper's kernel and ours differ in partial sums and order, not in what the link takes."""
    platform, constants = load_platform("gh200"), load_constants("gh200")
    slice_ = slices(platform, platform.mig[0])[0]
    capacity = link_gbps(platform.link, "datasheet")
    config = FAMILY["256x128"]
    for m in (8, 256, 10240):
        gemm = Gemm(m=m, k=4096, n=16384)
        paper = gemm_time(
            m, gemm.n, gemm.k, 1.0, slice_=slice_, constants=constants, link_gbps=capacity
        ).time_s
        ours = predict(gemm, config, plans(gemm, config, 1.0), machine("gh200"))
        assert ours.bound == "link"
        assert float(ours.time_s) == pytest.approx(float(paper), rel=1e-3)


PAPER = importlib.import_module("c2c.cost.gemm_time")  # its function has its name in the package
RATES_OF_A_GPU = replace(MACHINES["NVIDIA GH200 480GB"].rates, stores_overlap=False)


def test_both_kernels_are_timed_by_one_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_stores(products_s: float, *_: object, **__: object) -> float:
        return 0.0 * products_s

    ours, gemm = MACHINES["NVIDIA GH200 480GB"], Gemm(m=10240, k=4096, n=16384)
    config = FAMILY["256x128"]
    traffic = gemm_traffic(
        gemm.m, gemm.n, gemm.k, 0.0, tiles=KernelTiles(), sm_count=132, l2_bytes=ours.l2_bytes
    )

    def both() -> list[float]:
        found = predict(gemm, config, plans(gemm, config, 0.0), ours)
        paper = PAPER.time_of(traffic, RATES_OF_A_GPU, sm_count=132)
        return [float(found.issue_s), float(paper.issue_s)]

    before = both()
    for module in (prediction, PAPER):
        monkeypatch.setattr(module, "busy_s", without_stores)
    assert all(after < whole for after, whole in zip(both(), before, strict=True))


def test_an_empty_gemm_takes_no_time_not_even_a_launch() -> None:
    traffic = gemm_traffic(
        np.array([0, 1]), 64, 64, 0.5, tiles=KernelTiles(), sm_count=4, l2_bytes=0
    )
    empty, one = PAPER.time_of(traffic, RATES_OF_A_GPU, sm_count=4).time_s
    assert empty == 0.0
    assert one > RATES_OF_A_GPU.launch_s
