"""Compute, draw and keep figures; then compare all claims and write the report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
from rich.console import Console

from c2c.cost import in_sample_claims
from c2c.hardware import conf_dir
from c2c.runs import RunDir, progress_bar
from c2c.systems.tessera import fitted_claims
from experiments.c2cserve.context import Context
from experiments.claims import (
    Improvement,
    Result,
    Row,
    Takes,
    fidelity_rows,
    fidelity_table,
    load_claims,
    misses_table,
    print_fidelity,
    totals,
)
from experiments.figures.style import bare_png, look
from experiments.report import report_html
from experiments.reproduce.catalog import FIGURES, OURS, FigureSpec

__all__ = ["Outcome", "reproduce"]

# Configuration a cost depends on; the rest of conf/ belongs to the simulate command.
CONF_FOLDERS = (
    "hardware",
    "mig",
    "calibration",
    "kernel",
    "catalog",
    "system",
    "policy",
    "starts",
    "workload",
    "pair",
)
REPORT = ("fidelity.json", "fidelity.parquet", "misses.md", "index.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened to one figure; `cpu_s`: of this process, which other work does not lengthen."""

    name: str
    folder: Path
    seconds: float
    cpu_s: float
    reused: bool
    error: str = ""


def reproduce(
    specs: Sequence[FigureSpec],
    context: Context,
    out: Path,
    *,
    resume: bool = True,
    overwrite: bool = False,
    everything: bool = False,
    console: Console | None = None,
) -> tuple[list[Outcome], list[Row]]:
    """Make the figures and the fidelity table under `out`.

    A figure that fails leaves crash.json in its folder and does not stop the others. The fidelity
    table also counts figures that `out` holds from earlier calls, as long as they are up to date.

    Args:
      specs: which figures to make.
      context: their settings.
      out: where; one folder a figure, and fidelity.json, fidelity.parquet, misses.md, index.html.
      resume: keep figures whose inputs have not changed.
      overwrite: replace what figures and report of other settings there are in `out`.
      everything: print all claims, not only those compared.
      console: where to print.

    Returns:
      One outcome a figure, and one row a claim.
    """
    mpl.use("Agg")
    # without a terminal (a log, CI) rich assumes 80 columns, in which no claim id fits
    console = console or (Console() if Console().is_terminal else Console(width=165))
    outcomes = []
    with RunDir.open(
        out, _told(context), packages=OURS, seed=context.seeds[0], resume=False,
        overwrite=overwrite, names=REPORT,
    ) as report:  # fmt: skip
        with progress_bar("figures", len(specs)) as advance:
            for done, spec in enumerate(specs):

                def within(part: float, whole: float, done: int = done) -> None:
                    advance(done + part / whole)

                told = replace(context, progress=within)
                outcomes.append(_make(spec, told, out, resume=resume, overwrite=overwrite))
                console.print(_line(outcomes[-1]), highlight=False)
                advance(done + 1)
        rows = _report(report, context, outcomes, console)
    print_fidelity(rows, console, everything=everything)
    return outcomes, rows


def _report(
    report: RunDir, context: Context, outcomes: Sequence[Outcome], console: Console
) -> list[Row]:
    """Compare all claims with the figures that are there and up to date, and write the page."""
    out = report.path
    results: list[Result] = []
    shown: list[dict[str, Any]] = []
    takes: dict[str, Takes] = {}
    improvements: list[Improvement] = []
    stale = []
    for spec in FIGURES.values():
        made = any(o.name == spec.name and not o.error for o in outcomes)
        if made or RunDir.is_current(out / spec.name, **_inputs(spec, context)):
            found = json.loads((out / spec.name / "figure.json").read_text(encoding="utf-8"))
            results += [Result(**r) for r in found.pop("results")]
            takes |= {name: (said, nearest) for name, (said, nearest) in found.pop("takes").items()}
            improvements += [Improvement(**i) for i in found.pop("improvements")]
            shown.append({**found, "name": spec.name, "title": spec.title})
        elif (out / spec.name).is_dir():
            stale.append(spec.name)
    if stale:
        console.print(f"not counted, because failed or out of date: {', '.join(stale)}")
    in_sample = in_sample_claims() | fitted_claims()
    rows = fidelity_rows(load_claims(), results, in_sample, takes)
    report.write_json(
        "fidelity",
        {
            "profile": context.profile,
            "link_variant": context.link_variant,
            "totals": totals(rows),
            "improvements": [asdict(i) | {"verdict": i.verdict} for i in improvements],
            "claims": [row.as_dict() for row in rows],
        },
    )
    report.write_table("fidelity", fidelity_table(rows))
    report.write_text("misses.md", misses_table(rows))
    record = json.loads((out / "provenance.json").read_text(encoding="utf-8"))
    page = report_html(out, shown, rows, record, profile=context.profile, improvements=improvements)
    report.write_text("index.html", page)
    return rows


def _inputs(spec: FigureSpec, context: Context) -> dict[str, Any]:
    """Return what the figure is made from, as `RunDir` takes it."""
    folders = [conf_dir() / name for name in CONF_FOLDERS]
    traces = [context.traces / name for name in spec.traces] if context.traces else []
    return {
        "config": {"figure": spec.name, **_told(context)},
        "packages": spec.sources,
        "files": [path for path in (*folders, *traces) if path.exists()],
    }


def _told(context: Context) -> dict[str, Any]:
    return {
        "profile": context.profile,
        "link_variant": context.link_variant,
        "seeds": list(context.seeds),
    }


def _make(
    spec: FigureSpec, context: Context, out: Path, *, resume: bool, overwrite: bool
) -> Outcome:
    start, start_cpu = time.perf_counter(), time.process_time()
    reused, error = False, ""
    try:
        inputs = _inputs(spec, context)
        with RunDir.open(
            out / spec.name, **inputs, seed=context.seeds[0], resume=resume, overwrite=overwrite
        ) as run:
            reused = run.is_complete
            if not reused:
                _compute_and_draw(spec, context, run)
    except Exception as problem:  # noqa: BLE001 (crash.json has it all; other figures go on)
        error = f"{type(problem).__name__}: {problem}"
    return Outcome(
        name=spec.name,
        folder=out / spec.name,
        seconds=time.perf_counter() - start,
        cpu_s=time.process_time() - start_cpu,
        reused=reused,
        error=error,
    )


def _compute_and_draw(spec: FigureSpec, context: Context, run: RunDir) -> None:
    computed = spec.compute(context)
    paths = {name: run.write_table(name, table) for name, table in computed.tables.items()}
    run.write_json(
        "figure",
        {
            "caption": computed.caption,
            "results": [asdict(r) for r in computed.results],
            "report": computed.report,
            "takes": dict(computed.takes),
            "improvements": [asdict(i) for i in computed.improvements],
        },
    )
    # drawn from the files, so that what is drawn is what is kept
    tables = {name: pq.read_table(path) for name, path in paths.items()}
    with look():
        figure = spec.draw(tables, computed.caption)
        run.write_figure(spec.name, figure)
        with run.open_file(f"{spec.name}_bare.png") as file:
            file.write(bare_png(figure))


def _line(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.name:12s} failed: {outcome.error} (see {outcome.folder}/crash.json)"
    took = f"{outcome.seconds:.1f} s, {outcome.cpu_s:.1f} s of CPU"
    what = "unchanged" if outcome.reused else took
    return f"{outcome.name:12s} {what}"
