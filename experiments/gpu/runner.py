"""Runner of a section's cases: resumes, guards each case, stops in time."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.gpu.cases import Case, Context, Limits, Row
from experiments.gpu.child import Child, Outcome
from experiments.gpu.placing import Placing
from experiments.gpu.progress import progress
from experiments.gpu.store import Store

STARTS = 2  # failed starts of a process in a row that end a section
LOST_IN_GROUP = 2  # processes lost to a group of cases, after which its others are left
GROUPS_LOST = 3  # groups in a row that cost a process, which end a section: check the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Outcomes of a section's cases in one run."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    earlier: int = 0  # had results already
    left: int = 0  # not begun: no time left, or their group cost too many processes
    stopped: str = ""  # why the section was given up, if it was
    over: bool = False  # True if no other section can run: a dead device, a full disk


@dataclass(slots=True)
class _Losses:
    """Groups of cases that have cost processes, and the decision to go on."""

    by_group: Counter[str] = field(default_factory=Counter)
    row: list[str] = field(default_factory=list)  # groups since a case survived

    def count(self, case: Case, outcome: Outcome) -> None:
        group = case.group or case.key
        if not outcome.lost:
            self.row = []
            return
        self.by_group[group] += 1
        if group not in self.row:
            self.row.append(group)

    def skips(self, case: Case) -> bool:
        return bool(case.group) and self.by_group[case.group] >= LOST_IN_GROUP

    @property
    def too_many(self) -> bool:
        return len(self.row) >= GROUPS_LOST


def run_section(
    name: str,
    module: str,
    cases: Sequence[Case],
    store: Store,
    context: Context,
    *,
    provenance: Mapping[str, Any],
    until: float,
    limits: Limits | None = None,
    retry_failed: bool = False,
    labels: Mapping[str, Any] | None = None,
    after: Callable[[], object] = lambda: None,
    waiting: Callable[[], object] = lambda: None,
    placing: Placing | None = None,
    why_dead: Callable[[float], str] = lambda _: "",
    clock: Any = time.monotonic,
) -> Ran:
    """Measure the cases that have no result yet, in order, until the time is over.

    Args:
      name: name of the section.
      module: module with `measure(spec, context) -> rows`, imported in the child process.
      cases: cases, most informative first.
      store: results of the section; compacted at the end.
      context: settings of the measurements.
      provenance: facts of this run; its "run" is a column of every row.
      until: time by `clock` to stop at. Only the wait for a process to end may exceed it.
      limits: limits of processes and cases; None for the defaults.
      retry_failed: run failed cases again.
      labels: further columns of every row.
      after: called when a case has its result on disk.
      waiting: called when a case takes longer than a moment.
      placing: memory of the weights; None for host memory throughout.
      why_dead: called with the seconds left after a process is lost; a reason ends the run.
      clock: returns seconds; tests replace it.
    """
    limits, labels, placing = limits or Limits(), labels or {}, placing or Placing(wanted="host")
    finished = store.finished(retry_failed=retry_failed, quick=bool(labels.get("quick")))
    todo = [limits.of(case) for case in cases if placing.due(case, finished)]
    if not any(not case.always for case in todo):
        todo = []  # nothing to compare `always` cases with
    ran = Ran(earlier=len(cases) - len(todo), left=len(todo))
    if not todo:
        return ran
    losses, bad_starts = _Losses(), 0
    child = Child(module, context, waiting)
    try:
        store.add_run(str(provenance["run"]), provenance)
        with progress(name, len(todo)) as tell:
            for number, given in enumerate(todo, 1):
                if (case := placing.due(given, finished)) is None:  # the weights have moved since
                    continue
                if losses.skips(case):
                    tell(number, f"{case.key}: left: its group cost too many processes", True)
                    continue
                remaining = until - clock()
                if remaining < case.least_s:
                    break
                given_up = store.given_up(case)
                while not given_up and (failure := child.start(min(limits.start_s, remaining))):
                    bad_starts += 1
                    remaining = until - clock()
                    if remaining < case.least_s:
                        return ran  # too late to start, whatever else is wrong
                    if bad_starts == STARTS:
                        return replace(ran, stopped=failure.reason)
                bad_starts = 0
                outcome, took_s = _measure(child, case, store, until, clock, given_up=given_up)
                if outcome is None:  # cut off by the end of the run
                    break
                given_by_run = {"section": name, "run": str(provenance["run"]), "case_s": took_s}
                rows = _rows(case, outcome, {**given_by_run, **labels})
                store.finish(case, rows)
                ran = _counted(ran, outcome)
                after()
                tell(number, _line(case, outcome, rows[0]), outcome.status == "failed")
                if outcome.lost and (dead := why_dead(until - clock())):
                    return replace(ran, stopped=dead, over=True)
                losses.count(case, outcome)
                if placing.count(case, outcome):
                    losses = _Losses()
                if losses.too_many:
                    why = f"{GROUPS_LOST} groups in a row ended their process: {outcome.reason}"
                    return replace(ran, stopped=why)
    except OSError as error:  # from the store: children report errors as outcomes
        return replace(ran, stopped=f"results cannot be written: {error}", over=True)
    finally:
        child.close()
        store.compact()
    return ran


def _rows(case: Case, outcome: Outcome, labels: Mapping[str, Any]) -> list[Row]:
    common = {
        "case": case.key,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "status": outcome.status,
        **({"reason": outcome.reason} if outcome.reason else {}),
        **({"lost": outcome.lost} if outcome.lost else {}),
        **labels,
        **case.spec,
    }
    return [common | row for row in outcome.rows] or [common]


def _counted(ran: Ran, outcome: Outcome) -> Ran:
    return replace(
        ran,
        ok=ran.ok + (outcome.status == "ok"),
        failed=ran.failed + (outcome.status == "failed"),
        skipped=ran.skipped + (outcome.status == "skipped"),
        left=ran.left - 1,
    )


def _measure(
    child: Child, case: Case, store: Store, until: float, clock: Any, *, given_up: bool
) -> tuple[Outcome | None, float]:
    """Run a case; return its outcome, None if the end of the run cut it off, and its seconds."""
    if given_up:
        return Outcome(status="failed", reason="it ended the whole run each time it was begun"), 0.0
    store.begin(case)
    start = clock()
    try:
        outcome = child.run(case, until - start)
    except BaseException:  # the run is stopped from outside, which says nothing about the case
        store.interrupt(case)
        raise
    now = clock()
    if outcome.lost == "hung" and now >= until:
        store.interrupt(case)
        return None, now - start
    return outcome, now - start


def _line(case: Case, outcome: Outcome, row: Row) -> str:
    spec = " ".join(f"{k}={v}" for k, v in case.spec.items())
    if outcome.status != "ok":
        return f"{spec}: {outcome.lost or outcome.status}: {outcome.reason}"
    for column, unit, factor in (
        ("gbps", "GB/s", 1),
        ("tflops", "TFLOP/s", 1),
        ("time_s", "ms", 1e3),
    ):
        if column in row:
            return f"{spec}: {row[column] * factor:.4g} {unit}"
    return f"{spec}: ok"
