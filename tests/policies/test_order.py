"""Order of requests that wait: the policies, and the loop's queues under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from c2c.policies import FirstCome, LeastSlack, ShortestFirst, rank
from c2c.serving import FAIL_NONE, ServingSetup
from c2c.workloads import RequestBlock
from tests.contracts.systems import prepared
from tests.simulator.worlds import in_both_forms, random_requests, requests, simulate
from tests.tiers import tiered

# An example takes a second: as it was drawn it is small enough.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)
ORDERS = [FirstCome(), ShortestFirst(), ShortestFirst(counts_answer=True), LeastSlack()]


def _setup(order: object, **system: object) -> ServingSetup:
    setup = prepared("mig_resident", "tight").setup
    return replace(setup, system=replace(setup.system, order=order, **system))


def test_ranks_are_what_their_names_say() -> None:
    short, long = (5.0, 0.1, 0.2, 1.0), (4.0, 0.9, 0.1, 1.0)
    assert rank(FirstCome(), *short) == rank(FirstCome(), *long)
    assert rank(ShortestFirst(), *short) < rank(ShortestFirst(), *long)
    answers = ShortestFirst(counts_answer=True)
    assert rank(answers, *short) == pytest.approx(0.3)
    assert rank(LeastSlack(), *long) == pytest.approx(4.0 + 1.0 - 0.9)
    assert rank(LeastSlack(), *long) < rank(LeastSlack(), *short)


def _one_by_one(prompts: list[int]) -> RequestBlock:
    # The first keeps the engine busy until all others wait.
    n = len(prompts)
    arrival_s = np.array([0.0, *np.linspace(1e-3, 2e-3, n - 1)])
    return requests(arrival_s, np.zeros(n, np.int64), np.array(prompts), np.full(n, 2))


@settings(max_examples=4, phases=AS_DRAWN)
@given(prompts=st.lists(st.integers(1, 800), min_size=3, max_size=9, unique=True))
def test_an_engine_of_one_request_serves_in_order_of_rank(prompts: list[int]) -> None:
    block = _one_by_one([900, *prompts])
    order = {}
    for policy in (FirstCome(), ShortestFirst()):
        records, _, _ = simulate(_setup(policy, max_batch=1), block)
        assert (records.failure == FAIL_NONE).all()
        order[policy] = np.argsort(records.first_token_s[1:]).tolist()
    assert order[FirstCome()] == list(range(len(prompts)))
    assert order[ShortestFirst()] == np.argsort(prompts).tolist()


@pytest.mark.parametrize("order", tiered(ORDERS, *ORDERS[:3]), ids=str)
@settings(max_examples=4, phases=AS_DRAWN)
@given(n=st.integers(1, 40), rate=st.sampled_from([4.0, 2000.0]), seed=st.integers(0, 2**31))
def test_every_order_serves_each_request_once_compiled_as_interpreted(
    order: object, n: int, rate: float, seed: int
) -> None:
    block = random_requests(n, 6, rate, seed)
    assert sorted(in_both_forms(_setup(order), block)[0].id) == list(range(n))
