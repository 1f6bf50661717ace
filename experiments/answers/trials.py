"""Runs of a race's trials, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.answers.fleets import Arm, FleetSpace
from experiments.answers.points import Point, PointRunner
from experiments.answers.race import Outcome, Trial
from experiments.answers.watch import Watch

__all__ = ["Runs", "outcome_of"]


class Runs:
    """Runs of a race, with kept results."""

    def __init__(
        self, space: FleetSpace, arms: Sequence[Arm], more: Mapping[str, Any], requests: int,
        seeds: Sequence[int], runner: PointRunner, watch: Watch, *, alone_first: bool,
    ) -> None:  # fmt: skip
        self.space, self.arms, self.more = space, arms, more
        self.requests, self.runner, self.watch = requests, runner, watch
        self.alone_first = alone_first
        self.all_seeds = tuple(seeds)
        self.seedless: set[tuple[str, bool, bool]] = (
            set()
        )  # systems whose runs are equal for all seeds
        self.found: dict[Trial, Point] = {}

    def settings(self, trial: Trial) -> dict[str, Any]:
        """Return a trial's settings."""
        more = {**self.more, "superchips": trial.chips, "seed": trial.seed}
        if trial.part < self.requests:
            more["workload.max_requests"] = trial.part
        return self.space.settings(self.arms[trial.arm].params, more)

    def serve(self, trials: Sequence[Trial]) -> list[Outcome]:
        """Return trials' outcomes, each run once; without chance, with one seed."""
        first = self.all_seeds[0]
        later = {self._chance(t): t for t in trials if t.seed != first}
        self._run_new([t for t in trials if t.seed == first])
        self._run_new(list(later.values()))
        trials = [self._without_chance(trial) for trial in trials]
        self._run_new(trials)
        return [outcome_of(self.found[trial]) for trial in trials]

    def _run_new(self, trials: Sequence[Trial]) -> None:
        new = [t for t in map(self._without_chance, trials) if t not in self.found]
        for some in (new[:1], new[1:]) if self.alone_first else (new,):
            points = self.run([self.settings(t) for t in some])
            self.found.update(zip(some, points, strict=True))
            self.alone_first = self.alone_first and not some
        for trial in new:
            first = replace(trial, seed=self.all_seeds[0])
            mine, other = self.found[trial], self.found.get(first)
            if trial != first and other and not other.error and _results(mine) == _results(other):
                self.seedless.add(self._chance(trial))
                del self.found[trial]

    def seeds(self, arm: int, chips: int) -> tuple[int, ...]:
        """Return the seeds with which a fleet's runs differ."""
        trial = Trial(arm, chips, self.requests, self.all_seeds[0])
        return self.all_seeds[:1] if self._chance(trial) in self.seedless else self.all_seeds

    def _without_chance(self, trial: Trial) -> Trial:
        is_sure = self._chance(trial) in self.seedless
        return replace(trial, seed=self.all_seeds[0]) if is_sure else trial

    def _chance(self, trial: Trial) -> tuple[str, bool, bool]:
        arm = self.arms[trial.arm]
        return arm.draws, trial.chips > 1, arm.layout.startswith("1x")

    def run(self, settings: Sequence[Mapping[str, Any]]) -> list[Point]:
        """Run configurations, each in its own run folder."""
        points: dict[int, Point] = {}
        self.watch.ask(len(settings))
        for number, one in enumerate(settings):
            self.runner.ask(number, one)
        for number, point in self.runner.done():
            points[number] = point
            self.watch.run()
        return [points[number] for number in range(len(settings))]


def outcome_of(point: Point) -> Outcome:
    """Return a run's outcome: targets met or missed, and its error."""
    summary, verdict = point.summary, point.summary.get("verdict") or {}
    missed = round((1.0 - verdict.get("met", 0.0)) * summary.get("requests", 0))
    latencies = [(summary.get(key) or {}).get(p) for key in ("ttft_s", "tpot_s")
                 for p in ("p50", "p99")]  # fmt: skip
    return Outcome(
        meets=verdict.get("state") == "served", missed=missed, error=point.error,
        latencies=tuple(value for value in latencies if value is not None),
    )  # fmt: skip


def _results(point: Point) -> list[Any]:
    names = ("attainment", "ttft_s", "tpot_s", "e2e_s", "span_s", "output_tokens")
    return [point.error, *(point.summary.get(name) for name in names)]
