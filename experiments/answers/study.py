"""A search by Optuna for fleets that are cheap and quick, kept in a file and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from c2c.errors import SettingError
from c2c.runs import summary_fields
from experiments.answers.fleets import FleetSpace
from experiments.answers.points import Point, PointRunner

__all__ = ["OBJECTIVES", "Tried", "front_of", "open_study", "run_trials"]

OBJECTIVES = ("gpu_hours", "ttft_p99_s", "tpot_p99_s")
_WITHOUT_VALUES = "without_values"  # of a point that is told and has none
_SPENT = 100  # draws in a row that bring nothing new: there is nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A point that was run.

    Attributes:
      number: in the study.
      params: by dimension.
      values: of `OBJECTIVES`; None where it cannot be set up or finished nothing.
      meets: whether its load was served within the targets.
      told: what else is in the table: attainment_both, verdict, binds, run, error.
    """

    number: int
    params: Mapping[str, Any]
    values: tuple[float, ...] | None
    meets: bool
    told: Mapping[str, Any]


def open_study(path: Path) -> optuna.Study:
    """Return the study of a file, made if it is not there; points that were cut off come first.

    Raises:
      SettingError: the file cannot be read as a study.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from experiments.answers.kernel_lock import KernelLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = KernelLock(path.with_name(f"{path.name}.held"))
    backend = JournalFileBackend(str(path), lock_obj=lock)
    try:
        study = optuna.create_study(
            study_name="search", storage=JournalStorage(backend),
            directions=["minimize"] * len(OBJECTIVES), load_if_exists=True,
        )  # fmt: skip
    except ValueError as error:
        raise SettingError("out", str(path), "a study of Optuna, whole", "Remove it.") from error
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(dict(trial.params))
    return study


def run_trials(
    study: optuna.Study,
    space: FleetSpace,
    *,
    trials: int,
    begin_with: Sequence[Mapping[str, Any]],
    more: Sequence[str],
    wanted: float,
    seed: int,
    workers: int,
    alone_first: bool,
    on_point: Callable[[Tried], None],
) -> None:
    """Try points until so many different ones were, or there are no others.

    What is proposed depends on the seed and on what was tried before, so a study that was stopped
    goes on as if it had not been.

    Args:
      study: of `open_study`.
      space: what to vary.
      trials: how many points in all, those of earlier calls included.
      begin_with: points to try first, in a new study.
      more: settings of all points.
      wanted: share of requests on target.
      seed: of the sampler.
      workers: points at the same time.
      alone_first: begin with one point, whose machine code the others then use.
      on_point: is told of each.
    """
    for one in begin_with:
        study.enqueue_trial(dict(one), skip_if_exists=True)
    known = {_key(t.params): _tried(t) for t in study.trials if _is_told(t)}
    for earlier in known.values():
        on_point(earlier)
    enough = min(trials, space.size)
    with PointRunner(workers) as runner:
        while len(known) < enough:
            count = min(workers, int(enough) - len(known))
            batch = _draw(study, space, known, seed, 1 if alone_first else count)
            alone_first = False
            if not batch:
                return
            done: dict[int, Point] = {}
            for trial in batch:
                try:
                    runner.ask(trial.number, space.settings(trial.params, more))
                except SettingError as error:
                    done[trial.number] = Point(folder=None, summary={}, error=str(error))
            done.update(runner.done())
            for trial in batch:
                _tell(study, trial, done[trial.number], wanted)
                known[_key(trial.params)] = found = _tried(study.trials[trial.number])
                on_point(found)


def front_of(study: optuna.Study) -> set[int]:
    """Return the numbers of the points that meet the targets and are dominated by no other."""
    if not any(t.state is TrialState.COMPLETE for t in study.trials):
        return set()
    return {trial.number for trial in study.best_trials}


def _draw(
    study: optuna.Study, space: FleetSpace, known: Mapping[Any, Tried], seed: int, count: int
) -> list[Trial]:
    """Return new points; one that was drawn before is told its values again."""
    batch: dict[Any, Trial] = {}
    spent = 0
    while len(batch) < count and spent < _SPENT:
        # A sampler of its own for each draw: what it proposes does not depend on earlier calls.
        here = seed + len(study.trials)
        study.sampler = (
            optuna.samplers.RandomSampler(here) if spent else optuna.samplers.TPESampler(seed=here)
        )
        trial = study.ask(space.dimensions)
        key = _key(trial.params)
        if key not in known and key not in batch:
            batch[key], spent = trial, 0
            continue
        spent += 1
        study.tell(trial, state=TrialState.FAIL)
    return list(batch.values())


def _tell(study: optuna.Study, trial: Trial, point: Point, wanted: float) -> None:
    verdict = point.summary.get("verdict") or {}
    fields = summary_fields(point.summary)
    met = verdict.get("met", 0.0)
    state = verdict.get("state", "refused")
    for name, value in (
        ("state", state), ("attainment_both", met if verdict else None),
        ("binds", verdict.get("binds")), ("run", point.folder and point.folder.name),
        ("error", point.error or None),
    ):  # fmt: skip
        trial.set_user_attr(name, value)
    hours = (fields.get("run_chips") or 0.0) * (fields.get("span_s") or 0.0) / 3600.0
    ttft, tpot = fields.get("ttft_p99_s"), fields.get("tpot_p99_s")
    if point.error or ttft is None:
        trial.set_user_attr(_WITHOUT_VALUES, True)
        study.tell(trial, state=TrialState.FAIL)
        return
    trial.set_constraint("targets", 1.0 if state == "overload" else wanted - met)
    # Three digits: when the last request happens to end makes no fleet better than another.
    study.tell(trial, [float(f"{value:.3g}") for value in (hours, ttft, tpot or 0.0)])


def _is_told(trial: FrozenTrial) -> bool:
    """Whether all of a point is known; one that was cut off while it was told is tried again."""
    return trial.state is TrialState.COMPLETE or _WITHOUT_VALUES in trial.user_attrs


def _tried(trial: FrozenTrial) -> Tried:
    told = {k: v for k, v in trial.user_attrs.items() if k != _WITHOUT_VALUES}
    is_complete = trial.state is TrialState.COMPLETE
    return Tried(
        number=trial.number,
        params=dict(trial.params),
        values=tuple(trial.values) if is_complete else None,
        meets=told["state"] == "served",
        told=told,
    )


def _key(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))
