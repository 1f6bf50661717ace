"""Command lines of searches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError

from c2c.config import SWEEP, RunSetup, as_setting_error, spelled
from c2c.errors import SettingError
from c2c.ranges import check_fields
from c2c.runs import NOT_INPUTS, RunDir, storage_error
from experiments.command import command
from experiments.simulation.own_settings import with_own_settings
from experiments.sweeping import check_arguments, is_sweep

__all__ = ["answer_folder", "answering", "own_settings", "refuse_seed"]

CONFIG_DIR = "--config-dir="


def answering(
    work: Callable[[list[str], str | None], int],
    arguments: Sequence[str],
    help_text: str,
    *,
    sweep: str = SWEEP,
) -> int:
    """Run a command and return its exit status, 2 for invalid settings."""

    def run() -> int:
        words = spelled(with_own_settings(arguments))
        folder = next((a.removeprefix(CONFIG_DIR) for a in words if a.startswith(CONFIG_DIR)), None)
        settings = [a for a in words if not a.startswith(CONFIG_DIR)]
        if is_sweep(settings):
            raise SettingError("option", "-m", "no sweep, as this command chooses its own runs")
        check_arguments(settings, sweep=sweep)
        return work(settings, folder)

    return command(run, arguments, help_text=help_text)


def own_settings(schema: type, group: str, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Return own settings, `<group>.<key>=<value>`, and other arguments."""
    assignments = [a for a in arguments if a.startswith(f"{group}.")]
    merged: Any = OmegaConf.create({group: OmegaConf.structured(schema)})
    for argument in assignments:
        key, _, value = argument.partition("=")
        try:
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([argument]))
        except ValidationError as error:
            kind = get_type_hints(schema)[key.partition(".")[2]]
            type_name = getattr(kind, "__name__", str(kind))
            raise SettingError(key, value, f"a value of type {type_name}") from error
        except OmegaConfBaseException as error:
            raise as_setting_error(error, [argument]) from error
        except YAMLError as error:
            raise SettingError(key, value, "valid YAML") from error
    settings = OmegaConf.to_object(merged[group])
    check_fields(settings, group)
    return settings, [a for a in arguments if a not in assignments]


def refuse_seed(group: str, seeds: Sequence[int], overrides: Sequence[str]) -> None:
    """Validate a search's seeds, which replace a run's `seed`."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise SettingError(f"{group}.seeds", seeds, "whole numbers from 0 on, each once")
    if seed := [a for a in overrides if a.startswith("seed=")]:
        raise SettingError("seed", seed[0][5:], "no value", f"Set {group}.seeds=[0,1,2] instead.")


@contextmanager
def answer_folder(
    group: str, options: Any, setup: RunSetup, names: Sequence[object], *,
    packages: Sequence[str], files: Sequence[str], **more: Any,
) -> Iterator[tuple[RunDir, Path, dict[str, Any]]]:  # fmt: skip
    """Open an answer's run folder; yield it, its path and an earlier answer."""
    settings = setup.settings
    record = {
        "command": group,
        group: {k: v for k, v in asdict(options).items() if k != "workers"},
        **more,
        **{k: v for k, v in settings.items() if k not in NOT_INPUTS and k != "seed"},
    }
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8]
    name = "_".join(re.sub(r"[^\w.-]+", "-", str(part)) for part in (*names, digest))
    where = Path(settings["folder"] or Path(settings["out"]) / name).expanduser()
    try:
        with RunDir.open(
            where, record, packages=packages, files=setup.files, seed=None,
            resume=settings["resume"], overwrite=settings["overwrite"], names=files,
            field="folder" if settings["folder"] else "out",
        ) as run:  # fmt: skip
            answer_path = where / "answer.json"
            before = json.loads(answer_path.read_text(encoding="utf-8")) if run.is_complete else {}
            yield run, where, before
    except OSError as error:
        raise storage_error(error, where) from error
