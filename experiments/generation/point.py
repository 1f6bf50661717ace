"""A single run, or a point of a sweep in its launcher's process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from c2c.errors import DataError, SettingError
from c2c.runs import FolderInUse, is_in_use, storage_error
from experiments.generation.screen import Display, note
from experiments.generation.settings import Settings, settings_of
from experiments.stop_signals import told_to_stop
from experiments.sweeping import PointRecord, begin, fail, finish

if TYPE_CHECKING:
    from experiments.generation.execute import Generated, Loaded

__all__ = ["PipeClosed", "generate_point"]

POLL_S = 0.2

_loaded: list[Loaded] = []  # model of this process's last run, for the next one


class PipeClosed(BaseException):
    """Standard output was closed; no `Exception`, which Hydra would report."""


def generate_point(cfg: DictConfig) -> None:
    """Generate text by a configuration."""
    hydra = HydraConfig.get()
    try:
        if hydra.mode is RunMode.MULTIRUN:
            shown = [
                o for o in hydra.overrides.task if not o.startswith(("prompt=", "system_message="))
            ]
            print(f"== {' '.join(shown)}", flush=True)
            number = int(hydra.job.num)
            _swept(cfg, begin(Path(hydra.runtime.output_dir), number, hydra.overrides.task))
        else:
            _run(settings_of(cfg))
    except BrokenPipeError as error:
        raise PipeClosed from error


def _swept(cfg: DictConfig, point: PointRecord) -> None:
    try:
        settings = settings_of(cfg, swept=True)
        while True:
            try:
                outcome = _run(settings)
                break
            except FolderInUse as busy:  # a complete run's text is printed as well
                folder = Path(str(busy.value))
                note(f"waiting for another process in {folder}")
                while is_in_use(folder):
                    time.sleep(POLL_S)
        finish(point, "kept" if outcome.statistics is None else "made", outcome.folder)
    except (SettingError, DataError) as error:
        note(f"error: {error}")
        fail(point, str(error))


def _run(settings: Settings) -> Generated:
    from experiments.generation.execute import Loaded, generate
    from pallas_kernels.host_memory import HostMemoryError
    from pallas_kernels.repository import RepositoryError

    if not _loaded:
        _loaded.append(Loaded())
    display = Display(told_to_stop)
    try:
        result = generate(settings, _loaded[0], display.screen())
    except RepositoryError as error:
        raise SettingError(
            "executables", settings.executables, f"a usable folder ({error})"
        ) from error
    except HostMemoryError as error:
        raise DataError("host memory", str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, settings.folder or settings.out) from error
    finally:
        display.close()
    display.show(result, [prompt.text for prompt in settings.prompts])
    return result
