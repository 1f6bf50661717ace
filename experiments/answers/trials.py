"""Runs of a race's trials, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from c2c.runs import progress_bar
from experiments.answers.fleets import Arm, FleetSpace
from experiments.answers.points import Point, PointRunner
from experiments.answers.race import Outcome, Trial

__all__ = ["Runs", "outcome_of"]


class Runs:
    """Runs of a race: computes trials and keeps their results."""

    def __init__(
        self, space: FleetSpace, arms: Sequence[Arm], more: Mapping[str, Any], requests: int,
        seeds: Sequence[int], runner: PointRunner, *, alone_first: bool,
    ) -> None:  # fmt: skip
        self.space, self.arms, self.more = space, arms, more
        self.requests, self.runner, self.alone_first = requests, runner, alone_first
        self.all_seeds = tuple(seeds)
        self.seedless: set[int] = set()  # arms whose runs are equal for all seeds
        self.found: dict[Trial, Point] = {}

    def settings(self, trial: Trial) -> dict[str, Any]:
        """Return the settings of a trial."""
        more = {**self.more, "superchips": trial.chips, "seed": trial.seed}
        if trial.part < self.requests:
            more["workload.max_requests"] = trial.part
        return self.space.settings(self.arms[trial.arm].params, more)

    def serve(self, asked: Sequence[Trial]) -> list[Outcome]:
        """Return the outcomes of trials; a trial runs once, and an arm without chance one seed."""
        asked = [self._without_chance(trial) for trial in asked]
        new = [trial for trial in asked if trial not in self.found]
        with progress_bar("runs", len(new)) as advance:
            for some in (new[:1], new[1:]) if self.alone_first else (new,):
                points = self.run([self.settings(t) for t in some], advance)
                self.found.update(zip(some, points, strict=True))
        self.alone_first = False
        outcomes = [outcome_of(self.found[trial]) for trial in asked]
        for trial in new:
            first = replace(trial, seed=self.all_seeds[0])
            if trial != first and _results(self.found[trial]) == _results(self.found[first]):
                self.seedless.add(trial.arm)
                del self.found[trial]
        return outcomes

    def seeds(self, arm: int) -> tuple[int, ...]:
        """Return the seeds with which an arm's runs differ."""
        return self.all_seeds[:1] if arm in self.seedless else self.all_seeds

    def _without_chance(self, trial: Trial) -> Trial:
        return replace(trial, seed=self.all_seeds[0]) if trial.arm in self.seedless else trial

    def run(self, settings: Sequence[Mapping[str, Any]], advance: Any = None) -> list[Point]:
        """Run configurations, each in its own run folder."""
        points: dict[int, Point] = {}
        for number, one in enumerate(settings):
            self.runner.ask(number, one)
        for number, point in self.runner.done():
            points[number] = point
            if advance is not None:
                advance(len(points))
        return [points[number] for number in range(len(settings))]


def outcome_of(point: Point) -> Outcome:
    """Return the outcome of a run: targets met or missed, and its error."""
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
