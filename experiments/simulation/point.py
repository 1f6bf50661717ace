"""One point: a single run, or a run of a sweep."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from c2c.config import Settings, build
from c2c.errors import SettingError
from c2c.runs import FolderInUse, is_in_use
from experiments.command import in_one_line
from experiments.simulation.execute import check_disk, code_keys, finished, folder_of, run_key
from experiments.simulation.report import console, print_folder, print_verdict
from experiments.simulation.single_run import objective_setting, show, simulate_composed, value_of
from experiments.sweeping import PointRecord, begin, fail, finish
from experiments.tables import print_line

__all__ = ["simulate_here", "simulate_point"]

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
POLL_S = 0.2


def simulate_point(cfg: DictConfig) -> Any:
    """Simulate a configuration; return the objective's value, or None."""
    hydra = HydraConfig.get()
    if hydra.mode is not RunMode.MULTIRUN:
        return simulate_composed(cfg)
    point = begin(Path(hydra.runtime.output_dir), int(hydra.job.num), list(hydra.overrides.task))
    return _swept(cfg, point, terse=str(hydra.launcher._target_) != BASIC_LAUNCHER)


def simulate_here(settings: Callable[[], Settings], point: PointRecord) -> None:
    """Simulate a sweep's point in the command's process."""
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
    value_of(outcome, objective_setting(plain))


@lru_cache(maxsize=1)
def _keys_of(_sweep: Path) -> dict[Path, str]:
    return {}


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
            outcome = show(setup, out, "none" if terse else "verdict", keys)
        except FolderInUse:
            folder = folder_of(setup)
            if objective is None:  # the sweep waits for it at its end
                print(f"running elsewhere: {folder}", file=sys.stderr)
                finish(point, "elsewhere", folder, run_key(setup))
                return None
            while is_in_use(folder):
                time.sleep(POLL_S)
            outcome = show(setup, out, "none" if terse else "verdict", keys)
        finish(point, "kept" if outcome.skipped else "made", outcome.folder)
        return value_of(outcome, objective)
    except Exception as error:  # noqa: BLE001 (the other points go on)
        line = in_one_line(error)
        if line is None:  # a bug
            traceback.print_exc()
        else:
            print(f"error: {line}", file=sys.stderr)
        fail(point, line or f"{type(error).__name__}: {error}")
    return None
