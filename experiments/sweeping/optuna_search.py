"""Search by Optuna as a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import optuna
import yaml
from hydra.core.utils import JobReturn
from omegaconf import OmegaConf
from optuna.study import StudyDirection
from optuna.trial import Trial, TrialState

from c2c.errors import SettingError
from c2c.ranges import Count, OneOf, check_value
from c2c.runs import write_text
from experiments.sweeping.search_space import as_text, space_of
from experiments.sweeping.sweep import EmptySearch

__all__ = ["RESULTS", "SearchSettings", "search"]

RESULTS = "optimization_results.yaml"  # the name of Hydra's published plug-in

DIRECTIONS = ("minimize", "maximize")

type Launch = Callable[..., Sequence[JobReturn]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of `hydra.sweeper`, as in Hydra's published plug-in.

    Attributes:
      n_trials: total number of points.
      n_jobs: points at the same time.
      directions: "minimize" or "maximize" for each objective.
      sampler: Optuna's sampler.
      storage: URL of a database for the study; None: memory.
      study_name: name of the study there; None: Optuna's choice.
      params: search space beside the command line's.
    """

    n_trials: int
    n_jobs: int
    directions: tuple[str, ...]
    sampler: Any
    storage: str | None
    study_name: str | None
    params: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SearchSettings:
        """Return the settings of a node of Hydra's."""
        plain: dict[str, Any] = {
            k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v
            for k, v in settings.items()
        }
        direction = plain.pop("direction")
        directions = tuple(direction) if isinstance(direction, list | tuple) else (direction,)
        for one in directions:
            check_value(one, Annotated[str, OneOf(*DIRECTIONS)], "hydra.sweeper.direction")
        for name in ("n_trials", "n_jobs"):
            check_value(plain[name], Count, f"hydra.sweeper.{name}")
        plain["params"] = plain["params"] or {}
        return cls(directions=directions, **plain)


def search(
    settings: SearchSettings, arguments: Sequence[str], launch: Launch, folder: str
) -> optuna.Study:
    """Run `n_trials` trials; write the best to the sweep's folder."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    texts = [*(f"{k}={v}" for k, v in settings.params.items()), *arguments]
    space, fixed = space_of(texts)
    if not space:
        raise SettingError(
            "hydra/sweeper", "optuna", "at least one setting to search",
            "Set for example workload.rate_rps='interval(1,8)' or mig=7x12gb,4x24gb.",
        )  # fmt: skip
    study = optuna.create_study(
        study_name=settings.study_name,
        storage=settings.storage,
        sampler=settings.sampler,
        directions=[StudyDirection[one.upper()] for one in settings.directions],
        load_if_exists=True,
    )
    done = sum(trial.state.is_finished() for trial in study.trials)
    number = 0
    while (count := min(settings.n_jobs, settings.n_trials - done)) > 0:
        trials = [study.ask(space) for _ in range(count)]
        points = [
            (*fixed, *(f"{k}={as_text(v)}" for k, v in trial.params.items())) for trial in trials
        ]
        for trial, result in zip(trials, launch(points, initial_job_idx=number), strict=True):
            _tell(study, trial, result, len(settings.directions))
        number += count
        done += count
    _report(study, Path(folder))
    return study


def _tell(study: optuna.Study, trial: Trial, result: JobReturn, objectives: int) -> None:
    try:
        value = result.return_value  # raises what ended the point's process
    except Exception:  # noqa: BLE001 (any; the sweep's table reports it)
        value = None
    values = list(value) if isinstance(value, list | tuple) else [value]
    if None in values:
        study.tell(trial, state=TrialState.FAIL)
        return
    if len(values) != objectives:
        raise SettingError(
            "hydra.sweeper.direction",
            list(study.directions),
            f"{len(values)} directions, one for each objective",
        )
    study.tell(trial, values)


def _report(study: optuna.Study, folder: Path) -> None:
    single = len(study.directions) == 1
    complete = any(trial.state is TrialState.COMPLETE for trial in study.trials)
    best = ([study.best_trial] if single else study.best_trials) if complete else []
    solutions = [{"params": dict(t.params), "values": list(t.values)} for t in best]
    where = folder / RESULTS
    write_text(where, yaml.safe_dump({"name": "optuna", "solutions": solutions}, sort_keys=False))
    if not best:
        raise EmptySearch(
            f"the search has no result: none of its {len(study.trials)} points has a value of the "
            "objective (they failed, or no request finished)"
        )
    for one in best:
        params = " ".join(f"{k}={as_text(v)}" for k, v in one.params.items())
        print(f"best: {', '.join(f'{v:g}' for v in one.values)} at {params}")
    print(f"written: {where}")
