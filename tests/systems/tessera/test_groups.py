"""Kernel groups: between which kernels latency is measured, and graphs are captured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from c2c.cost.kernel_graph import Transfer
from c2c.systems.tessera.groups import groups_of


@given(st.data())
def test_groups_are_a_placement_cut_at_its_transfers(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    gpu_of = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [e for e in data.draw(st.lists(pairs, max_size=15, unique=True)) if e[0] < e[1]]
    groups = groups_of(gpu_of, [Transfer(a, b, 1.0) for a, b in edges])
    assert sorted(k for g in groups for k in g.kernels) == list(range(count))
    cuts = {e for e in edges if gpu_of[e[0]] != gpu_of[e[1]]}
    assert {e for g in groups for e in g.receives} == cuts
    assert {e for g in groups for e in g.sends} == cuts
    for group in groups:
        assert {gpu_of[k] for k in group.kernels} == {group.gpu}
        assert list(group.kernels) == sorted(group.kernels)
        assert all(target == group.kernels[0] for _, target in group.receives)
        assert all(source == group.kernels[-1] for source, _ in group.sends)
    # what a group waits for was sent by one that began earlier: groups in order never deadlock
    began = {k: n for n, g in enumerate(groups) for k in g.kernels}
    assert all(began[a] < began[b] for a, b in cuts)
