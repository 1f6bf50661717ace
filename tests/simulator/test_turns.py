"""What it costs to turn to another engine of a slice."""

from __future__ import annotations

import pytest

from c2c.policies import RoundRobin
from c2c.serving import prepare
from tests.simulator.worlds import requests, setup, simulate


@pytest.mark.parametrize("turn_s", [0.05, 0.5])
def test_a_turn_is_paid_once_and_not_by_every_step_of_a_run(turn_s: float) -> None:
    """One decodes, another one comes for a single token, and the first goes on alone."""
    block = requests([0.0, 0.3], [0, 1], prompt=100, output=[80, 1])
    ends_s = {}
    for seconds in (0.0, turn_s):
        two = setup(
            "llama-3-3b", "llama-3-3b", mig="1x96gb", residents=2, turn=RoundRobin(), turn_s=seconds
        )
        records, _, _ = simulate(prepare(two), block)
        ends_s[seconds] = records.finished_s[records.id == 0][0]
    turns = (ends_s[turn_s] - ends_s[0.0]) / turn_s
    assert turns == pytest.approx(round(turns), abs=1e-6)
    assert 2 <= round(turns) <= 3  # not one for each of 80 steps
