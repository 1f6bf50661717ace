"""Progress of a reproduction: figures weighed by their CPU-seconds, the longest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.children import BEGUN, gather
from experiments.figure import choose, figures
from experiments.reproduce.figure_jobs import Outcome, Tally, cpu_seconds

# A slower machine, and figures that do not all take as much longer there.
PACE, NOISE = 1.6, 0.2


def outcome(name: str, seconds: float, *, reused: bool = False) -> Outcome:
    return Outcome(name=name, folder=Path(name), seconds=seconds, cpu_s=seconds, reused=reused)


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_work_of_each_figure_is_known(profile: str) -> None:
    known = cpu_seconds(profile)
    assert {spec.name for spec in choose("all", profile)} <= set(known) <= set(figures())
    assert all(seconds > 0 for seconds in known.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reported", [0.0, 0.5, 1.0])
def test_the_time_left_is_right_from_the_first_quarter_on(
    seed: int, reported: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    known = cpu_seconds("quick")
    names = sorted(known, key=lambda name: -known[name])
    takes_s = {n: known[n] * PACE * rng.uniform(1 - NOISE, 1 + NOISE) for n in names}
    # The two longest report shares of their work, and so do some others.
    reports = {name: rng.random() < reported or name in names[:2] for name in names}
    free_s, spans = [0.0, 0.0], {}
    for name in names:  # two workers
        worker = free_s.index(min(free_s))
        spans[name] = (free_s[worker], free_s[worker] + takes_s[name])
        free_s[worker] += takes_s[name]
    end_s, now = max(free_s), 0.0
    monkeypatch.setattr("experiments.reproduce.figure_jobs.time.monotonic", lambda: now)
    shown: list[Any] = []

    tally = Tally({n: known[n] for n in names}, 2, lambda *given: shown.append(given))
    ended, wrong = set(), []
    while now < 0.95 * end_s:
        now += 0.5
        shares = []
        for name in names:
            begin_s, stop_s = spans[name]
            if now >= stop_s and name not in ended:
                ended.add(name)
                tally.end(outcome(name, takes_s[name]))
            part = (now - begin_s) / takes_s[name]
            inside = (part if reports[name] else BEGUN) if part < 1 else 1.0
            shares.append(0.0 if now <= begin_s else inside)
        tally.show(shares)
        (done, of) = shown[-1]
        assert 0 <= done <= of.total
        assert len(of.now.split(", ")) <= 2
        if now > end_s / 4:
            wrong.append(abs(of.left_s - (end_s - now)) / (end_s - now + 0.05 * end_s))
    assert np.max(wrong) < 0.25


def test_figures_that_were_up_to_date_do_not_count() -> None:
    shown: list[Any] = []
    tally = Tally({"a": 60.0, "b": 20.0}, 2, lambda *given: shown.append(given))
    tally.end(outcome("a", 0.1, reused=True))
    tally.show([1.0, 0.5])
    ((done, of),) = shown
    assert (of.total, of.now, of.left_s) == (20.0, "b", None)  # no figure tells the pace
    assert 5.0 <= done <= 10.0


def _work(name: str, within: object) -> str:
    return name


def test_works_that_have_begun_are_known_before_they_report() -> None:
    seen: list[list[float]] = []
    gather(
        _work, [("a",), ("b",)], workers=1, tell=lambda shares: seen.append(list(shares)), lost=""
    )
    assert seen[-1] == [1.0, 1.0]
