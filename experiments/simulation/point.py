"""One point: a single run, or a run of a sweep in any process of its launcher."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from c2c.config import RunSetup, Settings, build
from c2c.errors import SettingError
from c2c.runs import FolderInUse, is_in_use, progress_bar, storage_error
from c2c.simulator import is_compiled
from experiments.command import in_one_line
from experiments.simulation.execute import (
    Outcome,
    check_disk,
    code_keys,
    execute,
    finished,
    folder_of,
    run_key,
)
from experiments.simulation.objective import check_objective, known_fields, objective_of
from experiments.simulation.report import (
    console,
    print_doubts,
    print_folder,
    print_outcome,
    print_setup,
    print_verdict,
)
from experiments.stopping import told_to_stop
from experiments.sweeping import PointRecord, begin, fail, finish
from experiments.tables import print_line

__all__ = ["check_shared", "objective_setting", "simulate_alone", "simulate_here", "simulate_point"]

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
POLL_S = 0.2


def simulate_point(cfg: DictConfig) -> Any:
    """Simulate a configuration; return the objective's value, None without one.

    In a sweep, errors are recorded and None is returned, so that other points go on.
    """
    hydra = HydraConfig.get()
    if hydra.mode is not RunMode.MULTIRUN:
        return simulate_alone(cfg)
    point = begin(Path(hydra.runtime.output_dir), int(hydra.job.num), list(hydra.overrides.task))
    return _swept(cfg, point, terse=str(hydra.launcher._target_) != BASIC_LAUNCHER)


def simulate_here(settings: Callable[[], Settings], point: PointRecord) -> None:
    """Simulate a point of a sweep in the process of its command; a complete one is only read."""
    keys = _keys_of(point.at)
    try:
        plain = settings()
        outcome = finished(plain, code_keys(), keys)
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        fail(begin(point.at, point.number, point.overrides), str(error))
        return
    if outcome is None:
        _swept(plain, begin(point.at, point.number, point.overrides), terse=False, keys=keys)
        return
    out = console()
    print_line(out, " ".join(point.overrides), "bold")
    print_verdict(out, outcome)
    print_folder(out, outcome)
    finish(point, "kept", outcome.folder)
    _told(outcome, objective_setting(plain))


@lru_cache(maxsize=1)
def _keys_of(_sweep: Path) -> dict[Path, str]:
    return {}


def simulate_alone(cfg: DictConfig) -> Any:
    """Simulate a configuration outside a sweep; returns and raises as `simulate_point`."""
    check_shared(cfg)
    check_disk(cfg)
    outcome = _run(build(cfg), console(), "all")
    return _told(outcome, objective_setting(cfg))


def objective_setting(cfg: DictConfig | Settings) -> Any:
    """Return the objective as plain data."""
    found = cfg["objective"]
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found


def check_shared(cfg: DictConfig) -> None:
    """Raise for a bad setting that the simulation does not depend on: the objective."""
    check_objective(objective_setting(cfg), known_fields)


def _swept(
    cfg: DictConfig | Settings, point: PointRecord, *, terse: bool,
    keys: dict[Path, str] | None = None,
) -> Any:  # fmt: skip
    out = console()
    if not terse:
        print_line(out, " ".join(point.overrides), "bold")
    try:
        if cfg["folder"] is not None:
            raise SettingError(
                "folder", cfg["folder"], "null in a sweep, whose points need a folder each",
                "Set out=<folder> for all of them.",
            )  # fmt: skip
        check_disk(cfg)
        setup = build(cfg)
        objective = objective_setting(cfg)
        try:
            outcome = _run(setup, out, "none" if terse else "verdict", keys)
        except FolderInUse:
            folder = folder_of(setup)
            if objective is None:  # the sweep waits for it at its end
                print(f"running elsewhere: {folder}", file=sys.stderr)
                finish(point, "elsewhere", folder, run_key(setup))
                return None
            while is_in_use(folder):
                time.sleep(POLL_S)
            outcome = _run(setup, out, "none" if terse else "verdict", keys)
        finish(point, "kept" if outcome.skipped else "made", outcome.folder)
        return _told(outcome, objective)
    except Exception as error:  # noqa: BLE001 (the other points go on)
        line = in_one_line(error)
        if line is None:  # a bug
            traceback.print_exc()
        else:
            print(f"error: {line}", file=sys.stderr)
        fail(point, line or f"{type(error).__name__}: {error}")
    return None


def _told(outcome: Outcome, objective: Any) -> Any:
    # A run that served nobody has no objective, whatever the arithmetic makes of zeros.
    value = objective_of(objective, outcome.summary) if outcome.summary["finished"] else None
    if objective is not None:
        print(f"objective {objective}: {value}")
    return value


def _run(
    setup: RunSetup, out: Console, shown: Literal["all", "verdict", "none"],
    keys: dict[Path, str] | None = None,
) -> Outcome:  # fmt: skip
    """Run one point; print its settings before, and its tables as soon as they are known.

    A point of a sweep shows its verdict alone, as the sweep ends in a table; in a process beside
    others, nothing.
    """
    with ExitStack() as drawn:
        bars: list[Callable[[float], None]] = []

        def before(compiled: bool) -> None:
            if shown == "all":
                print_setup(out, setup)
            elif shown == "verdict":
                print_doubts(out, setup)
            if compiled and not is_compiled():
                out.print("compiling the event loop, once on this machine: about 20 s ...")
            if shown != "none":
                total = float(setup.workload.description["requests"])
                bars.append(drawn.enter_context(progress_bar("simulating", total)))

        def progress(done: float) -> None:
            if told_to_stop():
                raise KeyboardInterrupt
            for bar in bars:
                bar(done)

        def after(outcome: Outcome) -> None:
            drawn.close()  # remove the bar before the tables are printed
            if shown == "all":
                print_outcome(out, setup, outcome)
            elif shown == "verdict":
                print_verdict(out, outcome)

        try:
            outcome = execute(setup, before=before, on_progress=progress, after=after, keys=keys)
        except OSError as error:
            raise storage_error(error, folder_of(setup)) from error
    print_folder(out, outcome)
    return outcome
