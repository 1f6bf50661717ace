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
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from c2c.config import as_setting_error, config_dir
from c2c.errors import DataError, SettingError
from experiments.generation import Display, note, protected, register, say_warnings, settings_of

if TYPE_CHECKING:
    from experiments.generation.execute import Loaded

__all__ = ["main"]

BAD_SETTINGS = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell reports of a program that SIGPIPE ended


class _PipeClosed(BaseException):
    """Nobody reads standard output any more; no `Exception`, of which Hydra would make a report."""


_told_to_stop: list[int] = []  # signals, in the one place where a process has such state anyway


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signal's protocol)
    if _told_to_stop:
        return  # it is stopping: what is written now is to be whole
    _told_to_stop.append(signum)
    raise KeyboardInterrupt


def _point(cfg: DictConfig, loaded: list[Loaded], failed: list[bool]) -> None:
    """Run one point; a sweep goes on after a point that cannot work."""
    hydra_cfg = HydraConfig.get()
    swept = hydra_cfg.mode is RunMode.MULTIRUN
    if swept:
        chosen = [
            o for o in hydra_cfg.overrides.task if not o.startswith(("prompt=", "system_message="))
        ]
        print(f"== {' '.join(chosen)}", flush=True)
    try:
        settings = settings_of(cfg, swept=swept)
        if not loaded:
            from experiments.generation.execute import Loaded

            loaded.append(Loaded())
        _run(settings, loaded[0])
    except (SettingError, DataError) as error:
        note(f"error: {error}")
        failed.append(True)


def _run(settings: object, loaded: Loaded) -> None:
    from experiments.generation.execute import generate
    from experiments.generation.settings import Settings
    from pallas_kernels.host_memory import HostMemoryError
    from pallas_kernels.repository import RepositoryError

    assert isinstance(settings, Settings)
    display = Display(lambda: bool(_told_to_stop))
    try:
        found = generate(settings, loaded, display.screen())
    except RepositoryError as error:
        raise SettingError(
            "executables", settings.executables, f"a folder that can be used ({error})"
        ) from error
    except HostMemoryError as error:
        raise DataError("host memory", str(error)) from error
    finally:
        display.close()
    display.show(found, [prompt.text for prompt in settings.prompts])


def main() -> int:
    """Run what the command line says; return the exit status."""
    # Errors reach us instead of Hydra's own report, so that they get one form.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminate)
    say_warnings()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows another in its place.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    given = sys.argv[:]
    loaded: list[Loaded] = []
    failed: list[bool] = []

    def point(cfg: DictConfig) -> None:
        sys.argv[:] = given  # what provenance is to say
        try:
            _point(cfg, loaded, failed)
        except BrokenPipeError as error:
            raise _PipeClosed from error

    try:
        register()
        sys.argv[1:] = protected(given[1:])
        run = hydra.main(config_path=str(config_dir()), config_name="generate", version_base="1.3")
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
    except (_PipeClosed, BrokenPipeError):
        # Nobody reads any more. Python would say so again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    finally:
        sys.argv[:] = given
    return BAD_SETTINGS if failed else 0


if __name__ == "__main__":
    sys.exit(main())
