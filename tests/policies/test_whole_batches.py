"""Batches that nobody joins: a server without continuous batching."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.policies import Fixed, ReserveAll, WholeBatches
from tests.simulator.worlds import requests, setup, simulate


def records(admit: Any, arrivals: Any, output: Any, compiled: bool = True) -> Any:
    what = setup("llama-3-3b", mig="1x96gb", admit=admit, chunk=Fixed(4096), max_batch=4,
                 check_slo=False)  # fmt: skip
    block = requests(arrivals, prompt=100, output=output)
    return simulate(what, block, compiled=compiled)[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_requests_at_once_are_drained_batch_by_batch(compiled: bool) -> None:
    found = records(WholeBatches(), [0.0] * 10, 50, compiled)
    ends = np.sort(found["finished_s"])
    # The first of all computes its prompt before the others are there.
    batches = [ends[:4], ends[4:8], ends[8:]]
    starts = np.sort(found["started_s"])
    assert starts[4] >= batches[0].max()
    assert starts[8] >= batches[1].max()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=12), st.integers(2, 60))
def test_nobody_starts_while_a_batch_decodes(gaps: list[float], output: int) -> None:
    found = records(WholeBatches(), np.cumsum(gaps), output)
    assert len(found) == len(gaps)
    for one in found:
        first, last = one["first_token_s"], one["finished_s"]
        meanwhile = (found["started_s"] > first + 0.2 * (last - first)) & (
            found["started_s"] < last - 1e-9
        )
        # While later prompts of a batch are computed, its first sequence decodes a token or two.
        assert not meanwhile.any() or output < 8


def test_batches_that_are_joined_are_drained_sooner() -> None:
    lengths = np.array([20, 400] * 10)
    whole, joined = (records(a, [0.0] * 20, lengths) for a in (WholeBatches(), ReserveAll()))
    assert joined["finished_s"].max() < whole["finished_s"].max()
