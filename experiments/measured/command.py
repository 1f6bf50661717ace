"""Comparison of the cost model with public measurements.

    c2c bench measured                # the project's own rows
    c2c bench measured data=<folder>  # other files with the same columns
    c2c bench measured data=<folder> fit=true  # calibrations of its chips, in its calibration/
    c2c bench measured fit=true       # fit the files in conf again
    c2c bench measured page=true      # and write the engines' errors to docs/evidence/measured.md

Takes a minute. Predicts every row with its chip's constants. Prints the errors by chip,
operation and size, in-sample and held-out rows apart. Writes JSON, Parquet and a figure with
provenance to a folder in runs/bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from c2c.config.plug_ins import search_settings
from c2c.errors import SettingError
from c2c.runs import RunDir
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.measured.compare import (
    Comparison,
    Skipped,
    compare,
    errors_by,
    unseen_chips,
)
from experiments.measured.eager_engines import launched_rows
from experiments.measured.engines import runs_of
from experiments.measured.errors import Error, error_of
from experiments.measured.open_loop import OpenRun, open_runs, replay_open
from experiments.measured.rows import OWN, Rows, read_folder
from experiments.measured.standing_table import (
    errors_of_runs,
    group_errors,
    write_errors,
    write_page,
)
from experiments.measured.tables import (
    eager_table,
    engine_table,
    op_table,
    open_table,
    unseen_table,
)
from experiments.near_runs import ERRORS, RunError, read_errors

__all__ = ["MeasuredSettings", "main"]

ENGINES, OPEN = "engine_runs", "open_loop"
PAGE = Path("docs/evidence/measured.md")


@dataclass
class MeasuredSettings(MeasurementSettings):
    """Settings of the comparison, as key=value on the command line.

    Attributes:
      data: folder of measurements; None: the project's own.
      fit: first fit the constants to half of the rows and store them in conf, or in `data`.
      engines: replay whole engines with the simulator (four minutes).
      page: store the engines' errors, for `c2c estimate` and docs/evidence/measured.md.
      jointly: fit each chip's constants to the other chips together, not by medians (minutes).
    """

    data: str | None = None
    fit: bool = False
    engines: bool = True
    page: bool = False
    jointly: bool = False


def run(settings: MeasuredSettings, tables: dict[str, Rows], folder: RunDir, out: Console) -> None:
    """Compare, print the tables and write the results."""
    own_tables = read_folder(OWN)
    if settings.fit and settings.data is None:
        _fit(tables, out)
    elif settings.fit and settings.data is not None:
        from experiments.measured.fit import fit_own

        for line in fit_own(Path(settings.data), tables):
            out.print(line, markup=False, highlight=False)
    skipped = Skipped()
    rows = compare(tables, own_tables, skipped)
    out.print(op_table(rows))
    unseen = unseen_chips(tables, jointly=settings.jointly)
    if unseen:
        out.print(unseen_table(unseen))
    engines: list[RunError] = []
    if settings.engines and ENGINES in tables:
        out.print("replaying engines with the simulator ...")
        engines = _engines(tables[ENGINES], skipped)
        out.print(engine_table(engines))
    if settings.engines and settings.data is None:
        out.print(eager_table(launched_rows(tables)))
    if settings.page:
        write_errors(ERRORS, engines)
        write_page(PAGE, read_errors())
    opened: list[tuple[OpenRun, dict[str, float]]] = []
    if settings.engines and OPEN in tables:
        opened = [(run, replay_open(run)) for run in open_runs(tables[OPEN])]
        out.print(open_table(opened))
    for line in skipped.lines():
        out.print(line)
    folder.write_json("measured", _as_data(rows, engines, opened, unseen, skipped))
    for name, entries in (("rows", rows), ("engines", engines)):
        if entries:
            folder.write_table(name, pa.Table.from_pylist([asdict(row) for row in entries]))
    if rows:
        _draw(folder, rows)


def _engines(rows: Rows, skipped: Skipped) -> list[RunError]:
    runs = []
    for run, unknown in runs_of(rows):
        if run is not None:
            runs.append(run)
            continue
        counted = skipped.chips if unknown in rows["system"] else skipped.models
        counted[unknown] += 1
    return list(errors_of_runs(runs))


def _fit(tables: dict[str, Rows], out: Console) -> None:
    from experiments.measured.fit import (
        KERNEL_CHIPS,
        store_engines,
        store_fits,
        store_kernels,
    )

    out.print("fitting the constants of each chip to half of its shapes ...")
    for line in store_fits(tables):
        out.print(line)
    for line in store_kernels(tables, KERNEL_CHIPS):
        out.print(line)
    if ENGINES in tables:
        out.print("fitting each engine's part of a step, a layer and a request ...")
        for line in store_engines(tables[ENGINES]):
            out.print(line)


def _draw(folder: RunDir, rows: list[Comparison]) -> None:
    from experiments.figures.measurements import draw_measured
    from experiments.figures.style import look

    with look():
        figure = draw_measured(rows)
        for kind in ("png", "svg"):
            figure.savefig(folder.path / f"measured.{kind}")


def _as_data(
    rows: list[Comparison],
    engines: list[RunError],
    opened: list[tuple[OpenRun, dict[str, float]]],
    unseen: dict[tuple[str, str], Error | None],
    skipped: Skipped,
) -> dict[str, Any]:
    def grouped(comparisons: list[Comparison], *names: str) -> list[dict[str, Any]]:
        return [
            dict(zip(names, key, strict=True))
            | {"in_sample": _plain(fitted), "held_out": _plain(holdout)}
            for key, (fitted, holdout) in errors_by(comparisons, *names).items()
        ]

    return {
        "by_chip_op_size": grouped(rows, "chip", "op", "size"),
        "bound_by_chip_op": grouped([r for r in rows if r.is_bound], "chip", "op"),
        "engines": [
            {"by": grouping, "group": name, "held_out": half}
            | {
                figure: _plain(error_of(1.0 + errors[figure], np.ones(len(errors[figure]))))
                for figure in errors
            }
            for half in (False, True)
            for (grouping, name), errors in group_errors(
                [e for e in engines if e.held_out == half]
            ).items()
        ],
        "open_loop": [asdict(run) | {"ours": ours} for run, ours in opened],
        "as_if_never_measured": [
            {"chip": chip, "op": op, "error": _plain(error)} for (chip, op), error in unseen.items()
        ],
        "skipped": {"chips": dict(skipped.chips), "models": dict(skipped.models)},
    }


def _plain(error: Error | None) -> dict[str, Any] | None:
    return None if error is None else asdict(error)


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; return the exit status."""
    read: dict[str, Rows] = {}

    def check(settings: MeasuredSettings) -> None:
        if settings.data is not None:
            search_settings([settings.data])
        if settings.page and (settings.data is not None or not settings.engines):
            raise SettingError("page", True, "false with data=<folder> or engines=false")
        if settings.page and not PAGE.is_file():
            raise SettingError("page", True, f"false where there is no {PAGE}")
        read.update(read_folder(OWN if settings.data is None else Path(settings.data)))

    def work(settings: MeasuredSettings, folder: RunDir, out: Console) -> None:
        run(settings, read, folder, out)

    packages = ("c2c", "experiments.measured")
    return benchmark(
        MeasuredSettings, arguments, work, check=check, packages=packages, name="measured"
    )
