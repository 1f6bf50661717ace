"""Command line of `c2c generate`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from c2c.config import as_setting_error, config_dir, spelled
from c2c.errors import SettingError
from experiments.generation import note, protected, register
from experiments.generation.point import PipeClosed, generate_point
from experiments.sweeping import Shared, check_arguments, is_sweep, register_plugins, sweep

__all__ = ["run_command_line"]

CONFIG = "generate"


def run_command_line(words: Sequence[str]) -> int:
    """Generate text by the given arguments; return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text shows a replacement character rather than an escape code.
        sys.stdout.reconfigure(errors="replace")
    before = sys.argv[:]
    raised: list[Exception] = []

    def point(cfg: DictConfig) -> None:
        sys.argv[:] = before  # as provenance records it
        try:
            generate_point(cfg)
        except Exception as error:  # noqa: BLE001 (raised again: Hydra would print its own line)
            raised.append(error)

    try:
        register()
        register_plugins()
        arguments = protected(spelled(words))
        check_arguments(arguments, sweep="-m")
        if is_sweep(arguments):
            return _sweep(arguments)
        sys.argv[1:] = arguments
        hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(point)()
    except (HydraException, OmegaConfBaseException) as error:
        problem = as_setting_error(error)
        if isinstance(problem, SettingError) and problem.field.startswith("linear."):
            hint = "Only linear=hybrid has alpha, sm_limit and cluster."
            raise SettingError(problem.field, problem.value, problem.allowed, hint) from error
        raise
    except PipeClosed as error:
        raise BrokenPipeError from error
    finally:
        sys.argv[:] = before
    if raised:
        raise raised[0]
    return 0


def _sweep(arguments: list[str]) -> int:
    outcome = sweep(
        generate_point,
        arguments,
        config_name=CONFIG,
        check=_check,
        waiting=lambda folder: note(f"waiting for another process in {folder}"),
    )
    if outcome is None:
        return 0
    for one in outcome.points:
        if one.state == "failed":
            note(f"no result: {' '.join(one.overrides)}: {one.error}")
    if outcome.error:
        note(f"error: {outcome.error}")
    return outcome.status


def _check(shared: Shared) -> None:
    if not shared.is_grid:
        raise SettingError(
            "hydra/sweeper", "another", "grid, as texts have no objective to optimise"
        )
