"""Phase arithmetic against a brute-force walk over single steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.simulator.works.phases import PHASE_DTYPE, advance, remaining_s, span_s, stop_at_boundary

seconds = st.floats(1e-4, 1.0)
slopes = st.one_of(st.just(0.0), st.floats(1e-9, 1e-2))
limits = st.one_of(st.just(0.0), st.floats(1e-4, 2.0))


def new_phase(base: float, slope: float, limit: float, steps: int) -> np.ndarray:
    phase = np.zeros(1, PHASE_DTYPE).view(np.recarray)
    phase[0].base_s, phase[0].slope_s, phase[0].limit_s = base, slope, limit
    phase[0].steps = steps
    return phase


def walk(base: float, slope: float, limit: float, first: int, count: int) -> float:
    return float(sum(max(base + slope * j, limit) for j in range(first, first + count)))


@given(seconds, slopes, limits, st.integers(0, 300), st.integers(0, 300))
def test_span_is_the_sum_of_its_steps(
    base: float, slope: float, limit: float, first: int, count: int
) -> None:
    expected = walk(base, slope, limit, first, count)
    assert span_s(base, slope, limit, first, count) == pytest.approx(expected, rel=1e-9)


@given(seconds, slopes, limits, st.integers(1, 200), st.floats(0.0, 0.999))
def test_advance_inverts_remaining(
    base: float, slope: float, limit: float, steps: int, share: float
) -> None:
    phase = new_phase(base, slope, limit, steps)
    whole = remaining_s(phase[0])
    advance(phase[0], whole * share)
    assert 0.0 <= phase[0].part < 1.0
    assert remaining_s(phase[0]) == pytest.approx(whole * (1.0 - share), rel=1e-6, abs=1e-9)
    # the step it stands in is the one the walk stands in
    before = walk(base, slope, limit, 0, int(phase[0].done))
    after = walk(base, slope, limit, 0, int(phase[0].done) + 1)
    assert before <= whole * share * (1 + 1e-9)
    assert whole * share <= after * (1 + 1e-9)


@given(
    seconds,
    slopes,
    st.integers(1, 100),
    st.lists(st.tuples(limits, st.floats(0.0, 0.4)), min_size=1, max_size=6),
)
def test_changing_the_share_conserves_work(
    base: float, slope: float, steps: int, changes: list[tuple[float, float]]
) -> None:
    """However often the share changes, the same number of steps is done in the end."""
    phase = new_phase(base, slope, 0.0, steps)
    now = 0.0
    for limit, part in changes:
        left = remaining_s(phase[0])
        advance(phase[0], now + left * part)
        now += left * part
        done = phase[0].done + phase[0].part
        phase[0].limit_s = limit
        assert phase[0].done + phase[0].part == done
    advance(phase[0], now + remaining_s(phase[0]))
    assert phase[0].done + phase[0].part == pytest.approx(steps, abs=1e-6)


@given(seconds, slopes, limits, st.integers(1, 50), st.floats(0.0, 1.0))
def test_stop_ends_at_the_next_boundary(
    base: float, slope: float, limit: float, steps: int, share: float
) -> None:
    phase = new_phase(base, slope, limit, steps)
    whole = remaining_s(phase[0])
    stop_at_boundary(phase[0], whole * share)
    assert 1 <= phase[0].steps <= steps
    left = remaining_s(phase[0])
    longest = max(base + slope * steps, limit)
    assert 0.0 <= left <= longest * (1 + 1e-9)
    boundary = walk(base, slope, limit, 0, int(phase[0].steps))
    assert whole * share + left == pytest.approx(boundary, rel=1e-6, abs=1e-9)
