"""What every backend may count on, and what it may do: all systems, on any backend."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from c2c.serving import FAIL_CANCELLED, FAIL_DEADLINE, FAIL_NONE
from c2c.serving.port import Cancelled, DeviceLost
from c2c.simulator import build_machine
from c2c.simulator.port import SimulatorBackend
from tests.contracts.stubborn import StubbornBackend
from tests.contracts.systems import FLEETS, MODELS, SYSTEMS, prepared
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests, simulate

WHERE = list(itertools.product(SYSTEMS, FLEETS))

seeds = st.integers(0, 2**31)
loads = st.tuples(st.integers(1, 40), st.sampled_from([0.5, 4.0, 2000.0]), seeds)


@pytest.mark.parametrize(("system", "fleet"), WHERE)
@settings(max_examples=8, deadline=None)
@given(
    load=loads,
    cancel=st.sampled_from([0.0, 0.3]),
    deadline=st.sampled_from([0.0, 0.5]),
    lost=st.lists(st.integers(0, 13), max_size=14),
    jump_s=st.sampled_from([0.0, 0.5]),
    tell=st.sampled_from([0.0, 1.0]),
)
def test_a_stubborn_backend_is_served_in_order(
    system: str,
    fleet: str,
    load: tuple[int, float, int],
    cancel: float,
    deadline: float,
    lost: list[int],
    jump_s: float,
    tell: float,
) -> None:
    what = prepared(system, fleet)
    n, rate, seed = load
    backend = StubbornBackend(
        random_requests(n, len(MODELS), rate, seed),
        seed=seed,
        cancel=cancel,
        lose=[d for d in lost if d < len(what.kind_of)],
        deadline=deadline,
        jump_s=jump_s,
        tell=tell,
    )
    serve(what, backend)
