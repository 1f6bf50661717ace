"""Max-min shares: the laws that define them, and compiled == interpreted."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from c2c.cost import max_min, max_min_rates
from c2c.errors import SettingError

demand_lists = st.lists(
    st.one_of(st.floats(0, 1e3), st.sampled_from([0.0, 1.0, 100.0, 327.0, 375.0])),
    min_size=1,
    max_size=16,
)
capacities = st.one_of(st.floats(0, 2e3), st.sampled_from([0.0, 375.0, 654.0]))

compiled = njit(max_min_rates)


@given(demand_lists, capacities)
def test_shares_are_feasible_and_waste_nothing(demands: list[float], capacity: float) -> None:
    rates = max_min(demands, capacity)
    assert (rates >= 0).all()
    assert (rates <= np.array(demands)).all()
    usable = min(capacity, sum(demands))
    assert rates.sum() == pytest.approx(usable, rel=1e-12, abs=1e-300)


@given(demand_lists, capacities)
def test_who_gets_less_than_asked_gets_at_least_as_much_as_any_other(
    demands: list[float], capacity: float
) -> None:
    rates = max_min(demands, capacity)
    for rate, demand in zip(rates, demands, strict=True):
        if rate < demand:
            assert rate >= rates.max()  # the bottleneck condition of max-min fairness


@given(demand_lists, capacities, st.floats(0, 1e3))
def test_more_capacity_never_hurts_and_more_demand_of_others_never_helps(
    demands: list[float], capacity: float, more: float
) -> None:
    rates = max_min(demands, capacity)
    slack = 1e-9 * (1 + capacity)
    assert (max_min(demands, capacity + more) >= rates - slack).all()
    raised = [demands[0] + more, *demands[1:]]
    after = max_min(raised, capacity)
    assert after[0] >= rates[0] - slack
    assert (after[1:] <= rates[1:] + slack).all()


@given(demand_lists, capacities, st.randoms())
def test_order_of_slices_does_not_matter(
    demands: list[float], capacity: float, rng: random.Random
) -> None:
    order = list(range(len(demands)))
    rng.shuffle(order)
    rates = max_min(demands, capacity)
    shuffled = max_min([demands[i] for i in order], capacity)
    np.testing.assert_array_equal(shuffled, rates[order])


@given(demand_lists, capacities)
def test_equal_demands_get_equal_shares(demands: list[float], capacity: float) -> None:
    rates = max_min(demands, capacity)
    for i, j in itertools.combinations(range(len(demands)), 2):
        if demands[i] == demands[j]:
            assert rates[i] == rates[j]


@settings(deadline=None)  # the first call compiles
@given(demand_lists, capacities)
def test_compiled_equals_interpreted_bit_for_bit(demands: list[float], capacity: float) -> None:
    wanted = np.array(demands)
    plain, native = np.empty_like(wanted), np.empty_like(wanted)
    max_min_rates(wanted, len(wanted), capacity, plain)
    compiled(wanted, len(wanted), capacity, native)
    assert plain.tobytes() == native.tobytes()


def test_worked_examples() -> None:
    np.testing.assert_array_equal(max_min([327, 327], 375), [187.5, 187.5])
    np.testing.assert_array_equal(max_min([50, 327, 10], 375), [50, 315, 10])
    np.testing.assert_array_equal(max_min([np.inf, np.inf, 5], 375), [185, 185, 5])
    np.testing.assert_array_equal(max_min([1, 2], 0), [0, 0])
    assert max_min([], 375).size == 0


@pytest.mark.parametrize(("demands", "capacity"), [([-1.0], 1.0), ([np.nan], 1.0), ([1.0], -1.0)])
def test_bad_input_names_the_field(demands: list[float], capacity: float) -> None:
    with pytest.raises(SettingError, match=r"demands|capacity"):
        max_min(demands, capacity)
