"""Collect the runs of a folder in one table: on the screen, as Parquet and as CSV.

    c2c collect runs/simulate
    c2c collect folder=runs/simulate into=tables

A row is a run: the settings in which runs differ, the numbers of its summary, and its state. The
files are in `<folder>/collected`, or in `into`; in a notebook: `c2c.runs.collect(folder)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from omegaconf import OmegaConf

from c2c.errors import SettingError
from c2c.runs import RunDir, collect, storage_error
from experiments.command import command
from experiments.simulation.report import console
from experiments.simulation.runs_table import print_runs

__all__ = ["CollectSettings", "main", "write_collected"]

HERE = "collected"


@dataclass
class CollectSettings:
    """Settings of the command, as key=value.

    Attributes:
      folder: folder of runs, or of one run; `folder=` may be left out.
      into: folder for the files; None for `collected` in it.
      overwrite: whether to replace a table there; other files stay.
    """

    folder: str = "runs/simulate"
    into: str | None = None
    overwrite: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for invalid settings."""
    return command(lambda: _collect(arguments), arguments, help_text=__doc__)


def _collect(arguments: Sequence[str]) -> int:
    settings = _settings(arguments)
    table = collect(settings.folder)
    print_runs(console(), table, title=settings.folder)
    into = write_collected(table, settings)
    print(f"written: {into / 'runs.parquet'}, runs.csv ({table.num_rows} runs)")
    return 0


def write_collected(table: pa.Table, settings: CollectSettings) -> Path:
    """Write a table of runs into its folder; return it."""
    folder = Path(settings.folder).expanduser()
    into = Path(settings.into).expanduser() if settings.into else folder / HERE
    record = {"command": "collect", "folder": str(folder.resolve())}
    try:
        with RunDir.open(
            into, record, resume=False, overwrite=settings.overwrite, names=("runs.csv",),
            ignore=() if settings.into else ("folder",),  # a folder of runs may be moved
            needs_bytes=8 * table.nbytes, field="into",
        ) as run:  # fmt: skip
            run.write_table("runs", table)
            with run.open_file("runs.csv") as file:
                pyarrow.csv.write_csv(table, file)
    except OSError as error:
        raise storage_error(error, into) from error
    return into


def _settings(arguments: Sequence[str]) -> CollectSettings:
    folders = [a for a in arguments if "=" not in a]
    if (wrong := folders[1:]) or (wrong := [a for a in folders if a.startswith("-")]):
        raise SettingError("argument", wrong[-1], "one folder, then settings as key=value")
    named = OmegaConf.from_dotlist([a for a in arguments if "=" in a])
    if folders:
        if "folder" in named:
            raise SettingError("folder", folders[0], "one folder, given once")
        named["folder"] = folders[0]
    merged = OmegaConf.merge(OmegaConf.structured(CollectSettings), named)
    result = OmegaConf.to_object(merged)
    assert isinstance(result, CollectSettings)
    return result
