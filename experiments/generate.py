"""Generate text: `python -m experiments.generate prompt="The capital of France is"`.

    python -m experiments.generate prompt="Why is the sky blue?" temperature=0.7 seed=3
    python -m experiments.generate checkpoint=<folder or GGUF file> chat=false prompt="Once upon"
    python -m experiments.generate linear=hybrid linear.alpha.qkv=0.5 prompt=-       # reads stdin
    python -m experiments.generate prompts_file=prompts.jsonl rows=16                # a batch
    python -m experiments.generate -m prompt="Hello" temperature=0.5,1 seed=0,1,2    # a sweep
    python -m experiments.generate --help                                            # all settings

Without a checkpoint it is SmolLM2-135M-Instruct, fetched at the first run. Text goes to standard
output, everything else to standard error; each run leaves a folder in runs/generate.
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
from experiments.generation import note, protected, register, say_warnings
from experiments.generation.point import PipeClosed, generate_point
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
PIPE_CLOSED = 141  # what a shell reports of a program that SIGPIPE ended
CONFIG = "generate"


def main() -> int:
    """Run what the command line says; return the exit status."""
    # Errors reach us instead of Hydra's own report, so that they get one form.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    heed_signals(once=True)
    say_warnings()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows another in its place.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    given = sys.argv[:]
    refused: list[Exception] = []

    def point(cfg: DictConfig) -> None:
        sys.argv[:] = given  # what provenance is to say
        try:
            generate_point(cfg)
        except (SettingError, DataError) as error:  # Hydra would say a line of its own about it
            refused.append(error)

    try:
        register()
        register_plugins()
        check_arguments(given[1:])
        arguments = protected(given[1:])
        if is_sweep(arguments):
            return _sweep(arguments)
        sys.argv[1:] = arguments
        run = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")
        run(point)()
    except (SettingError, DataError) as error:
        note(f"error: {error}")
        return BAD_SETTINGS
    except (HydraException, OmegaConfBaseException) as error:
        found = as_setting_error(error)
        hint = ""
        if isinstance(found, SettingError) and found.field.startswith("linear."):
            hint = " Only linear=hybrid has alpha, sm_limit and cluster."
        note(f"error: {found}{hint}")
        return BAD_SETTINGS
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        # Nobody reads any more. Python would say so again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    finally:
        sys.argv[:] = given
    for refusal in refused:
        note(f"error: {refusal}")
    return BAD_SETTINGS if refused else 0


def _sweep(arguments: list[str]) -> int:
    found = sweep(
        generate_point,
        arguments,
        config_name=CONFIG,
        check=_check,
        waiting=lambda folder: note(f"waiting for another process in {folder}"),
    )
    if found is None:
        return 0
    for one in found.points:
        if one.state == "failed":
            note(f"no result: {' '.join(one.overrides)}: {one.error}")
    if found.error:
        note(f"error: the sweep was cut short: {found.error}")
    return found.status


def _check(shared: Shared) -> None:
    if not shared.is_grid:
        raise SettingError(
            "hydra/sweeper", "another", "basic: texts have no objective to search by"
        )


if __name__ == "__main__":
    sys.exit(main())
