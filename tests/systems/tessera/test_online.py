"""Requests online: closed forms, conservation, rank against groups one by one, switches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.tessera import (
    Arrival,
    Costs,
    Lane,
    Monitor,
    Server,
    Steps,
    decode_only,
    pipelined,
    serve,
)


def lane(*, prefill: float, decode: float, gpu: int | None = 0, rows: int = 64) -> Lane:
    """A lane whose steps take as long at every size, on one GPU, or half on each."""

    def costs(seconds: float) -> Costs:
        busy = (seconds / 2,) * 2 if gpu is None else tuple(seconds * (g == gpu) for g in (0, 1))
        return Costs((1.0, 1e6), (busy, busy), (seconds, seconds))

    return Lane(costs(prefill), costs(decode), rows)


def test_a_request_alone_takes_its_prompt_and_its_steps() -> None:
    server = Server({"latency": (lane(prefill=0.5, decode=0.1),)})
    (done,), switches = serve(server, [Arrival(2.0, 100, 11)])
    assert done.first_s == pytest.approx(2.5)
    assert done.ended_s == pytest.approx(3.5)
    assert done.execution_s == pytest.approx(1.5)
    assert done.per_token_s == pytest.approx(1.5 / 11)
    assert switches == 0


def test_a_prompt_holds_up_the_rows_of_its_batch() -> None:
    server = Server({"latency": (lane(prefill=1.0, decode=0.1),)})
    first, second = serve(server, [Arrival(0.0, 1, 11), Arrival(1.5, 1, 11)])[0]
    assert second.first_s == pytest.approx(2.5)
    assert first.ended_s == pytest.approx(3.0)  # a second later than alone
    assert second.ended_s == pytest.approx(3.5)
    assert first.execution_s == pytest.approx(2.0)


def test_a_queue_is_the_one_of_theory() -> None:
    """Prompts alone, at a constant time: M/D/1's mean wait."""
    rng = np.random.default_rng(3)
    at = np.cumsum(rng.exponential(1.0, 20_000))
    done, _ = serve(
        Server({"latency": (lane(prefill=0.6, decode=0.0, rows=10**9),)}),
        [Arrival(float(t), 1, 1) for t in at],
    )
    waits = [d.first_s - d.arrival.at_s - 0.6 for d in done]
    assert np.mean(waits) == pytest.approx(0.6 * 0.6 / (2 * 0.4), rel=0.08)


def test_rows_at_most_are_kept() -> None:
    server = Server({"latency": (lane(prefill=0.1, decode=0.1, rows=1),)})
    done, _ = serve(server, [Arrival(0.0, 1, 10)] * 3)
    assert [d.ended_s for d in done] == pytest.approx([1.0, 2.0, 3.0])


def test_two_gpus_apart_do_not_disturb_one_another() -> None:
    lanes = tuple(lane(prefill=0.5, decode=0.1, gpu=g) for g in (0, 1))
    done, _ = serve(Server({"latency": lanes}), [Arrival(0.0, 1, 11)] * 2)
    assert [d.ended_s for d in done] == pytest.approx([1.5, 1.5])


