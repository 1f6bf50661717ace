"""The monitor: when it switches, and between which kernels latency is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.tessera import Transfer
from c2c.systems.tessera.monitor import Monitor, MonitorState, finish, groups_of, tick, wanted


def state(**fields: object) -> MonitorState:
    return MonitorState(**{"ends_s": 1.0, **fields})  # type: ignore[arg-type]


def seen(*latencies: float, execution_s: float = 1.0, policy: str = "latency") -> MonitorState:
    made = state(policy=policy)
    for latency in latencies:
        made = finish(made, latency, execution_s)
    return made


def test_queueing_asks_for_throughput() -> None:
    monitor = Monitor(threshold=2.0)
    assert wanted(seen(3.0, 1.5), monitor) == "throughput"
    assert wanted(seen(1.5, 1.5, policy="throughput"), monitor) == "latency"


@pytest.mark.parametrize("policy", ["latency", "throughput"])
def test_equality_and_empty_windows_keep_the_policy(policy: str) -> None:
    monitor = Monitor(threshold=2.0)
    assert wanted(seen(2.0, 2.0, policy=policy), monitor) == policy
    assert wanted(seen(policy=policy), monitor) == policy
    assert tick(seen(policy=policy), monitor, 7.5).switches == 0


def test_a_band_keeps_the_policy_near_the_threshold() -> None:
    monitor = Monitor(threshold=2.0, band=0.1)
    for policy in ("latency", "throughput"):
        assert wanted(seen(2.1, policy=policy), monitor) == policy
        assert wanted(seen(1.9, policy=policy), monitor) == policy
    assert wanted(seen(2.3), monitor) == "throughput"
    assert wanted(seen(1.7, policy="throughput"), monitor) == "latency"


def test_a_queue_may_decide_instead() -> None:
    monitor = Monitor(queue=4)
    assert wanted(seen(1.0), monitor, waiting=5) == "throughput"
    assert wanted(seen(9.0, policy="throughput"), monitor, waiting=3) == "latency"


def test_windows_end_one_after_the_other() -> None:
    monitor = Monitor(window_s=0.5)
    busy = finish(state(ends_s=0.5), 9.0, 1.0)
    assert tick(busy, monitor, 0.49) is busy
    after = tick(busy, monitor, 0.5)
    assert (after.policy, after.ends_s, after.switches, after.requests) == ("throughput", 1.0, 1, 0)
    late = tick(after, monitor, 3.2)
    assert (late.policy, late.ends_s, late.switches) == ("throughput", 3.5, 1)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1, 9)), max_size=40), st.floats(0.1, 3))
def test_a_window_switches_at_most_once(requests: list[tuple[float, float]], step: float) -> None:
    monitor, now = Monitor(window_s=1.0), 0.0
    at = state()
    for gap, latency in requests:
        now += gap * step
        before = at
        at = tick(at, monitor, now)
        assert at.ends_s > now
        assert at.switches - before.switches <= (at.ends_s > before.ends_s)
        at = finish(at, latency, 1.0)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"window_s": 0.0}, {"threshold": -1.0}, {"band": 1.0}, {"queue": -1.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Monitor(**wrong)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="a switch takes longer"):
        Monitor(window_s=0.01)
    with pytest.raises(SettingError, match="execution_s"):
        finish(state(), 1.0, 2.0)


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
