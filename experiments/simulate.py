"""Simulate one serving system on one workload; prints a table and leaves a run folder.

    python -m experiments.simulate                                # the defaults of conf/config.yaml
    python -m experiments.simulate workload=file workload.path=trace.csv hardware=gh200 mig=7x12gb
    python -m experiments.simulate -m system=c2cserve_letter,serverlessllm   # a sweep
    python -m experiments.simulate --config-dir mydir system=mine   # a system of one's own
    python -m experiments.simulate --cfg job                        # all settings, nothing is run

A run that is complete is skipped; a sweep that was stopped goes on where it was. The first run on a
machine compiles the event loop once (about 20 s).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from c2c.config import (
    RunSetup,
    as_setting_error,
    build,
    config_dir,
    is_machine_code_ready,
)
from c2c.errors import DataError, SettingError
from c2c.runs import progress_bar
from experiments.simulation.execute import Outcome, execute
from experiments.simulation.own_settings import with_own_settings
from experiments.simulation.report import Point, console, print_outcome, print_setup, print_sweep

__all__ = ["main"]

BAD_SETTINGS = 2
INTERRUPTED = 130


def _point(cfg: DictConfig, points: list[Point]) -> None:
    """Run one point; a sweep goes on after a point whose settings cannot work."""
    hydra_cfg = HydraConfig.get()
    overrides = tuple(hydra_cfg.overrides.task)
    out = console()
    try:
        if hydra_cfg.mode is RunMode.MULTIRUN:
            out.rule(" ".join(overrides), align="left")
            if cfg.folder is not None:
                raise SettingError(
                    "folder", cfg.folder, "null in a sweep, whose points need a folder each",
                    "Set out=<folder> for all of them.",
                )  # fmt: skip
        setup = build(cfg)

        points.append((overrides, _run(setup, out)))
    except (SettingError, DataError) as error:
        _say(error)
        points.append((overrides, None))


def _run(setup: RunSetup, out: Console) -> Outcome:
    """Run one point, printing its settings before and its tables as soon as they are known."""
    with ExitStack() as drawn:
        bars: list[Callable[[float], None]] = []

        def before(compiled: bool) -> None:
            print_setup(out, setup)
            if compiled and not is_machine_code_ready(setup):
                out.print("compiling the event loop, once on this machine: about 20 s ...")
            total = float(setup.workload.description["requests"])
            bars.append(drawn.enter_context(progress_bar("simulating", total)))

        def progress(done: float) -> None:
            if _told_to_stop:  # and what was raised then got lost in a callback or finaliser
                raise KeyboardInterrupt
            bars[0](done)

        def after(outcome: Outcome) -> None:
            drawn.close()  # the bar goes before the tables come
            print_outcome(out, outcome)

        return execute(setup, before=before, on_progress=progress, after=after)


def _say(error: Exception) -> None:
    print(f"error: {error}", file=sys.stderr)


_told_to_stop: list[int] = []  # signals, in the one place where a process has such state anyway


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signal's protocol)
    _told_to_stop.append(signum)
    raise KeyboardInterrupt  # a run that is told to stop leaves crash.json, as with Ctrl-C


def main() -> int:
    """Run what the command line says; return the exit status."""
    points: list[Point] = []
    # Errors reach us instead of Hydra's own report, so that they get one form.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminate)
    try:
        sys.argv[1:] = with_own_settings(sys.argv[1:])
        run = hydra.main(config_path=str(config_dir()), config_name="config", version_base="1.3")
        run(lambda cfg: _point(cfg, points))()
    except (SettingError, DataError) as error:
        _say(error)
        return BAD_SETTINGS
    except (HydraException, OmegaConfBaseException) as error:
        _say(as_setting_error(error))
        return BAD_SETTINGS
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return INTERRUPTED
    if len(points) > 1:
        print_sweep(console(), points)
    return BAD_SETTINGS if any(outcome is None for _, outcome in points) else 0


if __name__ == "__main__":
    sys.exit(main())
