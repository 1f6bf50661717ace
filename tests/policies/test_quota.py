"""Quotas: every batch gets the same share of what it needs, and no turn is too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import Quota, make_policy, quota_s, round_alpha

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


@pytest.mark.parametrize(
    ("values", "field"),
    [({"most_s": 0}, "most_s"), ({"most_s": float("inf")}, "most_s"), ({"group": 0}, "group")],
)
def test_what_cannot_be_a_quota_is_refused(values: dict[str, float], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_policy("turn", {"policy": "quota", **values})
    assert caught.value.field == f"system.turn.{field}"
    assert make_policy("turn", {"policy": "quota"}) == Quota()
