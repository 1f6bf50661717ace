"""Simulate one serving system on one workload; prints a table and leaves a run folder.

    python -m experiments.simulate                                # the defaults of conf/config.yaml
    python -m experiments.simulate workload=file workload.path=trace.csv hardware=gh200 mig=7x12gb
    python -m experiments.simulate -m system=c2cserve,serverlessllm seed=0,1,2   # a sweep
    python -m experiments.simulate -m hydra/launcher=cores seed=range(8)         # on two cores
    python -m experiments.simulate --config-dir mydir system=mine   # a system of one's own
    python -m experiments.simulate --cfg job                        # all settings, nothing is run

A run that is complete is skipped; a sweep that was stopped goes on where it was, on any launcher.
The first run on a machine compiles the event loop once (about 20 s).
"""

from __future__ import annotations

import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from c2c.config import as_setting_error, config_dir
from c2c.errors import DataError, SettingError
from experiments.simulation.own_settings import with_own_settings
from experiments.simulation.point import check_shared, objective_setting, simulate_point
from experiments.simulation.report import console
from experiments.simulation.runs_table import print_sweep
from experiments.sweeping import (
    Shared,
    check_arguments,
    heed_signals,
    is_sweep,
    register_plugins,
    sweep,
)

__all__ = ["main"]

BAD_SETTINGS = 2
INTERRUPTED = 130
CONFIG = "config"


def main() -> int:
    """Run what the command line says; return the exit status.

    0: every run is complete; 1: points of a sweep have no result; 2: a setting cannot work.
    """
    # Errors reach us instead of Hydra's own report, so that they get one form.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    heed_signals()
    arguments = sys.argv[1:]
    refused: list[Exception] = []

    def point(cfg: DictConfig) -> None:
        try:
            simulate_point(cfg)
        except (SettingError, DataError) as error:  # Hydra would say a line of its own about it
            refused.append(error)

    try:
        arguments = sys.argv[1:] = with_own_settings(sys.argv[1:])
        register_plugins()
        check_arguments(arguments)
        if is_sweep(arguments):
            return _sweep(arguments)
        run = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")
        run(point)()
    except (SettingError, DataError) as error:
        return _refused(error)
    except (HydraException, OmegaConfBaseException) as error:
        return _refused(as_setting_error(error, arguments))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return INTERRUPTED
    return _refused(refused[0]) if refused else 0


def _sweep(arguments: list[str]) -> int:
    found = sweep(
        simulate_point,
        arguments,
        config_name=CONFIG,
        check=_check,
        waiting=lambda folder: print(f"waiting for another process in {folder}", file=sys.stderr),
    )
    if found is None:
        return 0
    if found.points:
        print_sweep(console(), found.points)
    if found.error:
        print(f"error: the sweep was cut short: {found.error}", file=sys.stderr)
    return found.status


def _check(shared: Shared) -> None:
    if shared.cfg.folder is not None:
        raise SettingError(
            "folder", shared.cfg.folder, "null in a sweep, whose points need a folder each",
            "Set out=<folder> for all of them.",
        )  # fmt: skip
    check_shared(shared.cfg)
    if not shared.is_grid and objective_setting(shared.cfg) is None:
        raise SettingError(
            "objective", None, "what the sweeper is to optimise", "Such as objective=ttft_p99_s."
        )


def _refused(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(main())
