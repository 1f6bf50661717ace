"""The synthetic trace: exact, ordered, restartable, and with GenTD26's statistics."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.workloads import TraceStatistics, concatenate, trace_statistics
from c2c.workloads.synthetic import (
    SyntheticTrace,
    count_requests,
    plan_requests,
    popularity_shares,
    synthetic_blocks,
)


def measured(trace: SyntheticTrace, seed: int) -> TraceStatistics:
    return trace_statistics(synthetic_blocks(trace, seed), [str(i) for i in range(trace.models)])


@settings(max_examples=40, deadline=None)
@given(
    requests=st.integers(1, 3000), models=st.integers(1, 100), days=st.integers(1, 4),
    gap_cv=st.floats(0.1, 4), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_exactly_the_requests_asked_for_in_order(
    requests: int, models: int, days: int, gap_cv: float, seed: int
) -> None:
    trace = SyntheticTrace(requests=requests, models=models, days=days, gap_cv=gap_cv)
    plan = plan_requests(trace, seed)
    assert plan.sum() == requests
    whole = concatenate(synthetic_blocks(trace, seed))
    assert len(whole) == requests
    assert whole.arrival_s[0] == 0.0
    assert (np.diff(whole.arrival_s) >= 0).all()
    assert whole.arrival_s[-1] < days * 86_400
    # Hours hold what was planned for them, model by model.
    hour = (whole.arrival_s // 3600).astype(int)
    made = np.zeros_like(plan)
    np.add.at(made, (whole.model, hour), 1)
    np.testing.assert_array_equal(made, plan)


@pytest.mark.parametrize("requests", [35_000, 350_000])
@pytest.mark.parametrize("seed", [0, 7])
def test_published_activity_and_popularity(requests: int, seed: int) -> None:
    """C2CServe section 2.1 and Fig. 2: 59 active models, median idle 96%, 83% rarely active."""
    found = measured(SyntheticTrace(requests=requests), seed)
    assert len(found.models) == 89
    assert found.active_models == 59
    assert found.median_idle_share == pytest.approx(0.96, abs=0.01)
    assert found.rare_hours_share == pytest.approx(0.83, abs=0.02)
    assert found.active_hour_fraction.max() == pytest.approx(0.602, abs=0.01)
    top = [found.top_shares[k] for k in (1, 3, 10)]
    assert top == pytest.approx([0.307, 0.551, 0.867], abs=0.01)
    assert found.bursty_share >= 0.95
    assert found.aggregate_hourly_cv < found.median_hourly_cv
    assert found.span_s == pytest.approx(21 * 86_400, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_published_burstiness_at_the_size_of_gentd26(seed: int) -> None:
    found = measured(SyntheticTrace(requests=26_823), seed)
    assert found.median_gap_cv == pytest.approx(2.35, abs=0.25)
    assert found.bursty_share >= 0.95
    assert found.aggregate_gap_cv == pytest.approx(12, abs=3)
    assert found.hours_with_requests / found.hours == pytest.approx(0.67, abs=0.06)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    trace = SyntheticTrace(requests=5000, days=3)
    one, again, other = (concatenate(synthetic_blocks(trace, seed)) for seed in (4, 4, 5))
    assert one.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert one.model.tobytes() == again.model.tobytes()
    assert one.arrival_s.tobytes() != other.arrival_s.tobytes()


def test_causes_do_not_disturb_each_other() -> None:
    """A change of the gaps within hours leaves the plan of hours alone."""
    base = SyntheticTrace(requests=5000)
    plans = [plan_requests(SyntheticTrace(requests=5000, gap_cv=cv), 1) for cv in (0.5, 3.0)]
    np.testing.assert_array_equal(*plans)
    # Seeds are independent: activity of two seeds overlaps no more than chance has it.
    first, second = (plan_requests(base, seed)[0] > 0 for seed in (1, 2))
    assert 0.3 < (first == second).mean() < 0.9


def test_gap_cv_and_day_night_do_what_they_say() -> None:
    smooth, rough = (
        measured(SyntheticTrace(requests=200_000, days=2, gap_cv=cv), 0).iod[1.0] for cv in (0.5, 3)
    )
    assert rough > 2 * smooth
    flat, nightly = (
        measured(SyntheticTrace(requests=30_000, day_night=d), 0).hours_with_requests
        for d in (0.0, 4.0)
    )
    assert nightly < 0.8 * flat


def test_memory_is_a_day_not_the_trace() -> None:
    def peak_bytes(days: int) -> int:
        trace = SyntheticTrace(requests=20_000 * days, days=days)
        tracemalloc.start()
        for _ in synthetic_blocks(trace, 0):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(30) < 4 * peak_bytes(3)  # ten times the requests


def test_shares_fall_and_sum_to_one() -> None:
    for models in (1, 2, 20, 89, 300):
        shares = popularity_shares(SyntheticTrace(models=models))
        assert shares.sum() == pytest.approx(1)
        assert (np.diff(shares) < 0).all()


@pytest.mark.parametrize("requests", [50, 3000])
@pytest.mark.parametrize("seed", [0, 5])
def test_counting_without_making_them_all_gives_the_same(requests: int, seed: int) -> None:
    trace = SyntheticTrace(requests=requests, models=20, days=3)
    found, last_s = count_requests(trace, seed)
    blocks = list(synthetic_blocks(trace, seed))
    models = np.concatenate([b.model for b in blocks])
    codes, first_at, counts = np.unique(models, return_index=True, return_counts=True)
    order = np.argsort(first_at)
    assert list(found.items()) == list(
        zip(codes[order].tolist(), counts[order].tolist(), strict=True)
    )
    assert last_s == blocks[-1].arrival_s[-1]
