"""Two models on one node: lanes of each, a step that is woven with the other model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.serving import prepare
from tests.simulator.lanes import COLD, SPEC, layout, on, over, woven
from tests.simulator.worlds import deployments, random_requests, requests, simulate


@pytest.mark.parametrize(
    ("waits", "hot_s"), [(0.012, 0.020), (0.020, 0.024)], ids=["hidden", "late"]
)
def test_a_woven_step_takes_the_longer_side_and_slows_the_other_model(
    waits: float, hot_s: float
) -> None:
    """Each hot step has 4 ms before the cold model's steps of 50 ms on the cold device."""
    made = over(woven(0.020, waits, 0.004, 0.050))
    block = requests([0.0, 0.0], model=[0, 1], output=[1001, 101])
    records, stats, done = simulate(made, block)
    hot, cold = records
    assert hot.finished_s - hot.first_token_s == pytest.approx(1000 * hot_s, rel=1e-9)
    took_s = cold.finished_s - cold.first_token_s
    assert took_s == pytest.approx(100 * 0.050 / (1.0 - 0.004 / hot_s), abs=hot_s)
    used_s = stats.resource_s[0]
    assert used_s == pytest.approx([0.020 * 1001, 0.004 * 1000 + 0.050 * 101], rel=1e-9)
    assert done.state.instance.kv_used.sum() == 0


def test_without_the_other_model_a_woven_run_is_one_event() -> None:
    made = over(woven(0.020, 0.012, 0.004, 0.050))
    _, stats, _ = simulate(made, requests([0.0], output=1001))
    assert stats.runs.sum() == 2  # the prompt and a thousand steps


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 30), st.sampled_from([1.0, 10.0, 1000.0]), st.integers(0, 10**6))
def test_each_model_is_served_by_lanes_of_its_own(n: int, rate: float, seed: int) -> None:
    what = over(woven(0.020, 0.017, 0.004, 0.030, rows=3), max_batch=4)
    block = random_requests(n, 2, rate, seed)
    records, stats, done = simulate(what, block, timeline_rows=100_000)
    assert len(records) == n
    assert not records.failure.any()
    assert (records.instance == block.model[records.id]).all()
    assert stats.decode_tokens.sum() == (block.output_tokens - 1).sum()
    state = done.state
    assert state.instance.kv_used.sum() == 0
    assert state.device.kv_bytes.sum() == 0.0
    # seconds taken are those that steps ask for: of prompts, and on top of decodes
    phases = done.timeline()
    prompts, decodes = (
        np.bincount(phases.model, phases.steps * (part > 0), minlength=2)
        for part in (phases.prefill_tokens, phases.decode_seqs)
    )
    hot_s = 0.020 * (prompts[0] + decodes[0])
    cold_s = 0.004 * decodes[0] + 0.030 * (prompts[1] + decodes[1])
    assert stats.resource_s[0] == pytest.approx([hot_s, cold_s], rel=1e-9)


def test_a_lane_is_for_one_model_and_a_model_has_a_lane() -> None:
    made = layout([[on(0, 0.1)], [on(0, 0.1)]], resources=1)
    what = over(made)
    one, other = deployments(SPEC, COLD)
    with pytest.raises(SettingError, match=rf"catalog='{COLD}': expected one of {SPEC}"):
        prepare(replace(what, deployments=(one, other)))
    with pytest.raises(SettingError, match=r"catalog=\['a', 'b'\]: expected one model for lane"):
        replace(what, deployments=(replace(one, name="a"), replace(one, name="b")))
