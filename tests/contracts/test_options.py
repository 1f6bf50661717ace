"""Options act alike interpreted, compiled and live; a user's own is one file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.policies import Both, NoOption
from c2c.serving import FAIL_DEADLINE, FAIL_NONE, Prepared, prepare
from c2c.serving.options.first_token import FirstToken
from tests.contracts.recorded import Recorded
from tests.contracts.systems import models, prepared
from tests.contracts.test_any_order import _hold
from tests.contracts.test_schedulers import users_module
from tests.contracts.watching import serve
from tests.simulator.worlds import in_both_forms, random_requests, simulate
from tests.tiers import tiered


def _users(**fields: Any) -> Any:
    """Return the option of docs/recipes.md, of a module outside the package."""
    return users_module("at_most").AtMost(**fields)


OPTIONS = [
    FirstToken(times=20.0),
    _users(requests=2),
    Both(_users(requests=3), Both(FirstToken(times=20.0), NoOption())),
]
BOTH_FIRST = tiered(OPTIONS, OPTIONS[2])  # machine code of each takes seconds to make


def _with(option: Any, system: str) -> Prepared:
    made = prepared(system, "tight").setup
    return prepare(replace(made, system=replace(made.system, option=option)))


@pytest.mark.parametrize("option", BOTH_FIRST, ids=lambda option: type(option).__name__)
@pytest.mark.parametrize("system", tiered(["triage_3", "serverlessllm"], slow=0))
def test_an_option_acts_alike_in_each_form(system: str, option: Any) -> None:
    what = _with(option, system)
    block = random_requests(60, models(system), 30.0, 7)
    records, _, _ = in_both_forms(what, block)
    assert {*np.unique(records.failure)} == {FAIL_NONE, FAIL_DEADLINE}
    over_port, _, _ = serve(what, Recorded(what, block))
    assert records.tobytes() == over_port.tobytes()


@pytest.mark.parametrize("option", BOTH_FIRST, ids=lambda option: type(option).__name__)
def test_any_order_of_events_holds_the_laws(option: Any) -> None:
    _hold(_with(option, "triage_3"), 3)


@pytest.mark.slow
def test_two_options_give_up_what_each_does() -> None:
    block = random_requests(60, models("triage_3"), 30.0, 7)
    options = (*OPTIONS[:2], Both(*OPTIONS[:2]))
    failed = [simulate(_with(o, "triage_3"), block)[1].failed for o in options]
    assert failed[2] > max(failed[:2])


def test_who_has_a_token_in_time_stays_and_nobody_else() -> None:
    what = _with(FirstToken(times=1.5), "c2cserve")
    block = random_requests(80, models("c2cserve"), 20.0, 3)
    records, _, _ = simulate(what, block)
    limits_s = 1.5 * what.fleet.deployment.ttft_slo_s[records.model]
    waits_s = records.first_token_s - records.arrival_s
    served = records.failure == FAIL_NONE
    assert (waits_s[served] <= limits_s[served]).all()
    assert (~served).any()
    assert (records.output_tokens[~served] <= 1).all()
