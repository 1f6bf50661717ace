"""The table of works against a slow interpreter and closed forms: forks, moves, woven steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.serving.tables.plans import Cost, Curve, Work, plan_tables
from c2c.simulator.works.sharing import share_rows
from c2c.simulator.works.works import begin_run, stop_run, write_plan
from tests.simulator.nodes import Node, jobs, node, run_jobs
from tests.simulator.slow_works import Job, amount_of, ended_s

LINK = 4.5e11
NODE = {"link": LINK, "d0": 1.0, "d1": 1.0, "up": 1.0, "down": 1.0}


def took(n: Node, rows: list[dict[str, Any]], *, by_age: bool = False) -> np.ndarray:
    """Seconds of each job."""
    made = jobs(rows)
    run_jobs(n, made, by_age)
    return np.array(made.ended_s - made.begun_s)


def drawn_plan(g: np.random.Generator, *, of_one: bool = False) -> list[Work]:
    """A graph of works on up to three resources each; steps may grow.

    A run of one work with `growth` asks for what its first step does (docs/simulator.md), not so
    one that reads a cache (`Cost.cached`).
    """
    count = 1 if of_one else int(g.integers(2, 6))
    names = list(NODE)
    plan = []
    for w in range(count):
        seconds = float(g.uniform(0.01, 0.2) * (g.random() < 0.9))
        drawn = g.choice(len(names), g.integers(0, 4), replace=False) if seconds else []
        reads_s = seconds * float(g.choice([0.0, 0.01]))  # of a cached token
        part = {names[k]: g.uniform(0.1, 1.0) * NODE[names[k]] for k in drawn}

        def of(amount: float, a_token: float) -> Cost:
            return Cost(decode=Curve((1,), np.array([amount])), cached=a_token)

        plan.append(
            Work(
                name=str(w),
                seconds=of(seconds, reads_s),
                growth=0.0 if seconds == 0.0 or of_one else float(g.choice([0.0, 0.001])),
                draws={k: of(share * seconds, share * reads_s) for k, share in part.items()},
                after=(after := tuple(str(v) for v in range(w) if g.random() < 0.5)),
                beside=_beside(g, [plan[int(v)] for v in after]),
                rank=int(g.integers(-1, 2)),
            )
        )
    return plan if any(work.seconds.is_any() for work in plan) else drawn_plan(g, of_one=of_one)


def _beside(g: np.random.Generator, before: list[Work]) -> str | None:
    """Return a resource for some works that begin later than their step."""
    takes = [w for w in before if w.beside is None and amount_of(w.seconds, 1) > 0.0]
    return str(g.choice(list(NODE))) if takes and g.random() < 0.4 else None


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**9))
def test_runs_go_as_if_every_work_were_walked(seed: int) -> None:
    """Rows by age: equal shares double a rounding at each step of works that alternate."""
    g = np.random.default_rng(seed)
    rows = int(g.integers(1, 4))
    plans = [drawn_plan(g, of_one=g.random() < 0.3) for _ in range(rows)]
    # the works of one run that share a resource have an order, too
    plans = [[replace(w, rank=-k) for k, w in enumerate(plan)] for plan in plans]
    given = [
        {
            "row": d, "plan": d, "at_s": float(g.uniform(0, 3)), "steps": int(g.integers(1, 12)),
            "rows": 1, "cached": int(g.integers(0, 9)), "growth": int(g.integers(0, 3)),
        }
        for d in (int(k) for k in g.integers(0, rows, 5))
    ]  # fmt: skip
    given.sort(key=lambda job: job["at_s"])
    made, n = jobs(given), node(plans, NODE, rows)
    run_jobs(n, made, True)
    slow = ended_s(plans, NODE, [Job(**job) for job in given], by_age=True)
    np.testing.assert_allclose(made.ended_s, slow, rtol=1e-9)
    want = np.zeros(len(NODE))
    for job in given:
        for work in plans[job["plan"]]:
            for name, amount in work.draws.items():
                for j in range(job["steps"]):
                    cached = job["cached"] + j * job["growth"]
                    want[list(NODE).index(name)] += amount_of(amount, 1, None, cached)
    np.testing.assert_allclose(n.works.used[0], want, rtol=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**9))
def test_starts_share_equally_as_if_every_work_were_walked(seed: int) -> None:
    g = np.random.default_rng(seed)
    plans = [drawn_plan(g) for _ in range(3)]
    given = [
        {"row": d, "plan": d, "at_s": float(g.uniform(0, 0.3)), "steps": 1, "rows": 1}
        for d in range(3)
    ]
    made = jobs([job | {"is_load": 1} for job in given])
    run_jobs(node(plans, NODE, 3), made, False)
    slow = ended_s(plans, NODE, [Job(**job) for job in given], by_age=False)
    np.testing.assert_allclose(made.ended_s, slow, rtol=1e-9)


def by_rows(per_row: float, fixed: float = 0.0) -> Cost:
    return Cost(decode=Curve((1, 256), fixed + per_row * np.array([1.0, 256.0])))


def replicated(sends_s: float, growth: float = 0.0) -> list[Work]:
    """Layers in the middle also on a second device, which takes half of the rows."""
    ends, middle, grows = by_rows(1e-4, 2e-3), by_rows(2e-4, 4e-3), by_rows(growth)
    return [
        Work(name="first", seconds=ends, draws={"d0": ends}, growth=grows),
        Work(name="home", seconds=middle, draws={"d0": middle}, home=0, after=("first",),
             growth=grows),
        Work(name="there", seconds=sends_s, draws={"up": sends_s}, after=("first",)),
        Work(name="other", seconds=middle, draws={"d1": middle}, home=1, after=("there",),
             growth=grows),
        Work(name="back", seconds=sends_s, draws={"down": sends_s}, after=("other",)),
        Work(name="last", seconds=ends, draws={"d0": ends}, after=("home", "back"), growth=grows),
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2, 63, 64])
def test_replicas_of_layers_fork_and_join(rows: int) -> None:
    n = node([replicated(1e-3)], NODE, 1)
    (found,) = took(n, [{"row": 0, "plan": 0, "rows": rows, "steps": 1000}])
    more, less = -(-rows // 2), rows // 2
    other = 4e-3 + 2e-4 * less if less else 0.0  # without rows a replica computes nothing
    join = max(4e-3 + 2e-4 * more, 2e-3 + other)
    assert found == pytest.approx(1000 * (2 * (2e-3 + 1e-4 * rows) + join), rel=1e-12)
    assert n.events[0] == 1


@pytest.mark.parametrize("seed", range(4))
def test_two_instances_on_each_others_devices(seed: int) -> None:
    g = np.random.default_rng(seed)
    swap = {"d0": "d1", "d1": "d0", "up": "down", "down": "up"}
    one = replicated(g.uniform(1e-4, 4e-3), growth=g.uniform(0, 1e-6))
    two = [replace(w, draws={swap[k]: v for k, v in w.draws.items()}) for w in one]
    given = [
        {"row": int(d), "plan": int(d), "at_s": float(g.uniform(0, 0.5)),
         "rows": int(g.integers(1, 65)), "steps": int(g.integers(1, 20))}
        for d in g.integers(0, 2, 6)
    ]  # fmt: skip
    given.sort(key=lambda job: job["at_s"])
    made, n = jobs(given), node([one, two], NODE, 2)
    run_jobs(n, made, True)
    slow = ended_s([one, two], NODE, [Job(**job) for job in given], by_age=True)
    np.testing.assert_allclose(made.ended_s, slow, rtol=1e-9)
    want = [
        sum(
            job["steps"] * amount_of(w.draws.get(name, 0.0), job["rows"], w.home)
            for job in given
            for w in (one, two)[job["plan"]]
        )
        for name in NODE
    ]
    np.testing.assert_allclose(n.works.used[0], want, rtol=1e-9)


def test_a_move_competes_for_the_link() -> None:
    """A layer of 9 GB leaves by a link that a run streams 300 GB/s over: half and half."""
    move = [Work(name="move", seconds=9e9 / 4.5e11, draws={"link": 9e9})]
    rows = [
        {"row": 0, "base_s": 0.01, "link_bytes": 3e9, "steps": 100},
        {"row": 1, "at_s": 0.1, "plan": 0},
    ]
    run, moved = took(node([move], {"link": LINK}, 2), rows)
    assert moved == pytest.approx(9e9 / 2.25e11, rel=1e-12)
    assert run == pytest.approx(1.0 + moved * (1 - 2.25 / 3.0), rel=1e-12)
    peer = [Work(name="move", seconds=9e9 / 2e10, draws={"link": 9e9, "nic": 9e9})]
    run, moved = took(node([peer], {"link": LINK, "nic": 2e10}, 2), rows)
    assert (run, moved) == (pytest.approx(1.0), pytest.approx(9e9 / 2e10))


def test_a_work_that_has_ended_asks_for_nothing() -> None:
    """Two works end together; the follower of the one, at a higher rank, takes all of the link.

    The other one has nothing left, so it must not wait for a share of the link.
    """
    plan = [
        Work(name="first", seconds=1.0, draws={"d0": 1.0}),
        Work(name="urgent", seconds=5.0, draws={"link": 5 * LINK}, after=("first",), rank=1),
    ]
    other = [
        Work(name="beside", seconds=1.0, draws={"link": LINK / 2}),
        Work(name="then", seconds=0.5, draws={"d1": 0.5}, after=("beside",)),
    ]
    rows = [{"row": 0, "plan": 0, "is_load": 1}, {"row": 1, "plan": 1, "is_load": 1}]
    assert list(took(node([plan, other], NODE, 2), rows)) == pytest.approx([6.0, 1.5])


def test_a_run_of_one_work_that_has_ended_asks_for_nothing() -> None:
    """Three thirds of a second are one second but for rounding, when an older row takes the device.

    A third row makes shares be found again in between, so that the sum is rounded anew.
    """
    plans = [
        [
            Work(name="first", seconds=1.0, draws={"d1": 1.0}),
            Work(name="then", seconds=5.0, draws={"d0": 5.0}, after=("first",)),
        ],
        [Work(name="thirds", seconds=1 / 3, draws={"d0": 1 / 3})],
        [Work(name="other", seconds=0.1)],
    ]
    for at_s in np.linspace(0.0, 1.0, 20):
        rows = [{"row": d, "plan": d, "steps": (1, 3, 1)[d]} for d in range(3)]
        rows[2]["at_s"] = at_s
        found = took(node(plans, NODE, 3), rows, by_age=True)
        assert list(found) == pytest.approx([6.0, 1.0, 0.1], rel=1e-9)


@pytest.mark.parametrize(
    ("grows_k", "grows_n"), [(0.0, 0.0), (1e-5, 0.0), (0.0, 1e-5), (1e-5, 3e-5)]
)
def test_a_woven_step_is_as_long_as_the_longer_side(grows_k: float, grows_n: float) -> None:
    """max(K, W + N): three works; a run is cut where the other side becomes the longer one."""
    kernels, waits, needs = 0.02, 0.012, 0.004
    woven = [
        Work(name="K", seconds=kernels, growth=grows_k, draws={"d0": kernels}),
        Work(name="W", seconds=waits),
        Work(name="N", seconds=needs, growth=grows_n, draws={"d1": needs}, after=("W",)),
    ]
    n = node([woven], NODE, 1)
    (found,) = took(n, [{"row": 0, "plan": 0, "steps": 1000}])
    j = np.arange(1000)
    longest = np.maximum(kernels + grows_k * j, waits + needs + grows_n * j)
    assert found == pytest.approx(longest.sum(), rel=1e-12)
    assert n.events[0] <= 12  # of a thousand


def _shared(n: Node, now_s: float) -> None:
    share_rows(n.works, n.phase, n.busy, n.end_s, 0, len(n.busy), 0, 0, False, now_s, n.r)


def _begun(n: Node, plan: int, steps: int, now_s: float) -> Any:
    p = n.phase[0]
    p.steps, p.is_load, n.busy[0] = steps, 0, 1
    write_plan(n.plans, n.works, 0, plan, np.array([[0, 1, 0, 0], [0, 0, 0, 0]]))
    begin_run(n.works, 0, p, now_s, 0.0, True)
    _shared(n, now_s)
    return p


@pytest.mark.parametrize("walked", [False, True])
def test_a_run_stops_at_its_next_step_boundary(walked: bool) -> None:
    plan = [
        Work(name="a", seconds=0.006, draws={"d0": 0.006}),
        Work(name="b", seconds=0.004, draws={"d0": 0.004}, after=() if walked else ("a",)),
    ]
    n = node([plan], NODE, 1)
    p = _begun(n, 0, 1000, 0.0)
    assert (p.works > 1) == walked
    stopped_s = 0.003 if walked else 3.333
    n.end_s[0] = stop_run(n.works, 0, p, n.end_s[0], stopped_s)
    assert p.steps == (1 if walked else 334)
    assert n.end_s[0] == pytest.approx(0.008 if walked else 3.34, rel=1e-12)  # its next event


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([Work(name="a", after=("b",))], "plan.a.after='b': expected a work before it"),
        ([Work(name=str(k)) for k in range(63)], "63 works"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: list[Work], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan_tables([plan], list(NODE))
