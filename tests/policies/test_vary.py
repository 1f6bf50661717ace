"""Rules that choose a step's variant once a window: when they change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import (
    HOME_DTYPE,
    WATCH_DTYPE,
    AsAlpha,
    ByRatio,
    ByVacancy,
    ByWait,
    ByWaiting,
    System,
    answer,
    check_policy,
    kv_home,
    note_end,
    variant,
)
from c2c.transformer.woven import is_away


class Chips:
    chip_first = np.zeros(2)
    instances = 2

    class costs:  # noqa: N801 (a field of a fleet)
        body_s = np.zeros((1, 2, 4))  # four variants


class Rule:
    """A rule with its memory, asked as the loop asks it."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.own = policy, policy.memory(Chips)

    def end(self, *latencies: float, execution_s: float = 1.0) -> Rule:
        for latency in latencies:
            note_end(self.policy, self.own, 0, latency, execution_s)
        return self

    def at(self, now_s: float, waiting: int = 0) -> int:
        return int(variant(self.policy, self.own, 0, 0, waiting, now_s))


def test_queueing_asks_for_throughput() -> None:
    rule = Rule(ByWait(window_s=1.0, threshold=2.0))
    assert rule.end(3.0, 1.5).at(0.9) == 0  # the window has not ended
    assert rule.at(1.0) == 1
    assert rule.end(1.5, 1.5).at(2.0) == 0


@pytest.mark.parametrize("before", [0, 1])
def test_equality_and_empty_windows_keep_the_variant(before: int) -> None:
    rule = Rule(ByWait(window_s=1.0, threshold=2.0))
    rule.own.chosen[0] = before
    assert rule.at(1.5) == before
    assert rule.end(2.0, 2.0).at(2.5) == before
    assert rule.at(7.5) == before


def test_a_band_keeps_the_variant_near_the_threshold() -> None:
    rule = Rule(ByWait(window_s=1.0, threshold=2.0, band=0.1))
    assert rule.end(2.1).at(1.0) == 0
    assert rule.end(2.3).at(2.0) == 1
    assert rule.end(1.9).at(3.0) == 1
    assert rule.end(1.7).at(4.0) == 0


def test_prompts_that_wait_may_decide_instead() -> None:
    """Before the first request has ended, and whatever those took that have."""
    rule = Rule(ByWaiting(window_s=1.0, prompts=4.0))
    assert rule.at(1.0, waiting=4) == 0
    assert rule.at(1.5, waiting=9) == 0  # looked at once a window
    assert rule.at(2.0, waiting=5) == 1
    assert rule.end(9.0).at(3.0, waiting=4) == 1
    assert rule.at(4.0, waiting=3) == 0


def test_windows_end_one_after_the_other() -> None:
    rule = Rule(ByWait(window_s=0.5))
    assert rule.end(9.0).at(0.49) == 0
    assert rule.at(0.5) == 1
    assert (rule.own.ends_s[0], rule.own.requests[0]) == (1.0, 0)
    rule.end(1.0).at(3.2)
    assert (rule.own.ends_s[0], rule.own.chosen[0]) == (3.5, 0)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1, 9)), max_size=40), st.floats(0.1, 3))
def test_a_window_changes_the_variant_at_most_once(
    requests: list[tuple[float, float]], step: float
) -> None:
    rule, now = Rule(ByWait(window_s=1.0)), 0.0
    for gap, latency in requests:
        now += gap * step
        before, ends_s = int(rule.own.chosen[0]), float(rule.own.ends_s[0])
        chosen = rule.at(now)
        assert chosen == rule.at(now)
        assert (chosen != before) <= (rule.own.ends_s[0] > ends_s)
        rule.end(latency)


def looked(rule: Rule, now_s: float, *used: int) -> list[int]:
    """Have the timer answered with so many of 100 cached tokens used; return the variants."""
    table = np.zeros(len(used), WATCH_DTYPE).view(np.recarray)
    table.instance, table.kv_used, table.kv_capacity = np.arange(len(used)), used, 100
    due_s = answer(rule.policy, rule.own, table, len(used), 0, now_s)
    assert due_s == now_s + rule.policy.period_s
    return [int(variant(rule.policy, rule.own, 0, i, 9, now_s)) for i in range(len(used))]


