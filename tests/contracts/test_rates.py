"""A GPU has one set of rates: the kernels' prediction and the cost model's calibration agree."""

from __future__ import annotations

import pytest

from c2c.cost import gemm_time, load_constants, machine_of
from c2c.hardware import link_gbps, load_platform, slices
from pallas_kernels.gemm import FAMILY, MACHINES, Gemm, Machine, plans, predict

PLATFORMS = {
    "NVIDIA H200": "h200_pcie5",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
}
RATES = (
    *("sm_count", "link_gbps", "hbm_gbps", "bf16_tflops", "l2_gbps", "l2_bytes"),
    *("link_latency_s", "tile_s", "launch_s"),
)


def machine(name: str, part: int = 0) -> Machine:
    platform = load_platform(name)
    capacity = link_gbps(platform.link, "datasheet")
    layout = platform.mig[part]
    return machine_of(
        slices(platform, layout)[0], load_constants(name), platform.link, link_gbps=capacity
    )


@pytest.mark.parametrize(("device", "platform"), PLATFORMS.items())
def test_rates_are_those_of_the_calibration(device: str, platform: str) -> None:
    ours, calibrated = MACHINES[device], machine(platform)
    for rate in RATES:
        assert getattr(ours, rate) == pytest.approx(getattr(calibrated, rate), rel=1e-3), rate


def test_a_slice_has_its_own_rates() -> None:
    whole, part = machine("gh200"), machine("gh200", part=-1)
    assert part.sm_count < whole.sm_count
    assert part.bf16_tflops < whole.bf16_tflops
    assert part.l2_bytes < whole.l2_bytes
    assert part.hbm_gbps < whole.hbm_gbps


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
