import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.metrics import (
    PERCENTILES,
    attainment,
    goodput_rps,
    meets_tpot,
    meets_ttft,
    percentiles,
    span_s,
    tpot_s,
    ttft_s,
)

seconds = st.floats(0, 1e6)


def test_definitions_on_one_request() -> None:
    arrival, first, finished, out = (np.array([v]) for v in (10.0, 10.5, 12.5, 11))
    assert ttft_s(arrival, first) == [0.5]
    assert tpot_s(first, finished, out) == pytest.approx([0.2])


def test_one_output_token_has_no_tpot_and_meets_the_target() -> None:
    t = np.array([1.0, 1.0])
    tpot = tpot_s(t, t, np.array([1, 1]))
    assert np.isnan(tpot).all()
    met = meets_tpot(tpot, 0.1, np.array([1, 1]), np.array([True, False]))
    assert met.tolist() == [True, False]


def test_a_target_met_exactly_is_met() -> None:
    assert meets_ttft(np.array([1.0, 1.0000001, np.nan]), 1.0).tolist() == [True, False, False]


def test_nothing_at_all() -> None:
    none = np.zeros(0)
    assert span_s(none, none) == 0.0
    assert goodput_rps(none.astype(bool), 0.0) == 0.0
    assert np.isnan(attainment(none.astype(bool)))
    assert all(np.isnan(v) for v in percentiles(none).values())


@given(st.lists(seconds, min_size=1, max_size=50))
def test_percentiles_are_ordered_and_inside(values: list[float]) -> None:
    v = np.array(values)
    p = percentiles(v.copy())
    assert v.min() <= p["p50"] <= p["p95"] <= p["p99"] <= v.max()
    assert [p[f"p{at:g}"] for at in PERCENTILES] == np.percentile(v, PERCENTILES).tolist()


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_goodput_never_exceeds_throughput(rows: list[tuple[float, float]], slo: float) -> None:
    arrival = np.array([a for a, _ in rows])
    ttft = np.array([t for _, t in rows])
    finished = arrival + ttft
    span = span_s(arrival, finished)
    assert span >= 0
    met = meets_ttft(ttft, slo)
    if span > 0:
        assert goodput_rps(met, span) <= len(rows) / span * (1 + 1e-12)
