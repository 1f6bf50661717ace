"""Shares of several resources: the one-resource rule, bottlenecks, strict ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import max_min
from c2c.simulator.works.resources import DRAWS, Resources, new_resources, share


def _used(r: Resources, n: int, rank: int | None = None) -> np.ndarray:
    used = np.zeros(len(r.capacity))
    for i in range(n):
        if rank is None or r.rank[i] >= rank:
            for u in range(DRAWS):
                if r.on[i, u] >= 0:
                    used[r.on[i, u]] += r.per[i, u] * r.flow[i]
    return used


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.7]) | st.floats(0.01, 9.0), min_size=1, max_size=9),
    st.floats(0.05, 30.0),
)
def test_one_resource_is_shared_as_a_link_is(demands: list[float], capacity: float) -> None:
    n = len(demands)
    r = new_resources(n, 1)
    r.capacity[0] = capacity
    r.demand[:] = demands
    r.on[:, 0], r.per[:, 0] = 0, 1.0
    share(r, n)
    wanted = np.minimum(max_min(demands, capacity), demands)
    np.testing.assert_allclose(r.flow, wanted, rtol=1e-12, atol=0.0)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 10**6))
def test_no_flow_can_rise_without_another_of_its_rank_or_above_falling(
    n: int, resources: int, ranks: int, seed: int
) -> None:
    g = np.random.default_rng(seed)
    r = new_resources(n, resources)
    r.capacity[:] = g.uniform(0.5, 9.0, resources)
    r.demand[:] = g.uniform(0.1, 5.0, n)
    r.rank[:] = g.integers(0, ranks, n)
    for i in range(n):
        mine = g.choice(resources, g.integers(1, min(resources, DRAWS) + 1), replace=False)
        r.on[i, : len(mine)] = mine
        r.per[i, : len(mine)] = g.uniform(0.1, 4.0, len(mine))
        r.per[i, 0] = 1.0
    share(r, n)
    assert (r.flow >= 0.0).all()
    assert (r.flow <= r.demand).all()
    assert (_used(r, n) <= r.capacity * (1 + 1e-9)).all()
    for i in range(n):
        if r.flow[i] >= r.demand[i]:
            continue
        full = _used(r, n, rank=int(r.rank[i])) >= r.capacity * (1 - 1e-9)
        held = [int(k) for k in r.on[i] if k >= 0 and full[k]]
        assert held, "a flow below its demand has a resource that its rank and those above fill"
        assert any(
            r.flow[i]
            >= max(r.flow[j] for j in range(n) if r.rank[j] == r.rank[i] and k in r.on[j]) - 1e-9
            for k in held
        ), "and no other of its rank has more of that resource's flow"


def test_the_higher_rank_takes_all_it_wants() -> None:
    r = new_resources(3, 1)
    r.capacity[0] = 10.0
    r.demand[:] = (7.0, 8.0, 9.0)
    r.rank[:] = (0, 1, 0)
    r.on[:, 0], r.per[:, 0] = 0, 1.0
    share(r, 3)
    np.testing.assert_allclose(r.flow, (1.0, 8.0, 1.0))
