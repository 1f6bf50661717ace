"""Steps in flight over two GPUs, event by event, against what can be said by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost.kernel_graph import Transfer, Weights
from c2c.errors import SettingError
from c2c.systems.tessera import (
    MODES,
    Gpus,
    Steps,
    Work,
    cost,
    one_cut,
    pipelined,
    plan,
    rehearsed,
    stages_of,
    steps_of,
)

# two GPUs by turns, a second each, with a transfer of a tenth between
TURNS = Steps(
    gpu_of=(0, 1), seconds=(1.0, 1.0), waits=(0, 1), sends=(((1, 0.1),), ()), order=((0,), (1,))
)


def test_one_at_a_time_takes_all_one_after_the_other() -> None:
    ran = pipelined([TURNS], [[0, 0], [0]], "none", 8)
    assert ran.seconds == pytest.approx(3 * 2.1)
    assert ran.busy_s == pytest.approx((3.0, 3.0))
    assert ran.ended_s == pytest.approx((4.2, 6.3))


def test_with_enough_in_flight_the_slowest_gpu_decides() -> None:
    ran = pipelined([TURNS], [[0]] * 50, "priority", 4)
    assert ran.seconds == pytest.approx(50 + 1.1)
    assert ran.steps == 50


def test_equal_shares_move_in_step_and_priorities_do_not() -> None:
    """Two at once on one GPU both end late; the oldest first, one ends early."""
    naive = pipelined([TURNS], [[0]] * 40, "naive", 2)
    oldest = pipelined([TURNS], [[0]] * 40, "priority", 2)
    alone = pipelined([TURNS], [[0]] * 40, "none", 1)
    assert oldest.seconds < naive.seconds < alone.seconds
    assert oldest.ended_s[0] == pytest.approx(2.1)
    assert naive.ended_s[0] > 3


def test_a_group_that_becomes_ready_as_others_end_has_not_run_yet() -> None:
    left, right = (
        Steps(gpu_of=(g,), seconds=(1.0,), waits=(0,), sends=((),),
              order=((0,), ()) if g == 0 else ((), (0,)))
        for g in (0, 1)
    )  # fmt: skip
    ran = pipelined([left, right], [[0, 1], [1, 1]], "naive", 2)
    assert ran.ended_s == pytest.approx((3.0, 3.0))  # from second 1 on both share the right GPU


def test_the_shortest_first_feeds_the_other_gpu() -> None:
    """A long group of the oldest keeps a GPU from short ones that the other GPU waits for."""
    long = Steps(gpu_of=(0,), seconds=(12.0,), waits=(0,), sends=((),), order=((0,), ()))
    short = Steps(
        gpu_of=(0, 1), seconds=(1.0, 4.0), waits=(0, 1), sends=(((1, 0.5),), ()), order=((0,), (1,))
    )
    requests = [[0], [1, 1, 1]]
    oldest = pipelined([long, short], requests, "priority", 2)
    shortest = pipelined([long, short], requests, "shortest", 2)
    assert oldest.seconds == pytest.approx(12 + 3 * 5.5)
    assert shortest.seconds == pytest.approx(3 * 5.5)
    assert shortest.ended_s[0] == pytest.approx(15)  # interrupted three times, for a second each


def test_what_pipelines_best_is_chosen() -> None:
    long = Steps(gpu_of=(0, 1), seconds=(5.0, 5.0), waits=(0, 1), sends=(((1, 9.0),), ()),
                 order=((0,), (1,)))  # fmt: skip
    found = rehearsed([[long, TURNS], [TURNS, long]], [[0, 1]] * 3, "priority", 2)
    assert found.chosen == (1, 0)
    assert (
        found.tried_s[1, 0]
        == found.seconds
        < min(s for numbers, s in found.tried_s.items() if numbers != (1, 0))
    )
    assert found.seconds == pipelined([TURNS, TURNS], [[0, 1]] * 3, "priority", 2).seconds
    with pytest.raises(SettingError, match="kinds"):
        rehearsed([[long], []], [[0, 1]], "priority", 2)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_one_cut_is_the_best_of_its_kind(data: st.DataObject) -> None:
    count, wide = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    seconds = st.floats(0.1, 5.0)
    work = Work(
        names=tuple(map(str, range(count))),
        times_s=tuple(tuple(data.draw(seconds) for _ in range(wide)) for _ in range(count)),
        transfers=tuple(Transfer(k, k + 1, data.draw(st.floats(0, 3e9))) for k in range(count - 1)),
        pinned={0: data.draw(st.integers(0, wide - 1))} if data.draw(st.booleans()) else {},
    )
    gpus = Gpus.alike([f"g{g}" for g in range(wide)], gbps=1.0, latency_s=0.1)
    every = [
        (a,) * k + (b,) * (count - k)
        for a in range(wide) for b in range(wide) for k in range(1, count + 1)
        if work.pinned.get(0, a) == a
    ]  # fmt: skip
    made = one_cut(work, gpus)
    assert made.gpu_of in every
    stages = [stages_of(work, gpus, gpu_of)[0] for gpu_of in every]
    assert made.objective_s == pytest.approx(min(cost("throughput", s) for s in stages))
    assert plan(work, gpus, "throughput", gap=0.0).objective_s <= made.objective_s * (1 + 1e-9)


def test_one_cut_keeps_memory() -> None:
    work = Work(
        names=("a", "b"), times_s=((1.0, 9.0), (1.0, 9.0)),
        weights=(Weights(5.0, (0,)), Weights(5.0, (1,))),
    )  # fmt: skip
    gpus = Gpus.alike(("x", "y"), gbps=1.0, latency_s=0.1)
    assert one_cut(work, gpus).gpu_of == (0, 0)
    assert one_cut(work, replace(gpus, memory_bytes=(6.0, 6.0))).cuts == 0
    assert set(one_cut(work, replace(gpus, memory_bytes=(6.0, 6.0))).gpu_of) == {0, 1}
    with pytest.raises(SettingError, match="one cut"):
        one_cut(work, replace(gpus, memory_bytes=(4.0, 6.0)))


def test_a_placement_becomes_its_groups() -> None:
    work = Work(
        names=("a", "b", "c", "d"),
        times_s=((1.0, 9.0), (9.0, 2.0), (3.0, 9.0), (4.0, 9.0)),
        transfers=(Transfer(0, 1, 1e9), Transfer(1, 3, 2e9), Transfer(0, 2, 5e9)),
    )
    gpus = Gpus.alike(("x", "y"), gbps=1.0, latency_s=0.5)
    made = steps_of(work, gpus, (0, 1, 0, 0))
    assert made.gpu_of == (0, 1, 0, 0)
    assert made.seconds == (1.0, 2.0, 3.0, 4.0)
    assert made.waits == (0, 1, 0, 1)
    # c runs beside b's way there and back
    ran = pipelined([made], [[0]], "priority", 1)
    assert ran.seconds == pytest.approx(1 + 1.5 + 2 + 2.5 + 4)
    assert pipelined([steps_of(work, gpus, (0,) * 4)], [[0]], "naive", 1).seconds == 17


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_all_is_done_and_no_gpu_does_two_things(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    work = Work(
        names=tuple(map(str, range(count))),
        times_s=tuple((data.draw(st.floats(0.1, 2.0)),) * 2 for _ in range(count)),
        transfers=tuple(
            Transfer(k, j, data.draw(st.floats(0, 1e9)))
            for j in range(1, count)
            for k in data.draw(st.sets(st.integers(0, j - 1), max_size=2))
        ),
    )
    gpu_of = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    made = steps_of(work, Gpus.alike(("x", "y"), gbps=1.0, latency_s=0.01), gpu_of)
    requests = [[0] * n for n in data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))]
    steps = sum(map(len, requests))
    busy = [sum(t for t, g in zip(made.seconds, made.gpu_of, strict=True) if g == k)
            for k in (0, 1)]  # fmt: skip
    for mode in MODES:
        ran = pipelined([made], requests, mode, 3)
        assert ran.steps == steps
        assert ran.busy_s == pytest.approx([steps * b for b in busy], abs=1e-6)
        assert ran.seconds >= steps * max(busy) - 1e-6
        assert ran.seconds == pytest.approx(max(ran.ended_s))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="mode"):
        pipelined([TURNS], [[0]], "fast", 1)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="in_flight"):
        pipelined([TURNS], [[0]], "naive", 0)
