"""Requests that are given up: within their patience, everywhere, compiled as interpreted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.serving import FAIL_DEADLINE, FAIL_NONE, ServingSetup
from c2c.serving.batches.schedulers.token_budget import VllmV1
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate


def impatient(deadline_s: float, **system: Any) -> ServingSetup:
    what = setup("llama-3-3b", "llama-3-8b", mig="3x24gb", max_batch=4, check_slo=False, **system)
    deployments = (replace(what.deployments[0], deadline_s=deadline_s), what.deployments[1])
    return replace(what, deployments=deployments)


@pytest.mark.parametrize("system", [{}, {"batch": VllmV1()}], ids=["reserved", "vllm_v1"])
@pytest.mark.parametrize("deadline_s", [0.02, 1.0, 4.0])
def test_nobody_waits_longer_than_the_deadline(deadline_s: float, system: dict[str, Any]) -> None:
    what, block = impatient(deadline_s, **system), random_requests(80, 2, 12.0, 3)
    records, stats, simulation = in_both_forms(what, block)
    assert stats.arrived == stats.finished + stats.failed == len(block)
    late = records.failure == FAIL_DEADLINE
    assert late.any()
    assert (late <= (records.model == 0)).all()
    stay_s = records.finished_s - records.arrival_s
    served = records.failure == FAIL_NONE
    assert (stay_s[served & (records.model == 0)] <= deadline_s).all()
    assert (records.output_tokens[served] == block.output_tokens[records.id[served]]).all()
    assert (records.output_tokens[late] <= block.output_tokens[records.id[late]]).all()
    # A request in a step ends with the step, all others at once.
    started = records.started_s < records.finished_s
    np.testing.assert_allclose(stay_s[late & ~started], deadline_s)
    assert (stay_s[late] >= deadline_s * (1.0 - 1e-12)).all()
    assert not simulation.state.device.kv_bytes.any()
    assert not simulation.state.instance.kv_used.any()


def test_patience_without_end_changes_nothing() -> None:
    block = random_requests(40, 2, 12.0, 3)
    patient, _, _ = simulate(impatient(1e9), block)
    without, _, _ = simulate(impatient(math.inf), block)
    assert patient.tobytes() == without.tobytes()


def test_a_deadline_is_met_by_an_answer_that_ends_with_it() -> None:
    """The same run without a deadline says when the answer ends."""
    one = requests([0.0], output=5)
    alone, _, _ = simulate(impatient(math.inf), one)
    ends_s = float(alone.finished_s[0])
    assert simulate(impatient(ends_s), one)[0].failure[0] == FAIL_NONE
    assert simulate(impatient(0.99 * ends_s), one)[0].failure[0] == FAIL_DEADLINE


def test_what_is_no_deadline_is_refused() -> None:
    with pytest.raises(SettingError, match="deadline_s=0"):
        impatient(0.0)
