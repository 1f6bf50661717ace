"""Rules that choose a step's variant once a window: when they change it."""

from __future__ import annotations

from types import SimpleNamespace
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
    ByNeed,
    ByRatio,
    ByThresholds,
    ByWait,
    ByWaiting,
    System,
    answer,
    check_policy,
    kv_home,
    most_rows,
    note_end,
    variant,
)
from c2c.systems.weaver.live.woven import is_away


class Chips:
    chip_first = np.zeros(2)


class Rule:
    """A rule with its memory, asked as the loop asks it."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.own = policy, policy.memory(Chips)

    def end(self, *latencies: float, execution_s: float = 1.0) -> Rule:
        for latency in latencies:
            note_end(self.policy, self.own, 0, 0, latency, execution_s, True, True)
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


def test_alphas_variant_needs_no_word_of_waits() -> None:
    assert not System(vary=AsAlpha()).traits.vary.follows_waits
    assert ByWait().traits.follows_waits
    assert ByWaiting().traits.follows_waits


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
    three = np.zeros(3, HOME_DTYPE).view(np.recarray)
    three["room_tokens"] = 500
    homes = [kv_home(ByRatio(0.6), (), three, 3, 0, k, 100, 7) for k in range(900)]
    assert np.bincount(homes) == pytest.approx([360, 270, 270], abs=60)  # equal parts away
    with pytest.raises(SettingError, match=r"system\.vary\.ratio=1\.1"):
        check_policy("vary", ByRatio(1.1))


def test_sequences_leave_the_first_home_once_it_has_little_room() -> None:
    table = np.zeros(3, HOME_DTYPE).view(np.recarray)

    def at(*room_tokens: int) -> int:
        table["room_tokens"] = room_tokens
        return kv_home(ByNeed(spare=2), (), table, 3, 0, 5, 100, 7)

    assert at(300, 900, 900) == 0
    assert at(299, 400, 900) == 2
    assert at(299, 100, 200) == 0  # where most room is
    assert at(99, 99, 100) == 2
    assert at(99, 99, 99) == -1


def test_a_controller_copies_then_migrates_then_evicts_then_lowers_the_batch() -> None:
    policy = ByThresholds(period_s=1.0, vacant=0.3, late=0.1, fewer=5)
    costs = SimpleNamespace(body_s=np.zeros((1, 1, 3 * 3)))  # scales 0 to 2, each with 0 to 2 moves
    kv = SimpleNamespace(reliefs=np.array([2]))
    own = policy.memory(SimpleNamespace(instances=2, max_batch=16, kv=kv, costs=costs))
    table = np.zeros(2, WATCH_DTYPE).view(np.recarray)
    table.instance, table.kv_capacity, table.decodes = [0, 1], 100, 12

    def after(vacancy: float, late: int) -> tuple[int, int, int]:
        for k in range(10):
            note_end(policy, own, 0, 0, 1.0, 1.0, k >= late, k >= late)
        table.vacancy = vacancy
        assert answer(policy, own, table, 2, 0, 7.0) == 8.0
        index = variant(policy, own, 0, 0, 0, 7.0)
        return index // 3, index % 3, most_rows(policy, own, 0, 16)

    assert after(0.5, late=10) == (1, 0, 16)  # room elsewhere comes first
    assert after(0.2, late=10) == (1, 1, 16)
    assert after(0.2, late=10) == (1, 2, 16)
    own.copied[1] = 1
    assert after(0.2, late=10) == (1, 2, 16)
    assert own.copied[1] == 0  # the other instance's copy went
    assert after(0.2, late=10) == (1, 2, 7)  # 12 at once, five fewer
    assert after(0.2, late=1) == (1, 2, 12)  # on time again
    assert after(0.5, late=0) == (2, 2, 12)
