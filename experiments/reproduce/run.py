"""Reproduction run: compute, draw and store figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import matplotlib as mpl
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from c2c.cost import in_sample_claims
from c2c.runs import RunDir, progress_bar
from c2c.systems import cocoserve, tessera, weaver
from experiments.claims import (
    Improvement,
    Result,
    Row,
    abstracts,
    fidelity_rows,
    fidelity_table,
    load_claims,
    print_fidelity,
    print_summary,
    totals,
)
from experiments.figure import Context, FigureSpec, code, figures
from experiments.report import PAGES, Entry, report_pages
from experiments.reproduce.figure_jobs import Outcome, inputs_of, make_all, make_figure, told

__all__ = ["reproduce"]

REPORT = ("fidelity.json", "fidelity.parquet", *PAGES)


def reproduce(
    specs: Sequence[FigureSpec],
    context: Context,
    out: Path,
    *,
    resume: bool = True,
    overwrite: bool = False,
    claims: str = "summary",
    console: Console | None = None,
    workers: int = 1,
) -> tuple[list[Outcome], list[Row]]:
    """Make the figures and the fidelity table under `out`."""
    mpl.use("Agg")
    # without a terminal (a log, CI) rich assumes 80 columns, too few for claim ids
    console = console or (Console() if Console().is_terminal else Console(width=165))
    outcomes: list[Outcome] = []
    with RunDir.open(
        out, told(context), packages=code(), seed=context.seeds[0], resume=False,
        overwrite=overwrite, names=REPORT,
    ) as report:  # fmt: skip
        with progress_bar("figures") as advance:

            def done(outcome: Outcome) -> None:
                outcomes.append(outcome)
                if console.is_terminal:  # the line has the progress
                    console.control(
                        Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
                    )
                console.print(_line(outcome), highlight=False)

            make = partial(make_figure, out=out, resume=resume, overwrite=overwrite)
            make_all(specs, context, make, done, workers=workers, advance=advance)
        rows = _report(report, context, outcomes, console)
    if claims == "abstracts":
        console.print(*abstracts(rows).values(), sep="\n\n", highlight=False, soft_wrap=True)
    elif claims != "summary":
        print_fidelity(rows, console, everything=claims == "all")
    print_summary(rows, console)
    return outcomes, rows


def _report(
    report: RunDir, context: Context, outcomes: Sequence[Outcome], console: Console
) -> list[Row]:
    out = report.path
    results: list[Result] = []
    entries: list[Entry] = []
    improvements: list[Improvement] = []
    stale = []
    for spec in figures().values():
        if not (out / spec.name).is_dir():
            continue
        is_new = any(o.name == spec.name and not o.error for o in outcomes)
        if is_new or RunDir.is_current(out / spec.name, **inputs_of(spec, context)):
            figure = json.loads((out / spec.name / "figure.json").read_text(encoding="utf-8"))
            mine = [Result(**r) for r in figure.pop("results")]
            results += mine
            improvements += [Improvement(**i) for i in figure.pop("improvements")]
            claims = [result.claim_id for result in mine]
            paper = "" if spec.beyond else spec.paper
            entries.append(
                Entry(name=spec.name, title=spec.title, paper=paper, claims=claims, **figure)
            )
        else:
            stale.append(spec.name)
    if stale:
        console.print(f"not counted, because failed or out of date: {', '.join(stale)}")
    in_sample = in_sample_claims().union(
        *(one.fitted_claims() for one in (cocoserve, tessera, weaver))
    )
    rows = fidelity_rows(load_claims(), results, in_sample)
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
    record = json.loads((out / "provenance.json").read_text(encoding="utf-8"))
    pages = report_pages(
        out, entries, rows, record, profile=context.profile, improvements=improvements
    )
    for name, text in pages.items():
        report.write_text(name, text)
    return rows


def _line(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.name:12s} failed: {outcome.error} (see {outcome.folder}/crash.json)"
    took = f"{outcome.seconds:.1f} s, {outcome.cpu_s:.1f} s of CPU"
    state = "unchanged" if outcome.reused else took
    return f"{outcome.name:12s} {state}"
