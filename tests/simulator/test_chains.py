"""Steps as chains of works: closed forms of pipelines, shared links and ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import AsAlpha, ByWait
from c2c.serving import Curve
from tests.simulator.lanes import layout, on, over
from tests.simulator.worlds import requests, simulate
from tests.tiers import tiered


def test_a_request_alone_takes_its_works_one_after_the_other() -> None:
    works = [on(0, 0.3), on(1, 0.1), on(2, 0.2)]
    decode = [on(0, 0.03), on(1, 0.01), on(2, 0.02)]
    records, stats, done = simulate(
        over(layout([works, decode], resources=3)), requests([1.0], output=11)
    )
    assert records.first_token_s[0] == pytest.approx(1.6)
    assert records.finished_s[0] == pytest.approx(2.2)
    assert done.world.works.used[0, 2:] == pytest.approx([0.6, 0.2, 0.4])
    assert stats.steps.sum() == 11
    assert stats.runs.sum() == 2  # ten decode steps are one event


@pytest.mark.parametrize("load", tiered([0.95, 1.05]))
def test_a_pipeline_has_the_throughput_of_its_slowest_stage(load: float) -> None:
    """A chain of 0.5, 0.1 and 0.4 s, a request 10 steps: 1 in 5 s is what it can serve."""
    decode = [on(0, 0.5), on(1, 0.1), on(2, 0.4)]
    made = over(layout(*[[[on(0, 0.0)], decode]] * 3, resources=3), max_batch=1)
    arrival_s = np.arange(50) * 5.0 / load
    records, _, done = simulate(made, requests(arrival_s, output=11))
    late_s = records.finished_s.max() - (arrival_s[-1] + 10.0)
    if load < 1.0:
        assert late_s < 20.0
    else:
        assert late_s == pytest.approx(50 * 5.0 * (1.0 - 1.0 / load), abs=8.0)
    assert done.world.works.used[0, 2:] == pytest.approx([250.0, 50.0, 200.0])


def test_the_oldest_batch_goes_as_if_it_were_alone() -> None:
    decode = [on(0, 0.5), on(1, 0.5)]
    made = layout(*[[[on(0, 0.0)], decode]] * 3, resources=2)
    records, _, _ = simulate(over(made), requests([0.0, 0.1, 0.2], output=101))
    assert records.finished_s[0] == pytest.approx(100.0)
    assert records.finished_s[0] < records.finished_s[1] < records.finished_s[2]


def test_without_rank_a_chain_wastes_what_with_it_is_used() -> None:
    """Eight chains in step share each device equally and leave the other idle."""
    decode = [on(0, 0.5), on(1, 0.5)]
    ended = {}
    for by_age in (True, False):
        made = layout(*[[[on(0, 0.0)], decode]] * 8, resources=2, by_age=by_age)
        records, _, _ = simulate(over(made), requests([0.0] * 8, output=26))
        ended[by_age] = records.finished_s.max() / 200
    assert ended[True] < 0.6  # with the youngest alone at the end
    assert ended[False] > 0.95


@pytest.mark.parametrize(("compute_s", "ends_s"), [(0.5, (100.0, 100.5)), (0.2, (70.0, 116.7))])
def test_two_lanes_share_a_link_and_keep_their_devices(
    compute_s: float, ends_s: tuple[float, float]
) -> None:
    """Each sends for half a second over one link: the younger in what the older leaves of it.

    In 0.2 of each 0.7 s: a send takes two gaps and a half, the rest of the third it computes.
    """
    lanes = [[[on(k, 0.0)], [on(k, compute_s), on(2, 0.5)]] for k in (0, 1)]
    records, _, done = simulate(over(layout(*lanes, resources=3)), requests([0.0, 0.0], output=101))
    assert records.finished_s == pytest.approx(ends_s, abs=0.71)
    assert done.world.works.used[0, 2:] == pytest.approx([100 * compute_s] * 2 + [100.0])


def test_a_blended_work_is_the_limit_of_many_small_ones() -> None:
    """One work that draws on all resources in proportion, against forty that take turns."""
    fine = [on(k % 2, (0.7, 0.3)[k % 2] / 20) for k in range(40)]
    blended = [(1.0, {0: 0.7, 1: 0.3})]
    ended = []
    for works in (fine, blended):
        made = layout(*[[[on(0, 0.0)], works]] * 2, resources=2)
        records, _, _ = simulate(over(made), requests([0.0, 0.0], output=21))
        ended.append(records.finished_s)
    assert ended[0][0] == pytest.approx(20.0)
    assert ended[1] == pytest.approx([20.0, 20.0 + 20.0 * (1 - 0.3 / 0.7)])
    assert ended[0] == pytest.approx(ended[1], rel=0.07)


def test_lanes_that_meet_nowhere_do_not_disturb_one_another() -> None:
    apart = [[on(0, 0.5)], [on(0, 0.1)]], [[on(1, 0.5)], [on(1, 0.1)]]
    records, stats, _ = simulate(over(layout(*apart, resources=2)), requests([0.0, 0.0], output=11))
    assert records.finished_s == pytest.approx([1.5, 1.5])
    assert stats.runs.sum() == 4


def test_sizes_between_are_on_a_line_and_beyond_in_proportion() -> None:
    made = Curve((2, 4), np.array([1.0, 3.0]))
    assert made.at(np.arange(9)) == pytest.approx([0, 1, 1, 2, 3, 3.75, 4.5, 5.25, 6])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"steps\.0\.draws\.r0=2\.0: .*than the work takes alone"
    ):
        layout([[(1.0, {0: 2.0})], []], resources=1)
    with pytest.raises(SettingError, match="at most 4 of one work"):
        layout([[(1.0, dict.fromkeys(range(5), 1.0))], []], resources=5)
    with pytest.raises(SettingError, match=r"draws='r1': expected one of r0"):
        layout([[on(1, 1.0)], []], resources=1)
    for names in (("link",), ("a", "a"), ()):
        with pytest.raises(SettingError, match=r"layout\.resources=.*none of link, disk"):
            replace(layout([[on(0, 1.0)], []], resources=1), resources=names)
    with pytest.raises(SettingError, match=r"curve\.sizes=\(2, 2\)"):
        Curve((2, 2), np.ones(2))
    with pytest.raises(SettingError, match=r"curve\.values=\(3,\)"):
        Curve((2, 4), np.ones(3))
    with pytest.raises(SettingError, match=r"curve\.values=\[1\.0, -1\.0\]"):
        Curve((2, 4), np.array([1.0, -1.0]))
    with pytest.raises(SettingError, match=r"system\.engines\.residents"):
        over(layout([[on(0, 1.0)], [on(0, 1.0)]], resources=1), engines__residents=2)


def test_a_change_of_variant_stands_still_and_serves_more() -> None:
    """The second variant's decode steps take a tenth; waits call for it."""

    def latency_s(vary: AsAlpha | ByWait, switch_s: float) -> float:
        prompt, slow, fast = [on(0, 0.1)], [on(0, 0.1)], [on(0, 0.01)]
        made = over(layout([prompt, slow, prompt, fast], resources=1, switch_s=switch_s), vary=vary)
        records, _, _ = simulate(made, requests(np.arange(25) * 0.3, output=20))
        return float((records.finished_s - records.arrival_s).mean())

    by_wait = ByWait(window_s=1.0, threshold=1.2)
    assert latency_s(by_wait, 0.0) < latency_s(by_wait, 0.9) < latency_s(AsAlpha(), 0.0)