def test_rank_gives_what_groups_one_by_one_give() -> None:
    """Two lanes over both GPUs by turns, the older first: the pipelined steps' throughput."""
    step = Steps(
        gpu_of=(0, 1), seconds=(1.0, 1.0), waits=(0, 1), sends=(((1, 0.0),), ()),
        order=((0,), (1,)),
    )  # fmt: skip
    one_by_one = pipelined([step], [[0] * 20, [0] * 20], "priority", 2).seconds
    server = Server({"latency": (decode_only(lane(prefill=1.0, decode=2.0, gpu=None)),) * 2})
    done, _ = serve(server, [Arrival(0.0, 1, 21)] * 2)
    assert max(d.ended_s for d in done) == pytest.approx(one_by_one, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(1, 4000), st.integers(1, 50)), min_size=1,
        max_size=25,
    ),
    st.integers(1, 3),
    st.sampled_from([None, 0.05, 0.3]),
)  # fmt: skip
def test_every_request_ends_once_and_not_early(
    gaps: list[tuple[float, int, int]], lanes: int, window_s: float | None
) -> None:
    at = np.cumsum([gap for gap, _, _ in gaps])
    arrivals = [Arrival(float(t), p, o) for t, (_, p, o) in zip(at, gaps, strict=True)]
    one = lane(prefill=0.2, decode=0.05, rows=4)
    both = lane(prefill=0.3, decode=0.06, gpu=None, rows=4)
    server = Server(
        {"latency": (one,), "throughput": (both,) * lanes},
        None if window_s is None else Monitor(window_s=window_s),
    )
    done, switches = serve(server, arrivals)
    assert len(done) == len(arrivals)
    assert switches == 0 or window_s is not None
    for d, asked in zip(done, arrivals, strict=True):
        assert d.arrival == asked
        least = 0.2 + 0.05 * (asked.output - 1)
        assert d.ended_s - asked.at_s >= least - 1e-6
        assert least - 1e-6 <= d.execution_s <= d.ended_s - asked.at_s + 1e-6


def test_a_switch_stalls_and_serves_more() -> None:
    slow, fast = lane(prefill=0.1, decode=0.1), lane(prefill=0.1, decode=0.01)
    arrivals = [Arrival(0.3 * k, 1, 20) for k in range(40)]

    def latency(monitor: Monitor | None) -> tuple[float, int]:
        done, switches = serve(
            Server({"latency": (slow,), "throughput": (fast,)}, monitor), arrivals
        )
        return sum(d.per_token_s for d in done), switches

    stays, none = latency(None)
    switched, some = latency(Monitor(window_s=1.0, threshold=1.2))
    dear, _ = latency(Monitor(window_s=1.0, threshold=1.2, switch_s=0.9))
    assert none == 0 < some
    assert switched < dear
    assert switched < stays


def test_bursts_starve_nobody() -> None:
    """Bursts of twice what is sustained: all end, none much later than under one policy."""
    light, heavy = lane(prefill=0.02, decode=0.02), lane(prefill=0.03, decode=0.03, gpu=None)
    rng = np.random.default_rng(0)
    begins = np.repeat(np.arange(6) * 20.0, 200) + rng.uniform(0, 2, 1200)
    lone = np.arange(120) + 0.5  # between bursts, so that the policy goes back
    arrivals = [Arrival(float(t), 1, 8) for t in np.sort(np.concatenate([begins, lone]))]
    worst = {}
    for name, server in {
        "light": Server({"latency": (light,)}),
        "heavy": Server({"latency": (heavy,) * 2}),
        "both": Server({"latency": (light,), "throughput": (heavy,) * 2}, Monitor()),
    }.items():
        done, switches = serve(server, arrivals)
        assert len(done) == len(arrivals)
        worst[name] = max(d.ended_s - d.arrival.at_s for d in done)
        assert name != "both" or switches > 1
    # a switch stalls 30 ms, at most one in each window of 0.3 s
    assert worst["both"] <= 1.15 * max(worst["light"], worst["heavy"])


def test_sizes_between_are_interpolated_and_beyond_in_proportion() -> None:
    costs = Costs((1.0, 3.0), ((1.0, 0.0), (2.0, 4.0)), (2.0, 8.0))
    assert costs.at(2.0) == (pytest.approx((1.5 / 5, 2 / 5)), pytest.approx(5.0))
    assert costs.at(6.0) == (pytest.approx((4 / 16, 8 / 16)), pytest.approx(16.0))


def test_what_cannot_be_is_refused() -> None:
    server = Server({"latency": (lane(prefill=1.0, decode=1.0),)})
    with pytest.raises(SettingError, match="arrivals"):
        serve(server, [Arrival(1.0, 1, 1), Arrival(0.0, 1, 1)])
    with pytest.raises(SettingError, match=r"server\.lanes"):
        serve(Server({"latency": ()}), [])
