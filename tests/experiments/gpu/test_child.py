"""Every wait for a process ends: one that starts slowly, compiles long or cannot be ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from experiments.gpu.cases import Case, Context, Limits
from experiments.gpu.child import Child, frames, last_words
from experiments.gpu.runner import STARTS, run_section
from experiments.gpu.store import Store

MODULE = "tests.experiments.gpu.serving"
SLOW_START = Context(backend="reference", scale="tiny", seed=600)
AT_ONCE = Context(backend="reference", scale="tiny", seed=0)


@pytest.mark.parametrize("ends", ["its own limit", "the end of the run"])
def test_a_slow_start_is_no_cases_fault_and_costs_no_more_than_it_may(
    tmp_path: Path, ends: str
) -> None:
    store, begun = Store(tmp_path / "section"), time.monotonic()
    own = ends == "its own limit"
    ran = run_section(
        "section",
        MODULE,
        [Case(spec={"sleep_s": 0}, least_s=0.1)],
        store,
        SLOW_START,
        provenance={"run": "r"},
        until=begun + (300 if own else 1.0),
        limits=Limits(start_s=0.4) if own else Limits(start_s=500),
    )
    assert ("did not start" in ran.stopped) == own  # for want of time nothing is given up
    assert (ran.failed, ran.left) == (0, 1)
    assert store.rows == ()
    assert not store.given_up(Case(spec={"sleep_s": 0}))
    assert time.monotonic() - begun < 60  # and not the 600 s that the process would take
    assert STARTS > 1  # a start that failed once is tried again


def test_compiling_stops_the_clock_of_a_case_but_not_for_ever() -> None:
    child = Child(MODULE, AT_ONCE)
    try:
        assert child.start(60) is None
        assert child.run(Case(spec={"sleep_s": 0}, limit_s=60), 60).status == "ok"
        told = Case(spec={"sleep_s": 1.2, "told": 1}, limit_s=0.4, most_s=60)
        assert child.run(told, 60).status == "ok"
        longer = Case(spec={"sleep_s": 600, "told": 1}, limit_s=0.4, most_s=1.0)
        outcome = child.run(longer, 60)
        assert outcome.lost == "hung"
        assert "while compiling" in outcome.reason
        assert child.start(60) is None
        assert child.run(Case(spec={"sleep_s": 0}, limit_s=60), 60).status == "ok"
        silent = child.run(Case(spec={"sleep_s": 600}, limit_s=0.4, most_s=60), 60)
        assert silent.lost == "hung"
        assert "compiling" not in silent.reason
    finally:
        child.close()


def test_the_first_case_of_a_process_may_take_longer() -> None:
    child = Child(MODULE, AT_ONCE)
    slow = Case(spec={"sleep_s": 1.2}, limit_s=0.4, most_s=60)
    try:
        assert child.start(60) is None
        assert child.run(slow, 60).status == "ok"
        assert child.run(slow, 60).lost == "hung"
        assert child.start(60) is None
        assert child.run(slow, 0.4).lost == "hung"  # the end of the run bounds that, too
    finally:
        child.close()


def test_caps_shorten_limits_and_lengthen_none() -> None:
    case = Case(spec={}, limit_s=20.0, most_s=90.0)
    assert Limits().of(case) == case
    short = Limits(case_s=2.0, first_s=5.0).of(case)
    assert (short.limit_s, short.most_s) == (2.0, 5.0)
    assert Limits(case_s=500.0).of(case).limit_s == 20.0
    assert Limits().of(Case(spec={}, limit_s=60.0)).most_s == 60.0


def test_a_fault_in_native_code_is_told_by_what_and_where() -> None:
    log = (
        "noise\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n"
        '  File "/a/b/test_x.py", line 9 in test_y\n'
        '  File "/c/_pytest/python.py", line 187 in pytest_pyfunc_call\n'
        "Extension modules: numpy (total: 1)\n"
    )
    told = last_words(log)
    assert told == "Fatal Python error: Segmentation fault, at: test_x.py:9 test_y"
    hang = (
        '  File "/v/site-packages/jax/array.py", line 5 in wait\n'
        '  File "/v/site-packages/jax/api.py", line 6 in ready\n'
        '  File "/v/site-packages/jax/core.py", line 7 in bind\n'
        '  File "/a/tests/gpu/test_x.py", line 8 in test_z\n'
        '  File "/a/experiments/gpu/suite.py", line 9 in serve\n'
    )
    assert frames(hang) == "array.py:5 wait, api.py:6 ready, test_x.py:8 test_z"
    assert last_words("  ") == "No output"
    assert frames("no frames") == ""
