"""Turns by triage: steps of engines that are not protected take a bounded share of the link."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import ENGINE_DTYPE, GateAndTriage, Nothing, urgency
from c2c.serving.batches.turns import _watch_others

seconds = st.floats(0.001, 1e4)
shares = st.floats(0.0, 1.0)


def engine(now_s: float, waited_s: float, round_s: float, protected: bool, due_s: float) -> Any:
    """Return the row of an engine that only decodes."""
    row = np.zeros(1, ENGINE_DTYPE).view(np.recarray)[0]
    row.last_token_s, row.token_due_s = now_s - waited_s, now_s + due_s
    row.prompt_due_s, row.stays_s = np.inf, -1.0
    row.round_s, row.is_protected = round_s, int(protected)
    return row


def of(policy: GateAndTriage, row: Any, now_s: float) -> float:
    return float(urgency(policy, Nothing(), row, now_s))


@given(now_s=seconds, waited_s=seconds, round_s=seconds, slack_s=seconds)
def test_without_rest_whole_models_wait_and_with_all_of_the_link_nobody_does(
    now_s: float, waited_s: float, round_s: float, slack_s: float
) -> None:
    kept_up = engine(now_s, 0.0, round_s, True, slack_s)
    waiting = engine(now_s, waited_s, round_s, False, -slack_s)
    policy = GateAndTriage(rest=0.0)
    assert of(policy, kept_up, now_s) < of(policy, waiting, now_s)
    policy = GateAndTriage(rest=np.inf)
    waits = now_s - waiting.last_token_s  # as rounding has it
    goes_first = of(policy, waiting, now_s) < of(policy, kept_up, now_s)
    assert goes_first == (waits > policy.stall_s)


@given(
    st.lists(st.floats(0.001, 5.0), min_size=1, max_size=24), st.floats(0.01, 1.0), st.floats(0, 20)
)
def test_steps_of_those_not_protected_take_no_more_than_their_share(
    steps_s: list[float], rest: float, stall_s: float
) -> None:
    policy = GateAndTriage(rest=rest, stall_s=stall_s)
    round_s = sum(steps_s)

    def goes_first(waited_s: float) -> bool:
        row = engine(0.0, waited_s, round_s, False, 1.0)
        return of(policy, row, 0.0) < of(policy, engine(0.0, 0.0, round_s, True, 0.001), 0.0)

    least_s = max(stall_s, round_s / rest)
    assert not goes_first(0.999 * least_s)
    assert goes_first(1.001 * least_s + 1e-9)
    # A step each in every so many seconds, all over one link.
    assert round_s / least_s <= rest * (1 + 1e-12)


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.booleans(), st.integers(0, 3), st.floats(1.0, 300.0),
            st.floats(0.01, 1.0), st.integers(0, 32),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_a_round_is_what_the_link_takes_for_a_step_of_each_not_protected(rows: list[Any]) -> None:
    s = SimpleNamespace(
        engines=np.zeros(len(rows), ENGINE_DTYPE).view(np.recarray),
        instance=[SimpleNamespace(model=k, kept=r[5], n_decode=r[2]) for k, r in enumerate(rows)],
    )
    fleet: Any = SimpleNamespace(
        deployment=[SimpleNamespace(arch=0, demand_gbps=r[3], tpot_slo_s=r[4]) for r in rows],
        layers=[32],
    )
    expected_bytes = 0.0
    for k, (there, protected, decodes, gbps, tpot_s, kept) in enumerate(rows):
        s.engines[k].instance = k if there else -1
        s.engines[k].is_protected = int(protected)
        if there and not protected and decodes > 0:
            expected_bytes += gbps * 1e9 * tpot_s * (32 - kept) / 32
    watched: Any = s
    _watch_others(fleet, watched, 0, len(rows), 375.0)
    assert s.engines.round_s == pytest.approx(expected_bytes / 375e9)
