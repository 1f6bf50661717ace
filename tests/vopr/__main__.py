"""The live engine in a simulated world: a seed fixes a run, so a failure is named by its seed.

    python -m tests.vopr seeds=10000
    python -m tests.vopr seed=17 lines=40          # again, to the byte, with its last events
    python -m tests.vopr seed=17 shrink=17.json    # the shortest plan that fails like it
    python -m tests.vopr plan=17.json lines=40

Front, scheduler, supervisor, store and workers run unchanged in one process, over a simulated
network, clock, disk and device. Faults are drawn from the seed: see docs/evidence/laws.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from c2c.errors import SettingError
from c2c.runs import progress_bar
from experiments.plain_settings import run_settings
from tests.vopr.plan import plan_from, plan_of

__all__ = ["VoprSettings", "main"]


@dataclass
class VoprSettings:
    """Runs in simulated worlds.

    Attributes:
      seeds: number of seeds to run.
      first: first of these seeds.
      jobs: number of processes; null: one a core.
      seed: seed of a single run, in place of many.
      plan: plan file of a single run, as `shrink` writes it, in place of many.
      shrink: file for the shortest plan that fails as the single run does.
      lines: number of last events of the single run to print.
    """

    seeds: int = 100
    first: int = 0
    jobs: int | None = None
    seed: int | None = None
    plan: str | None = None
    shrink: str | None = None
    lines: int = 0


def _check(settings: VoprSettings) -> None:
    for name, value, least in (
        ("seeds", settings.seeds, 1),
        ("first", settings.first, 0),
        ("jobs", settings.jobs, 1),
        ("seed", settings.seed, 0),
        ("lines", settings.lines, 0),
    ):
        if value is not None and value < least:
            raise SettingError(name, value, f"a whole number from {least}")
    is_one = settings.seed is not None or settings.plan is not None
    if settings.seed is not None and settings.plan is not None:
        raise SettingError("plan", settings.plan, "null with seed=, which draws its plan")
    for name, given in (("shrink", settings.shrink), ("lines", settings.lines)):
        if given and not is_one:
            raise SettingError(name, given, "a single run, with seed= or plan=")
    if settings.plan is not None and not Path(settings.plan).is_file():
        raise SettingError("plan", settings.plan, "a file that shrink= wrote")


def _one(settings: VoprSettings) -> int:
    if settings.plan is None:
        assert settings.seed is not None
        plan = plan_of(settings.seed)
    else:
        plan = plan_from(Path(settings.plan).read_text("utf-8"))
    from tests.vopr.runs import outcome_of, shrunk  # takes seconds

    found = outcome_of(plan, keeps_lines=settings.lines > 0)
    if settings.shrink is not None:
        if not found.wrong:
            raise SettingError("shrink", settings.shrink, "null, since this run breaks no law")
        plan = shrunk(plan)
        Path(settings.shrink).write_text(plan.as_json() + "\n", "utf-8")
        found = outcome_of(plan, keeps_lines=settings.lines > 0)
    if settings.lines:
        print("\n".join(found.lines[-settings.lines :]))
    print("\n".join(found.wrong) or "no law is broken")
    print(f"{found.trace} {found.turns} turns, {found.seconds:.1f} s")
    return int(bool(found.wrong))


def _many(settings: VoprSettings) -> int:
    from tests.vopr.runs import outcomes

    jobs = settings.jobs or len(os.sched_getaffinity(0))
    began_s, wrong, turns = time.perf_counter(), 0, 0
    counts: Counter[str] = Counter()
    with progress_bar("seeds", settings.seeds) as advance:
        for k, found in enumerate(outcomes(settings.first, settings.seeds, jobs)):
            counts.update(found.counts)
            turns += found.turns
            if found.wrong:
                wrong += 1
                print(f"seed {found.seed}: {found.kind}", flush=True)
                print(f"  again: python -m tests.vopr seed={found.seed} lines=40", flush=True)
            advance(k + 1)
    print(", ".join(f"{what} {count}" for what, count in sorted(counts.items()) if count))
    took_s = time.perf_counter() - began_s
    print(
        f"{settings.seeds} seeds, {wrong} wrong, {turns} turns of the loop, "
        f"{took_s / settings.seeds:.2f} s a seed with {jobs} processes"
    )
    return int(wrong > 0)


def _run(settings: VoprSettings) -> int:
    _check(settings)
    is_one = settings.seed is not None or settings.plan is not None
    return _one(settings) if is_one else _many(settings)


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit status, 1 if a law is broken."""
    return run_settings(VoprSettings, arguments, _run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
