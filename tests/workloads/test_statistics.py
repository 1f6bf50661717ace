"""Trace statistics against a direct computation, theory and the published numbers."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError
from c2c.workloads import RequestBlock, build_workload, concatenate, shared_dir, trace_statistics


def block(arrival_s: np.ndarray, model: np.ndarray) -> RequestBlock:
    ones = np.ones(arrival_s.size, np.int32)
    return RequestBlock(
        arrival_s=arrival_s.astype(np.float64),
        model=model.astype(np.int32),
        prompt_tokens=ones,
        output_tokens=ones,
    )


def split(whole: RequestBlock, cuts: list[int]) -> Iterator[RequestBlock]:
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for first, last in itertools.pairwise(edges):
        if last > first:
            yield whole.take(slice(first, last))


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 120),
    cuts=st.lists(st.integers(0, 120), max_size=5),
)
def test_equal_to_the_direct_computation(seed: int, count: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.integers(0, 40_000, count)) + 500.0
    model = rng.integers(0, 4, count)
    found = trace_statistics(
        split(block(arrival_s, model), cuts), list("abcd"), min_requests=2, windows_s=(60.0,)
    )
    since = arrival_s - arrival_s[0]
    hours = int(since[-1] // 3600) + 1
    assert (found.requests, found.hours) == (count, hours)
    assert found.hours_with_requests == len(set((since // 3600).tolist()))
    for i, name in enumerate(found.models):
        own = since["abcd".index(name) == model]
        hourly = np.bincount((own // 3600).astype(int), minlength=hours)
        assert found.requests_of[i] == own.size
        assert found.active_hour_fraction[i] == pytest.approx((hourly > 0).mean())
        assert found.hourly_cv[i] == pytest.approx(hourly.std() / hourly.mean(), abs=1e-6)
        gaps = np.diff(own)
        if gaps.size >= 2 and gaps.sum():
            assert found.gap_cv[i] == pytest.approx(gaps.std() / gaps.mean(), abs=1e-5)
        np.testing.assert_array_equal(found.hourly[i], hourly)
    counts = np.bincount((since // 60).astype(int))
    assert found.iod[60.0] == pytest.approx(counts.var() / counts.mean())
    assert found.share_of.sum() == pytest.approx(1)
    assert (np.diff(found.requests_of) <= 0).all()


def test_a_poisson_process_has_cv_and_iod_one() -> None:
    config = {"kind": "poisson", "requests": 200_000, "models": 4, "rate_rps": 2.0}
    workload = build_workload(config, list("abcd"), 3)
    found = trace_statistics(workload.blocks(), workload.models)
    assert found.rate_rps == pytest.approx(2.0, rel=0.01)
    assert found.aggregate_gap_cv == pytest.approx(1, abs=0.01)
    assert found.median_gap_cv == pytest.approx(1, abs=0.02)
    assert found.iod[1.0] == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(found.share_of, 0.25, atol=0.005)


def test_even_spacing_has_cv_zero() -> None:
    config = {"kind": "deterministic", "requests": 100, "models": 2, "rate_rps": 4.0}
    workload = build_workload(config, ["a", "b"], 0)
    found = trace_statistics(workload.blocks(), workload.models)
    assert found.aggregate_gap_cv == pytest.approx(0, abs=1e-6)
    assert concatenate(workload.blocks()).arrival_s[-1] == 99 / 4


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(DataError, match="no requests"):
        trace_statistics(iter([]), ["a"])


def test_gentd26_gives_the_published_numbers() -> None:
    """C2CServe Fig. 2 and section 2.1, and the figures the shared traces' README computed."""
    if not (shared_dir() / "traces" / "gentd26_requests.parquet").is_file():
        pytest.skip("shared traces absent; set C2C_SHARED")
    config = {
        "kind": "trace", "path": "gentd26_requests.parquet", "lengths": "fixed",
        "on_bad_row": "skip", "on_duplicate": "keep",
    }  # fmt: skip
    workload = build_workload(config, ["model"], 0)
    assert len(workload.models) == 86
    assert workload.description["bad_rows"] == {"missing_model": 25}
    assert workload.description["duplicates"] == 19
    found = trace_statistics(workload.blocks(), workload.models)
    assert found.requests == 26_798
    assert found.active_models == 59
    assert round(100 * found.median_idle_share) == 96
    assert round(100 * found.rare_hours_share) == 83
    assert (found.hours, found.hours_with_requests) == (553, 372)
    assert found.aggregate_gap_cv == pytest.approx(12.0, abs=0.05)
    assert found.iod[60.0] == pytest.approx(3.75, abs=0.005)
    assert found.median_gap_cv == pytest.approx(2.35, abs=0.005)
    assert [round(100 * share, 1) for share in found.top_shares.values()] == [30.7, 55.1, 86.7]
    # Bursts of models do not line up: together they are smoother than most alone.
    assert found.aggregate_hourly_cv < found.median_hourly_cv