def test_copies_come_where_memory_is_vacant_and_go_while_requests_are_late() -> None:
    rule = Rule(ByVacancy(late=2.0, t_up=0.3, t_down=0.2, theta=0.1, cool_down_s=1.5))
    assert rule.policy.traits.timer_s == 1.0
    assert looked(rule, 1.0, 69, 71) == [1, 0]  # one has more than 30 % free
    assert looked(rule, 2.0, 69, 69) == [1, 1]  # the other changes: the first cools down
    rule.end(2.0, 2.0, 2.0, 2.0, 2.1)  # a fifth is late
    assert looked(rule, 4.0, 0, 0) == [1, 1]
    rule.end(2.0, 2.0, 2.1)
    assert looked(rule, 5.0, 0, 80) == [0, 0]  # a third, whatever is free
    # After relief more than theta goes on with it, and copies need 5 % more room.
    assert looked(rule, 7.0, 66, 64) == [0, 1]
    rule.own.chosen[0] = 3
    rule.end(*[1.0] * 8, 9.0)
    assert looked(rule, 9.0, 0, 0) == [2, 1]
    rule.end(*[1.0] * 99, 9.0)
    assert looked(rule, 11.0, 0, 0) == [3, 2]
    assert looked(rule, 13.0, 0, 0) == [3, 3]  # there is no further variant


def test_copies_may_come_for_late_requests_instead_and_go_when_it_is_calm() -> None:
    rule = Rule(ByVacancy(relief=1, cool_down_s=0.0))
    assert looked(rule, 1.0, 0, 0) == [0, 0]
    assert looked(rule.end(9.0), 2.0, 90, 0) == [1, 1]
    assert looked(rule.end(1.0), 3.0, 90, 0) == [1, 0]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.floats(1, 9)), min_size=1, max_size=40),
    st.sampled_from([-1, 1]),
    st.floats(0.0, 5.0),
)
def test_a_timer_changes_a_variant_by_one_and_not_within_the_cool_down(
    periods: list[tuple[int, float]], relief: int, cool_down_s: float
) -> None:
    rule = Rule(ByVacancy(relief=relief, cool_down_s=cool_down_s))
    before, changed_s = 0, -np.inf
    for k, (used, latency) in enumerate(periods):
        rule.end(latency)
        (now,) = looked(rule, float(k), used)
        assert 0 <= now <= 3
        assert abs(now - before) <= 1
        if now != before:
            assert k - changed_s >= cool_down_s
            changed_s = k
        before = now


def test_alphas_variant_needs_no_word_of_waits() -> None:
    assert not System(vary=AsAlpha()).traits.vary.follows_waits
    assert ByWait().traits.follows_waits
    assert ByWaiting().traits.follows_waits
    assert ByVacancy().traits.follows_waits


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (ByWait(window_s=0.0), "window_s"),
        (ByWait(threshold=-1.0), "threshold"),
        (ByWait(band=1.0), "band"),
        (ByVacancy(period_s=0.0), "period_s"),
        (ByVacancy(late=-1.0), "late"),
        (ByVacancy(t_up=1.0), "t_up"),
        (ByVacancy(t_down=0.0), "t_down"),
        (ByVacancy(theta=0.2), "theta"),
        (ByVacancy(hysteresis=1.0), "hysteresis"),
        (ByVacancy(cool_down_s=-1.0), "cool_down_s"),
        (ByVacancy(relief=2), "relief"),
        (ByWaiting(window_s=-1.0), "window_s"),
        (ByWaiting(prompts=0.0), "prompts"),
    ],
)
def test_settings_that_cannot_be_are_refused(policy: Any, field: str) -> None:
    with pytest.raises(SettingError, match=rf"system\.vary\.{field}"):
        check_policy("vary", policy)


def test_a_share_of_the_sequences_is_away_by_a_draw_of_each() -> None:
    table = np.zeros(2, HOME_DTYPE).view(np.recarray)
    table["home"], table["room_tokens"] = [0, 1], [500, 500]

    def at(ratio: float, request: int, count: int = 2, tokens: int = 100) -> int:
        return kv_home(ByRatio(ratio), (), table, count, 0, request, tokens, 7)

    away = {r: [k for k in range(400) if at(r, k)] for r in (0.0, 0.3, 0.45, 1.0)}
    assert (away[0.0], len(away[1.0])) == ([], 400)
    assert set(away[0.3]) < set(away[0.45])
    assert len(away[0.45]) == pytest.approx(180, abs=40)
    assert away[0.45] == [k for k in range(400) if is_away(7, k, 0.45)]  # as the live pair has it
    assert at(1.0, 3, count=1) == 0  # there is one home
    table["room_tokens"] = [500, 50]
    assert at(1.0, 3) == 0  # none has room where it is drawn for
    table["room_tokens"] = [50, 500]
    assert at(0.0, 3) == -1
    with pytest.raises(SettingError, match=r"system\.vary\.ratio=1\.1"):
        check_policy("vary", ByRatio(1.1))
