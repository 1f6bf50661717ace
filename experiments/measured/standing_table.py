"""Standing table of public engine runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from c2c.atomic import write_text
from c2c.errors import DataError
from experiments.measured.engines import EngineRun, run_figures
from experiments.near_runs import RunError
from experiments.plain_engine import Figures

__all__ = [
    "GROUPINGS",
    "as_markdown",
    "errors_of_runs",
    "group_errors",
    "write_errors",
    "write_page",
]  # fmt: skip

SHORT_TTFT_S: Final = 0.05  # TTFT below it is not compared
FIGURES: Final = ("tpot", "ttft", "tokens_s")
GROUPINGS: Final[Mapping[str, Callable[[RunError], str]]] = {
    "all": lambda _: "all runs",
    "precision": lambda e: f"{e.kind} {e.precision}",
    "engine": lambda e: e.engine,
    "GPUs": lambda e: f"TP {e.tp}",
    "chip": lambda e: e.chip,
    "clients": lambda e: e.load,
}
_BEGIN, _END = "<!-- engines: written by c2c bench measured page=true -->", "<!-- engines: end -->"
_KEYS: Final = ("chip", "engine", "model", "kind", "precision", "load", "isl", "osl", "clients",
                "tp", "held_out")  # fmt: skip


def errors_of_runs(runs: Iterable[EngineRun]) -> Iterator[RunError]:
    """Yield runs' errors; all NaN if refused."""
    for run in runs:
        figures, truth = run_figures(run), run.measured
        nan = float("nan")
        ours = figures or Figures(ttft_s=nan, tpot_s=nan, tokens_s=nan)
        yield RunError(
            chip=run.platform, engine=run.backend, model=run.model.rpartition("/")[2],
            kind=run.kind, precision=run.precision, load=run.load, isl=run.isl, osl=run.osl,
            clients=run.concurrency, tp=run.tp, held_out=run.held_out,
            tpot=ours.tpot_s / truth.tpot_s - 1.0,
            ttft=ours.ttft_s / truth.ttft_s - 1.0 if truth.ttft_s > SHORT_TTFT_S else nan,
            tokens_s=ours.tokens_s / truth.tokens_s - 1.0,
        )  # fmt: skip


def group_errors(errors: Sequence[RunError]) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Return figures' errors by grouping and group, without NaN."""
    groups: dict[tuple[str, str], list[RunError]] = {}
    for one in errors:
        for grouping, name in GROUPINGS.items():
            groups.setdefault((grouping, name(one)), []).append(one)
    return {
        key: {
            figure: np.array([v for e in members if np.isfinite(v := getattr(e, figure))])
            for figure in FIGURES
        }
        for key, members in sorted(
            groups.items(), key=lambda kv: (list(GROUPINGS).index(kv[0][0]), kv[0])
        )
    }


def as_markdown(errors: Sequence[RunError]) -> str:
    """Return the page's table: median and 90th percentile of held-out groups."""
    holdout = group_errors([e for e in errors if e.held_out])
    lines = [
        "| held-out runs | runs | TPOT: signed, median, p90 | TTFT above 50 ms | tokens/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (grouping, name), values in holdout.items():
        cells = [_cell(values[figure]) for figure in FIGURES]
        lead = name if grouping in ("all", "precision") else f"{grouping}: {name}"
        lines.append(f"| {lead} | {len(values['tpot'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(error: np.ndarray) -> str:
    if not len(error):
        return "-"
    size = 100 * np.abs(error)
    return f"{100 * np.median(error):+.0f}, {np.median(size):.0f}, {np.quantile(size, 0.9):.0f}"


def write_page(page: Path, errors: Sequence[RunError]) -> None:
    """Replace the table of engines in a page."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise DataError(str(page), f"no lines {_BEGIN!r} and {_END!r}")
    write_text(page, f"{before}{_BEGIN}\n\n{as_markdown(errors)}\n\n{_END}{after}")


def write_errors(path: Path, errors: Sequence[RunError]) -> None:
    """Store the errors of runs, for `c2c estimate`."""
    text = io.StringIO()
    text.write(
        "# Errors of this project's simulator on engine_runs.csv (c2c bench measured page=true).\n"
    )
    out = csv.writer(text, lineterminator="\n")
    out.writerow((*_KEYS, *FIGURES))
    for e in errors:
        values = [getattr(e, key) for key in _KEYS]
        values[-1] = int(e.held_out)
        out.writerow((*values, *(f"{getattr(e, figure):.4f}" for figure in FIGURES)))
    write_text(path, text.getvalue())
