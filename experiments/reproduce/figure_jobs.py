"""Making of figures, in this process or several workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
import yaml

from c2c.hardware import conf_dir
from c2c.runs import RunDir, Show, Weighed
from experiments.children import BEGUN, gather
from experiments.figure import Context, FigureSpec
from experiments.figures.style import look

__all__ = ["Outcome", "Tally", "cpu_seconds", "inputs_of", "make_all", "make_figure", "told"]

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

    `cpu_s`: of the figure's process; `error`: "" unless it failed.
    """

    name: str
    folder: Path
    seconds: float
    cpu_s: float
    reused: bool
    error: str = ""


_UNKNOWN_S = 10.0  # CPU-seconds of a figure that nobody has measured
_FULL = 3.0  # full size, as a multiple of quick, where it was not measured
_FADE = 0.8  # weight of the pace so far when a figure ends: other load on the machine changes
_MOST = 0.9  # share of a figure, at most, that its time alone tells

type Make = Callable[[FigureSpec, Context], Outcome]


def make_all(
    specs: Sequence[FigureSpec],
    context: Context,
    make: Make,
    done: Callable[[Outcome], None],
    *,
    workers: int,
    advance: Show,
) -> None:
    """Make figures, long ones first with several workers."""
    seconds_of = cpu_seconds(context.profile)
    works = {spec.name: seconds_of.get(spec.name, _UNKNOWN_S) for spec in specs}
    if min(workers, len(specs)) > 1:
        # Started last, a long figure would run alone.
        order = sorted(specs, key=lambda spec: -works[spec.name])
        tally = Tally({spec.name: works[spec.name] for spec in order}, workers, advance)

        def ended(outcome: Outcome) -> None:
            tally.end(outcome)
            done(outcome)

        gather(
            partial(_make_one, make, context),
            [(spec,) for spec in order],
            workers=min(workers, len(specs)),
            tell=tally.show,
            done=ended,
            begin=partial(mpl.use, "Agg"),
            lost="that made a figure was killed (out of memory?); run the same command again to "
            "continue, with workers=1 to save memory",
        )
        return
    tally = Tally(works, 1, advance)
    for k, spec in enumerate(specs):

        def within(share: float, k: int = k) -> None:
            tally.show([1.0] * k + [max(share, BEGUN)] + [0.0] * (len(specs) - 1 - k))

        within(0.0)
        outcome = _make_one(make, context, spec, within)
        tally.end(outcome)
        done(outcome)
        within(1.0)


def cpu_seconds(profile: str) -> dict[str, float]:
    """Return figures' CPU-seconds at a size, from `cpu_seconds.yaml`."""
    profiles = yaml.safe_load((Path(__file__).parent / "cpu_seconds.yaml").read_text("utf-8"))
    quick: dict[str, float] = profiles["quick"]
    if profile == "quick":
        return quick
    return {name: _FULL * seconds for name, seconds in quick.items()} | dict(profiles[profile])


class Tally:
    """Progress of several figures, weighed by known CPU-seconds."""

    def __init__(self, works: Mapping[str, float], workers: int, advance: Show) -> None:
        self._works, self._workers, self._advance = dict(works), workers, advance
        self._names = list(works)
        self._began: dict[str, float] = {}
        self._ended: set[str] = set()
        self._taken_s = self._known_s = 0.0  # of the figures that have ended, the last most

    def end(self, outcome: Outcome) -> None:
        """Take note of a figure's end."""
        self._ended.add(outcome.name)
        if outcome.reused or outcome.error:
            self._works[outcome.name] = 0.0
        else:
            self._taken_s = _FADE * self._taken_s + outcome.seconds
            self._known_s = _FADE * self._known_s + self._works[outcome.name]

    def show(self, shares: Sequence[float]) -> None:
        """Show progress by the figures' done shares."""
        now = time.monotonic()
        running = {
            name: share
            for name, share in zip(self._names, shares, strict=True)
            if share > 0 and name not in self._ended
        }
        since_s = {name: now - self._began.setdefault(name, now) for name in running}
        # The last share may be reported long before the end.
        share_of = {name: share for name, share in running.items() if BEGUN < share < 1}
        taken_s, known_s = self._taken_s, self._known_s
        if not known_s:
            taken_s = sum(since_s[name] for name in share_of)
            known_s = sum(share * self._works[name] for name, share in share_of.items())
        is_known = known_s > 0 and taken_s > 0
        pace = taken_s / known_s if is_known else 1.0  # seconds a CPU-second, beside other work
        done = sum(self._works[name] for name in self._ended)
        for name, s in since_s.items():
            by_time = min(_MOST, s / (self._works[name] * pace))
            done += (by_time + share_of.get(name, by_time)) / 2 * self._works[name]
        total = sum(self._works.values())
        at_once = min(self._workers, len(self._names) - len(self._ended))
        left_s = (total - done) * pace / at_once if is_known and at_once else None
        self._advance(done, Weighed(total or 1.0, ", ".join(running), left_s))


def _make_one(
    make: Make, context: Context, spec: FigureSpec, within: Callable[[float], None]
) -> Outcome:
    return make(spec, replace(context, progress=lambda part, whole: within(part / whole)))


def inputs_of(spec: FigureSpec, context: Context) -> dict[str, Any]:
    """Return a figure's inputs (config, packages, files) for `RunDir`."""
    folders = [conf_dir() / name for name in CONF_FOLDERS]
    traces = [context.traces / name for name in spec.traces] if context.traces else []
    others = (*folders, *traces, spec.experiment_file)
    return {
        "config": {"figure": spec.name, **told(context)},
        "packages": spec.sources,
        "files": [*spec.files, *(path for path in others if path and path.exists())],
    }


def told(context: Context) -> dict[str, Any]:
    """Return a figure's settings besides its name, as plain data."""
    return {
        "profile": context.profile,
        "link_variant": context.link_variant,
        "seeds": list(context.seeds),
        "overrides": list(context.overrides),
    }


def make_figure(
    spec: FigureSpec, context: Context, out: Path, *, resume: bool, overwrite: bool
) -> Outcome:
    """Make one figure in its folder; failures are in crash.json."""
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
    computed, settings = spec.compute(context), spec.settings(context)
    paths = {name: run.write_table(name, table) for name, table in computed.tables.items()}
    run.write_json(
        "figure",
        {
            "experiment": asdict(settings) if settings else None,
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
        run.write_figure(spec.name, spec.drawing(tables, computed.caption))
