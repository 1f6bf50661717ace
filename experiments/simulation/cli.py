"""Command line of `c2c simulate` with options."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from c2c.config import config_dir, load, spelled
from c2c.errors import SettingError
from experiments.simulation.help import help_text
from experiments.simulation.own_settings import with_own_settings
from experiments.simulation.point import simulate_here, simulate_point
from experiments.simulation.report import console
from experiments.simulation.runs_table import print_sweep
from experiments.simulation.single_run import check_shared, objective_setting
from experiments.sweeping import (
    Shared,
    check_arguments,
    fixed,
    is_sweep,
    options_first,
    register_plugins,
    sweep,
)

__all__ = ["run_command_line"]

CONFIG = "config"
HELP, OWN = frozenset({"-h", "--help"}), "--config-dir="


def run_command_line(words: Sequence[str]) -> int:
    """Run a command line; return the exit status, see `c2c simulate`."""
    raised: list[Exception] = []

    def point(cfg: DictConfig) -> None:
        try:
            simulate_point(cfg)
        except Exception as error:  # noqa: BLE001 (raised again: Hydra would print a line of its own)
            raised.append(error)

    arguments = sys.argv[1:] = options_first(spelled(with_own_settings(words)))
    register_plugins()
    check_arguments(arguments)
    if HELP.intersection(arguments):
        shown = [a for a in arguments if not a.startswith("-")]
        folder = next((a.partition("=")[2] for a in arguments if a.startswith(OWN)), None)
        print(help_text(load(fixed(shown), folder=folder)), end="")
        return 0
    if is_sweep(arguments):
        return _sweep(arguments)
    hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(point)()
    if raised:
        raise raised[0]
    return 0


def _sweep(arguments: list[str]) -> int:
    outcome = sweep(
        simulate_point,
        arguments,
        config_name=CONFIG,
        check=_check,
        here=simulate_here,
        waiting=lambda folder: print(f"waiting for another process in {folder}", file=sys.stderr),
    )
    if outcome is None:
        return 0
    if outcome.points:
        print_sweep(console(), outcome.points)
    if outcome.error:
        print(f"error: {outcome.error}", file=sys.stderr)
    return outcome.status


def _check(shared: Shared) -> None:
    if shared.cfg.folder is not None:
        raise SettingError(
            "folder", shared.cfg.folder, "null in a sweep, whose points need a folder each",
            "Set out=<folder> for all of them.",
        )  # fmt: skip
    check_shared(shared.cfg)
    if not shared.is_grid and objective_setting(shared.cfg) is None:
        raise SettingError(
            "objective", None, "an objective for the sweeper", "Set objective=ttft_p99_s."
        )
