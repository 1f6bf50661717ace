"""Requests that are handed from the lane of their prompt to the lane that decodes them."""

from __future__ import annotations

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.policies import Fixed
from tests.simulator.lanes import layout, on, over
from tests.simulator.worlds import requests, simulate

PROMPTS = [[on(0, 0.4), on(1, 0.3)], [on(0, 1.0)]]
DECODES = [[on(2, 9.0)], [on(2, 0.1)]]


def test_a_request_alone_takes_prefill_link_and_decode() -> None:
    made = layout(PROMPTS, DECODES, resources=3, hands_to=1)
    records, _, done = simulate(over(made), requests([0.0], output=11))
    assert records.first_token_s[0] == pytest.approx(0.7)
    assert records.finished_s[0] == pytest.approx(1.7)
    assert (records.instance[0], records.failure[0]) == (1, 0)
    assert done.world.works.used[0, 2:] == pytest.approx([0.4, 0.3, 1.0])


def test_the_next_prompt_is_computed_while_the_link_sends() -> None:
    """Two lanes for prompts: one in 0.4 s, the slowest of prefill and link; with one, in 0.7."""
    for lanes, each_s in ((1, 0.7), (2, 0.4)):
        made = over(
            layout(*[PROMPTS] * lanes, DECODES, resources=3, hands_to=lanes), chunk=Fixed(100)
        )
        records, _, _ = simulate(made, requests(np.zeros(30), output=2))
        assert np.sort(records.first_token_s)[-1] == pytest.approx(0.3 + 30 * each_s, rel=0.05)


def test_prompts_do_not_hold_up_decodes() -> None:
    made = over(layout(PROMPTS, PROMPTS, DECODES, resources=3, hands_to=2))
    arrival_s = [0.0, *np.arange(1.0, 6.0, 0.5)]
    records, _, _ = simulate(made, requests(arrival_s, output=[101] + [2] * 10))
    assert records.finished_s[0] == pytest.approx(10.7)


def test_a_full_lane_lets_them_wait_in_order() -> None:
    made = over(layout(PROMPTS, DECODES, resources=3, hands_to=1), max_batch=1)
    records, _, _ = simulate(made, requests([0.0] * 3, output=11))
    assert records.first_token_s == pytest.approx([0.7, 1.4, 2.1])
    assert records.finished_s == pytest.approx([1.7, 2.7, 3.7])


def test_a_place_that_hands_on_what_it_was_handed_is_refused() -> None:
    with pytest.raises(SettingError, match="hands_to"):
        layout(PROMPTS, DECODES, resources=3, hands_to=7)
