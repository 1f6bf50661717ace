"""Making of figures, one after another in this process or in several worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq

from c2c.hardware import conf_dir
from c2c.runs import RunDir
from experiments.children import gather
from experiments.figure import Context, FigureSpec
from experiments.figures.style import bare_picture, look

__all__ = ["Outcome", "inputs_of", "make_all", "make_figure", "told"]

# Folders of conf/ on which figures depend; the others belong to the simulate command.
CONF_FOLDERS = (
    "hardware",
    "mig_table",
    "calibration",
    "catalog",
    "system",
    "starts",
    "workload",
    "node",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one figure.

    `seconds` is wall time, `cpu_s` CPU time of the figure's process, independent of other load.
    `reused` is true if the figure was up to date. `error` is "" unless it failed.
    """

    name: str
    folder: Path
    seconds: float
    cpu_s: float
    reused: bool
    error: str = ""


type Make = Callable[[FigureSpec, Context], Outcome]


def make_all(
    specs: Sequence[FigureSpec],
    context: Context,
    make: Make,
    done: Callable[[Outcome], None],
    *,
    workers: int,
    advance: Callable[[float], None],
) -> None:
    """Make figures; with one worker in this process, in the order given.

    Args:
      specs: figures to make.
      context: settings of the figures.
      make: function that makes one figure; it must be picklable for several workers.
      done: function called with each outcome as soon as it exists.
      workers: number of processes.
      advance: function called with the number of figures made, plus shares of those in progress.

    Raises:
      DataError: a worker process was killed.
    """
    if min(workers, len(specs)) > 1:
        # Figures of the full profile only take longest: started last, one would run alone.
        order = sorted(specs, key=lambda spec: len(spec.profiles))
        gather(
            partial(_make_one, make, context),
            [(spec,) for spec in order],
            workers=min(workers, len(specs)),
            tell=lambda shares: advance(sum(shares)),
            done=done,
            begin=partial(mpl.use, "Agg"),
            lost="that made a figure was killed (out of memory?); run the same command again to "
            "continue, with workers=1 to save memory",
        )
        return
    for count, spec in enumerate(specs):

        def within(share: float, count: int = count) -> None:
            advance(count + share)

        done(_make_one(make, context, spec, within))
        advance(count + 1)


def _make_one(
    make: Make, context: Context, spec: FigureSpec, within: Callable[[float], None]
) -> Outcome:
    return make(spec, replace(context, progress=lambda part, whole: within(part / whole)))


def inputs_of(spec: FigureSpec, context: Context) -> dict[str, Any]:
    """Return the inputs of a figure (config, packages, files) as arguments of `RunDir`."""
    folders = [conf_dir() / name for name in CONF_FOLDERS]
    traces = [context.traces / name for name in spec.traces] if context.traces else []
    return {
        "config": {
            "figure": spec.name,
            **told(context),
            "experiment": asdict(settings) if (settings := spec.settings(context)) else None,
        },
        "packages": spec.sources,
        "files": [*spec.files, *(path for path in (*folders, *traces) if path.exists())],
    }


def told(context: Context) -> dict[str, Any]:
    """Return the settings of a figure besides its name, as plain data."""
    return {
        "profile": context.profile,
        "link_variant": context.link_variant,
        "seeds": list(context.seeds),
    }


def make_figure(
    spec: FigureSpec, context: Context, out: Path, *, resume: bool, overwrite: bool
) -> Outcome:
    """Make one figure in its folder. A failure is in the outcome, and in the folder's crash.json.

    Args:
      spec: figure to make.
      context: settings of the figure.
      out: parent of the figure's folder.
      resume: whether to keep the figure if its inputs have not changed.
      overwrite: whether to replace a figure of other settings.
    """
    start, start_cpu = time.perf_counter(), time.process_time()
    reused, error = False, ""
    try:
        inputs = inputs_of(spec, context)
        with RunDir.open(
            out / spec.name, **inputs, seed=context.seeds[0], resume=resume, overwrite=overwrite
        ) as run:
            reused = run.is_complete
            if not reused:
                _compute_and_draw(spec, context, run)
    except Exception as problem:  # noqa: BLE001 (crash.json has it all; other figures continue)
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
            "finding": computed.finding,
            "assumptions": computed.assumptions,
            "results": [asdict(r) for r in computed.results],
            "report": computed.report,
            "improvements": [asdict(i) for i in computed.improvements],
        },
    )
    # drawn from the files, so that the drawing shows what is stored
    tables = {name: pq.read_table(path) for name, path in paths.items()}
    with look(computed.finding):
        figure = spec.drawing(tables, computed.caption)
        run.write_figure(spec.name, figure)
        with run.open_file(f"{spec.name}_bare.webp") as file:
            file.write(bare_picture(figure))
