"""The search with a launcher of our own, and once through the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hydra.core.utils import JobReturn, JobStatus

from c2c.errors import SettingError
from experiments.sweeping.optuna_search import RESULTS, SearchSettings, search
from experiments.sweeping.sweep import EmptySearch

SPACE = ["x=interval(-4.0,4.0)", "n=range(0,7,2)", "kind=a,b", "fixed=3"]


def settings(**more: Any) -> SearchSettings:
    plain: dict[str, Any] = {
        "n_trials": 12, "n_jobs": 2, "direction": "minimize", "storage": None, "study_name": None,
        "sampler": optuna.samplers.TPESampler(seed=0), "params": None,
    }  # fmt: skip
    return SearchSettings.of(plain | more)


class Launcher:
    """Computes (x - 1)^2 + n in this process; x above 3 fails in one of two ways."""

    def __init__(self, several: bool = False) -> None:
        self.points: list[tuple[str, ...]] = []
        self._several = several

    def __call__(self, overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        assert initial_job_idx == len(self.points)
        self.points += map(tuple, overrides)
        return [self._one(dict(o.split("=") for o in point)) for point in overrides]

    def _one(self, point: dict[str, str]) -> JobReturn:
        assert point["fixed"] == "3"
        assert point["n"] in ("0", "2", "4", "6")
        done = JobReturn()
        done.status = JobStatus.COMPLETED
        x = float(point["x"])
        value = (x - 1) ** 2 + int(point["n"])
        done.return_value = (value, -x) if self._several else value
        if x > 3:
            done.return_value = None
        elif x < -3:
            done.status, done.return_value = JobStatus.FAILED, RuntimeError("killed")
        return done


def test_it_finds_repeats_itself_and_survives_points_that_fail(tmp_path: Path) -> None:
    first, second = Launcher(), Launcher()
    study = search(settings(n_trials=40), SPACE, first, str(tmp_path))
    assert search(settings(n_trials=40), SPACE, second, str(tmp_path)).best_value == (
        study.best_value
    )
    assert first.points == second.points  # so that a stopped search finds its points complete
    states = [t.state.name for t in study.trials]
    assert len(states) == 40
    assert {"COMPLETE", "FAIL"} == set(states)
    assert study.best_value < 1
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert found["solutions"][0]["values"] == [study.best_value]


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    more = settings(direction=["minimize", "minimize"], n_trials=20)
    study = search(more, SPACE, Launcher(several=True), str(tmp_path))
    found = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert len(found["solutions"]) == len(study.best_trials) > 1
    with pytest.raises(SettingError, match=r"hydra\.sweeper\.direction"):
        search(settings(), SPACE, Launcher(several=True), str(tmp_path))


def test_a_stored_study_goes_on(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    stored: dict[str, Any] = {"storage": storage, "study_name": "s"}
    search(settings(n_trials=4, **stored), SPACE, Launcher(), str(tmp_path))
    more = Launcher()
    study = search(settings(n_trials=6, **stored), SPACE, more, str(tmp_path))
    assert (len(study.trials), len(more.points)) == (6, 2)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"n_trials": 0}, "n_trials"), ({"n_jobs": "many"}, "n_jobs"), ({"direction": "up"}, "up")],
)
def test_settings_that_cannot_work(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        settings(**wrong)


def test_nothing_to_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="setting to search"):
        search(settings(), ["fixed=3"], Launcher(), str(tmp_path))


@pytest.mark.slow
def test_the_command_searches_on_two_cores_and_repeats_itself_on_one(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "c2c", "simulate", "-m", "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=4", "workload=poisson",
        "workload.requests=40", "figures=false", "workload.rate_rps=interval(1.0,8.0)", "out=out",
    ]  # fmt: skip
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "Set objective=ttft_p99_s" in refused.stderr
    assert not (tmp_path / "out").exists()
    command.append("objective=ttft_p99_s + tpot_p50_s")
    printed = []
    for launcher in ("cores", "basic"):
        done = subprocess.run(
            [*command, f"hydra/launcher={launcher}"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    best = [line for text in printed for line in text.splitlines() if line.startswith("best: ")]
    assert len(best) == 2
    assert best[0] == best[1]
    assert printed[1].count("complete already, skipped") == 4
    assert len(list((tmp_path / "out").glob("[!.]*/DONE"))) == 4


@pytest.mark.parametrize("several", [False, True])
def test_a_search_without_a_usable_point_says_so(tmp_path: Path, several: bool) -> None:
    direction = ["minimize"] * 2 if several else "minimize"
    with pytest.raises(EmptySearch, match="none of its 4 points has a value of the objective"):
        search(
            settings(n_trials=4, direction=direction),
            ["x=choice(4,5,-5)", "n=0", "fixed=3"], Launcher(several), str(tmp_path),
        )  # fmt: skip
    found = yaml.safe_load((tmp_path / RESULTS).read_text())
    assert found["solutions"] == []


@pytest.mark.slow
def test_a_search_whose_requests_all_fail_ends_with_one_line_and_a_status(tmp_path: Path) -> None:
    """The share of requests on target is 0 then, which is no result to choose by."""
    done = subprocess.run(
        [
            sys.executable, "-m", "c2c", "simulate", "-m", "hydra/sweeper=optuna",
            "hydra.sweeper.n_trials=1", "hydra.sweeper.direction=maximize",
            "objective=attainment_both", "workload.rate_rps=interval(1.0,8.0)",
            "workload=poisson", "workload.requests=5", "figures=false", "out=out",
            "system=serverlessllm", "system.on_oom=fail", "mig=7x12gb",
            "catalog.models=[{spec: llama-3-70b}]",
        ],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("error: the search has no result: none of its 1 points has")
