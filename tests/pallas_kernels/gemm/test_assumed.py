"""Terms of a predicted time that are without effect until they are measured or assumed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.gemm import FAMILY, MACHINES, Gemm, Machine, assumed, plans, predict
from pallas_kernels.gemm.machine import ASSUMED
from pallas_kernels.gemm.prediction import PACKET_BYTES, row_bytes

H100 = MACHINES["NVIDIA H100 80GB HBM3"]
ALPHAS = np.array([0.0, 0.5, 1.0])


@pytest.mark.parametrize("term", ASSUMED)
@given(
    name=st.sampled_from(list(FAMILY)),
    m=st.integers(1, 1280).map(lambda tiles: 8 * tiles),
    out=st.sampled_from(["bfloat16", "float32"]),
    layout=st.sampled_from(["kn", "nk", "tiles"]),
)
def test_no_assumption_shortens_a_time(term: str, name: str, m: int, out: str, layout: str) -> None:
    gemm = Gemm(m=m, k=4096, n=2048, out_dtype=out, w_layout=layout)
    config = FAMILY[name]
    plan = plans(gemm, config, ALPHAS)
    likely = replace(H100, **{term: ASSUMED[term]})
    before, after = (predict(gemm, config, plan, machine) for machine in (H100, likely))
    assert (after.time_s >= before.time_s).all()
    # SymGEMM has no sums
    same = after.time_s[-1] == before.time_s[-1]
    assert same or term == "link_header_bytes"


@pytest.mark.parametrize(
    ("layout", "name", "together"),
    [("kn", "64x64", 128), ("kn", "64x256", 512), ("nk", "64x256", 128), ("tiles", "64x64", 8192)],
)
def test_short_rows_have_more_headers(layout: str, name: str, together: int) -> None:
    gemm, config = Gemm(m=8, k=4096, n=16384, w_layout=layout), FAMILY[name]
    assert row_bytes(gemm, config) == together
    plan = plans(gemm, config, 1.0)
    plain, likely = (predict(gemm, config, plan, one).link_s for one in (H100, assumed(H100)))
    packet = min(together, 256)
    longer = (packet + 20) / packet / (276 / PACKET_BYTES)
    assert likely / plain == pytest.approx(longer)


def test_additions_and_waits_are_those_of_the_passes() -> None:
    # 132 SMs, 32 strips of 128 columns, 4 tiles of rows, 8 passes of K: 1 stored, 6 added, 1 read
    gemm = Gemm(m=1024, k=4096, n=4096)
    config = replace(FAMILY["256x128, kc 512"], stagger=False)
    plan = plans(gemm, config, 0.0)
    found = predict(gemm, config, plan, H100)
    tile = 256 * 128 * 4
    assert found.traffic.added_bytes == 6 * 4 * 32 * tile
    assert found.traffic.asym_cta_added_bytes == 6 * 4 * tile
    assert found.traffic.asym_cta_sum_waits == 7 + 4 * 8  # a warpgroup has 8 pieces of a tile
    slow = predict(gemm, config, plan, replace(H100, add_share=0.5))
    assert slow.l2_s - found.l2_s == pytest.approx(found.traffic.added_bytes / (H100.l2_gbps * 1e9))
    late = predict(gemm, config, plan, replace(H100, sums_latency_s=1e-6))
    assert late.issue_s - found.issue_s == pytest.approx(39e-6)
    whole = predict(replace(gemm, out_dtype="float32"), config, plan, H100).traffic
    assert whole.added_bytes == 7 * 4 * 32 * tile  # the first pass is O's store
    assert whole.asym_cta_sum_waits == 7


def test_what_was_measured_is_not_assumed_again() -> None:
    known = replace(H100, add_share=0.8)
    likely = assumed(known)
    assert likely.add_share == 0.8
    assert likely.source.startswith("assumed: link_header_bytes, sums_latency_s; else ")
    assert assumed(likely) == likely
    rates = {field.name for field in fields(Machine)}
    assert set(ASSUMED) <= rates
