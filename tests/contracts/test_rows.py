"""The loop over rows of Python objects takes the same decisions as over arrays, for all systems."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.serving.loop import step
from c2c.serving.port import RunSteps
from c2c.serving.rows import as_rows, new_row
from c2c.serving.state import REPORT_DTYPE
from tests.contracts.stubborn import StubbornBackend
from tests.contracts.systems import FLEETS, SYSTEMS, models, prepared
from tests.simulator.worlds import random_requests

WHERE = [w for w in itertools.product(SYSTEMS, FLEETS) if w != ("by_layer", "tight")]


class _Tables(NamedTuple):
    report: Any


def _plain(action: Any) -> tuple[Any, ...]:
    if not isinstance(action, RunSteps):
        return (action,)
    return (action.device, action.instance, action.prefills, action.decodes, *action.plan)


def _serve(
    system: str, fleet: str, form: Callable[[Any], Any]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the records and all actions of a run in which everything happens that may."""
    what = prepared(system, fleet)
    backend = StubbornBackend(
        random_requests(12, models(system), 4.0, 5), seed=5, cancel=0.2, lose=[0], deadline=0.3,
        jump_s=0.1, tell=0.5,
    )  # fmt: skip
    rules, did = what.new_rules(), []
    tables = form(what.fleet)
    state = form(what.new_serving(slots=2, buffer=1, rules=rules))
    while (event := backend.next_event()) is not None:
        state, actions = step(tables, rules, state, event, donate=True)
        did += map(_plain, actions)
        backend.submit(float(state.count[0].now_s), actions)
    return [tuple(r) for r in np.asarray(state.records)[: state.count[0].out]], did


@pytest.mark.parametrize(("system", "fleet"), WHERE)
def test_rows_and_arrays_serve_alike(system: str, fleet: str) -> None:
    records, actions = _serve(system, fleet, lambda tables: tables)
    assert len(records) == 12
    assert (records, actions) == _serve(system, fleet, as_rows)


def test_a_table_of_rows_is_written_by_value_and_grows() -> None:
    table = np.zeros(2, REPORT_DTYPE)
    table["steps"] = 3, 4
    rows = as_rows(_Tables(table)).report
    row = new_row(REPORT_DTYPE, steps=7, hbm=0.5)
    rows[1] = row
    row.steps = 8
    assert rows.steps.tolist() == [3, 7]
    kept = rows.copy()
    rows[0].steps = 1
    assert [r.steps for r in kept] == [3, 7]
    assert [r.steps for r in rows.grown(1)] == [1, 7, 0]
    assert np.asarray(rows).dtype == REPORT_DTYPE
    with pytest.raises(AttributeError):
        rows.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        row.nothing = 1
