"""Quotas: every batch gets the same share of what it needs, and no turn is too long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import Quota, quota_s, round_alpha, turn_taken
from c2c.policies.quota import Turns
from c2c.policies.turn import ENGINE_DTYPE

seconds = st.floats(1e-3, 0.5)
batches = st.lists(st.tuples(seconds, st.floats(1e-3, 2.0)), min_size=1, max_size=12)


@given(batches=batches, switch_s=st.floats(1e-3, 10.0), most_s=st.floats(0.1, 10.0))
def test_every_batch_gets_one_over_alpha_of_the_tokens_it_needs(
    batches: list[tuple[float, float]], switch_s: float, most_s: float
) -> None:
    slack = [target / step for step, target in batches]
    shares = sum(1.0 / n for n in slack)
    alpha = round_alpha(switch_s, shares, min(slack), most_s)
    quotas = [quota_s(n, switch_s, shares, alpha) for n in slack]
    round_s = switch_s + sum(quotas)
    for quota, (step, target) in zip(quotas, batches, strict=True):
        got, needed = quota / step, round_s / target
        assert got / needed == pytest.approx(1.0 / alpha, rel=1e-9)
        assert quota <= most_s * (1 + 1e-9)
    assert alpha >= 0.5


def test_an_engine_that_decodes_alone_goes_on_until_another_does() -> None:
    def turn(instance: int, decodes: int) -> float:
        table = np.zeros(2, ENGINE_DTYPE).view(np.recarray)
        table.instance, table.decodes, table.step_s = [0, instance], [3, decodes], 0.01
        table.tpot_slo_s, table.switch_s = 0.1, 0.1
        own = Turns(np.zeros(2), np.zeros(2, np.int64))
        return turn_taken(Quota(), own, table, 0, 2, table[0], 0.0)

    assert turn(1, 0) == turn(-1, 0) == turn(-1, 3) > 1e9  # beside nobody with work
    assert turn(1, 3) < 1e4
