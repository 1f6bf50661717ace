"""Command lines of benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from c2c.errors import SettingError
from c2c.runs import RunDir, progress_bar
from experiments.command import command
from experiments.plain_settings import Ran, run_each

__all__ = ["MeasurementSettings", "benchmark", "measure_each"]


@dataclass
class MeasurementSettings:
    """Output settings that all benchmarks have.

    Attributes:
      out: folder of the result; None: a new one in runs/bench.
      overwrite: whether to replace a measurement there; other files stay.
    """

    out: str | None = None
    overwrite: bool = False


def benchmark(
    schema: type,
    arguments: Sequence[str],
    work: Callable[[Any, RunDir, Console], Table | None],
    *,
    check: Callable[[Any], None] | None = None,
    packages: tuple[str, ...],
    name: str,
) -> int:
    """Run a benchmark and return the exit status, 2 for invalid settings."""
    new = _new_folder(name)
    numbers = itertools.count()

    def measured(settings: Any) -> Ran:
        out = Console(highlight=False, width=116)
        where = Path(settings.out) if settings.out else _free(new, next(numbers))
        if not settings.overwrite and where.is_dir() and any(where.iterdir()):
            raise SettingError(
                "out", str(where), "a new or empty folder",
                "It holds a measurement or other files. overwrite=true replaces the measurement.",
            )  # fmt: skip
        with RunDir.open(
            where, asdict(settings), packages=packages, ignore=("out", "overwrite"), resume=False,
            overwrite=settings.overwrite, names=(f"{name}.json",),
        ) as folder:  # fmt: skip
            table = work(settings, folder, out)
        out.print(f"written to {where}")
        return Ran(table)

    def run() -> int:
        return run_each(schema, arguments, measured, check or (lambda _: None))

    return command(run, arguments, goes_on=False)


def measure_each(
    label: str,
    items_of: Callable[[Any], Sequence[Any]],
    measure: Callable[[Any, Any], Sequence[dict[str, Any]]],
    table: Callable[[Any, Sequence[dict[str, Any]]], Table],
    name: str,
) -> Callable[[Any, RunDir, Console], Table]:
    """Return the `work` of a benchmark of several items."""

    def work(settings: Any, folder: RunDir, out: Console) -> Table:
        items = items_of(settings)
        rows: list[dict[str, Any]] = []
        with progress_bar(label, len(items)) as advance:
            for k, item in enumerate(items):
                rows += measure(settings, item)
                advance(k + 1)
        view = table(settings, rows)
        out.print(view)
        folder.write_json(name, {"rows": rows})
        return view

    return work


def _free(folder: Path, number: int) -> Path:
    return folder.with_name(f"{folder.name}_{number}") if number else folder


def _new_folder(name: str) -> Path:
    return Path("runs") / "bench" / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
