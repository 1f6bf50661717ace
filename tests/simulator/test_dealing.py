"""Batches over the same devices change their variant together, and come together by the route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.policies import ByWaiting, Fixed, TogetherAtFirst
from c2c.serving import StepLayout
from tests.simulator.lanes import layout, on, over
from tests.simulator.worlds import requests, simulate

# a prompt takes 0.2 s and a decode step 0.1 s of the device; in the second variant a step takes
# 0.01 s, and both leave half of the device to another batch
VARIANTS = [[on(0, 0.2)], [on(0, 0.1)], [(0.2, {0: 0.1})], [(0.01, {0: 0.005})]]


def two_lanes(rows: int = 1000) -> StepLayout:
    return layout(VARIANTS, VARIANTS, resources=1, rows=rows)


def served(
    made: StepLayout, arrival_s: list[float], output: int, window_s: float = 1.0
) -> tuple[Any, Any, Any]:
    vary = ByWaiting(window_s=window_s, prompts=2.5)
    what = over(made, vary=vary, route=TogetherAtFirst(), chunk=Fixed(100))  # a prompt a step
    records, stats, done = simulate(what, requests(arrival_s, output=output))
    assert len(records) == len(arrival_s)
    assert not records.failure.any()
    assert (records.output_tokens == output).all()
    assert stats.decode_tokens.sum() == len(arrival_s) * (output - 1)
    assert done.state.instance.kv_used.sum() == 0
    assert done.state.device.kv_bytes.sum() == 0.0
    assert (done.state.instance.backlog == 0).all()
    return records, stats, done


BURST = [0.0] * 4 + [5.0] * 8 + [6.0] * 2


def test_a_batch_is_not_split_and_what_comes_later_is_another() -> None:
    """Four requests and eight that wait are a batch; under the second variant two more come."""
    records, stats, _ = served(two_lanes(), BURST, 300, window_s=5.05)
    assert stats.variant_changes == 1
    assert list(records.instance) == [0] * 12 + [1] * 2


def test_batches_come_together_where_the_first_variant_is_back() -> None:
    """The same, and the burst is over before most of its requests end: these are one batch."""
    records, stats, done = served(two_lanes(), BURST, 900, window_s=2.6)
    assert stats.variant_changes == 2
    assert done.rules.own.vary.chosen[0] == 0
    last = records.finished_s > np.sort(records.finished_s)[2]
    assert set(records.instance[last]) == {0}
    assert last[-2:].all()  # of which two had begun in the other one
    assert stats.kv_out_bytes == 0.0  # nothing is carried


@pytest.mark.parametrize("window_s", [2.55, 2.6, 2.7, 2.75])
def test_steps_of_the_variant_before_end_first(window_s: float) -> None:
    """Else the older batch's steps, which take the whole device, would keep the other from the
    boundary at which it is dealt out: its requests began to go on at 18 s, and ended at 28."""
    slow = [*VARIANTS[:2], [(0.2, {0: 0.1})], [(0.3, {0: 0.15})]]
    made = layout(slow, slow, resources=1, rows=1000)
    records, stats, _ = served(made, BURST, 100, window_s=window_s)
    assert stats.variant_changes == 2
    assert set(records.instance) == {0}
    # from the third window on one batch, whose every request has at most all its steps to go
    assert records.finished_s.max() < 3 * window_s + 10 * 0.2 + 99 * 0.1


def test_what_finds_no_room_stays() -> None:
    """A batch holds twelve requests, of which one has ended when the other two would come."""
    records, _, _ = served(two_lanes(rows=12), BURST, 900, window_s=2.6)
    assert set(records.instance[-2:]) == {0, 1}


def test_what_a_request_took_alone_goes_with_it() -> None:
    """Steps of a batch alone: latency over execution is 1 before and after rows are dealt out."""
    alone = layout([[on(0, 0.2)], [on(0, 0.1)]], resources=1)
    both = layout(*[[[on(0, 0.2)], [on(0, 0.1)]] * 2] * 2, resources=1)
    for made in (alone, both):
        records, _, _ = served(made, [0.0], 50)
        assert records.finished_s[0] == pytest.approx(0.2 + 49 * 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_all_is_served_under_bursts_and_nobody_starves(seed: int) -> None:
    g = np.random.default_rng(seed)
    at = np.sort(np.concatenate([g.uniform(20 * k, 20 * k + 2, 12) for k in range(4)]))
    records, stats, _ = served(two_lanes(), at.tolist(), 40)
    assert stats.variant_changes > 1
    # twelve prompts and, one batch after the other, their steps at the slow variant's pace
    assert (records.finished_s - records.arrival_s).max() < 12 * 0.2 + 2 * 39 * (0.1 + 0.2)
