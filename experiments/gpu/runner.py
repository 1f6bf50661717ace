"""Running the cases of a section: resumes, guards each case, stops in time."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.gpu.cases import Case, Context, Row
from experiments.gpu.children import Child, Outcome
from experiments.gpu.progress import progress
from experiments.gpu.store import Store

STARTS = 3  # in a row that may fail before a section is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of the cases of a section in one run."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    earlier: int = 0  # had results already
    left: int = 0  # not begun, for want of time
    stopped: str = ""  # why the section was given up, if it was


def run_section(
    name: str,
    module: str,
    cases: Sequence[Case],
    store: Store,
    context: Context,
    *,
    provenance: Mapping[str, Any],
    until: float,
    retry_failed: bool = False,
    labels: Mapping[str, Any] | None = None,
    clock: Any = time.monotonic,
) -> Ran:
    """Measure the cases that have no result yet, in order, until the time is over.

    Args:
      name: of the section.
      module: that measures: `measure(spec, context) -> rows`, imported in the child process.
      cases: most informative first.
      store: where results are kept; compacted at the end.
      context: what to measure with.
      provenance: of this run; its "run" is put into every row.
      until: when to stop, by `clock`.
      retry_failed: run failed cases again.
      labels: columns to put into every row.
      clock: seconds; tests put their own here.
    """
    finished = store.finished(retry_failed=retry_failed)
    todo = [case for case in cases if case.always or case.key not in finished]
    if not any(not case.always for case in todo):
        todo = []  # nothing to compare with
    counts = {"ok": 0, "failed": 0, "skipped": 0}
    left, stopped, bad_starts = 0, "", 0
    run = str(provenance["run"])
    if todo:
        store.add_run(run, provenance)
    child = Child(module, context)
    try:
        with progress(name, len(todo)) as tell:
            for number, case in enumerate(todo, 1):
                remaining = until - clock()
                if remaining < case.least_s:
                    left = len(todo) - number + 1
                    break
                outcome, took_s = _measure(child, case, store, min(case.limit_s, remaining), clock)
                if outcome.status == "out of time" and remaining < case.limit_s:
                    store.interrupt(case)
                    left = len(todo) - number + 1
                    break
                if outcome.status == "out of time":
                    outcome = Outcome(status="failed", reason=outcome.reason, lost=True)
                common = {
                    "section": name,
                    "case": case.key,
                    "run": run,
                    "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                    "status": outcome.status,
                    "case_s": took_s,
                    **({"reason": outcome.reason} if outcome.reason else {}),
                    **(labels or {}),
                    **case.spec,
                }
                rows: list[Row] = [common | row for row in outcome.rows] or [common]
                store.finish(case, rows)
                counts[outcome.status] += 1
                tell(number, _line(case, outcome, rows[0]), outcome.status == "failed")
                bad_starts = bad_starts + 1 if outcome.lost else 0
                if bad_starts == STARTS:
                    stopped = f"{STARTS} cases in a row ended their process: {outcome.reason}"
                    left = len(todo) - number
                    break
    finally:
        child.close()
        store.compact()
    return Ran(
        **counts,
        earlier=len(cases) - len(todo),
        left=left,
        stopped=stopped,
    )


def _measure(
    child: Child, case: Case, store: Store, limit_s: float, clock: Any
) -> tuple[Outcome, float]:
    if store.given_up(case):
        return Outcome(status="failed", reason="it ended the whole run each time it was begun"), 0.0
    store.begin(case)
    start = clock()
    return child.run(case, limit_s), clock() - start


def _line(case: Case, outcome: Outcome, row: Row) -> str:
    spec = " ".join(f"{k}={v}" for k, v in case.spec.items())
    if outcome.status != "ok":
        return f"{spec}: {outcome.status}: {outcome.reason}"
    for column, unit, factor in (
        ("gbps", "GB/s", 1),
        ("tflops", "TFLOP/s", 1),
        ("time_s", "ms", 1e3),
    ):
        if column in row:
            return f"{spec}: {row[column] * factor:.4g} {unit}"
    return f"{spec}: ok"
