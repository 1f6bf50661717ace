"""Steps in flight over two GPUs, event by event, against what can be said by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.tessera import MODES, Gpus, Steps, Transfer, Work, pipelined, steps_of

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
