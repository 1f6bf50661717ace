"""Check of the simulator's predictions against the live engine.

    c2c bench prediction
    c2c bench prediction catalog=models workers=2 out=runs/predicted

Takes minutes to hours. Traces of two mixes are sent to `c2c serve` in turns, one run of the engine
each. Step costs are fitted to one mix; the simulator predicts the other, at shares of the engine's
capacity. Medians over several runs are compared, and their spread is printed. The first line says
whether the errors are within their targets.

The same command resumes a stopped run. Live runs stay beside the results, for `c2c replay`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import SettingError
from c2c.ranges import Count, FromZero, In
from c2c.runs import RunDir, progress_bar
from experiments.command import command
from experiments.lab.bench.checkpoints import SERVED_SHAPES, config_of, write_models
from experiments.lab.bench.live import Mix, check_span, trace
from experiments.lab.bench.prediction.drawing import draw
from experiments.lab.bench.prediction.live import Host, capacity_of
from experiments.lab.bench.prediction.verdict import Judged, judge, verdict
from experiments.plain_settings import read_settings
from experiments.serving.calibration import StepFit, with_costs
from experiments.serving.drift import Shape, drift_of, shapes_of
from experiments.serving.live_run_simulation import (
    Comparison,
    compare,
    fitted,
    inputs_of,
    prepared_of,
    recorded_steps,
    replay,
)
from experiments.serving.machine import read_machine
from experiments.serving.recorded_replay import retell

__all__ = ["PredictionSettings", "main"]

# The fitted trace: its rate as a share of the capacity, Zipf exponent of the models' popularity,
# and least and most tokens of a prompt and an answer.
_FIT_LOAD, _FIT_ZIPF, _FIT_PROMPT, _FIT_NEW = 0.65, 1.0, (16, 200), (8, 48)
_FIT, _PREDICTED = 0, 1  # index of the mix, and part of its traces' seeds


Load = Annotated[float, In("(0, 2]", "a share of the capacity")]


@dataclass
class PredictionSettings:
    """Settings as key=value on the command line.

    Attributes:
      catalog: folder of checkpoints; null: random weights.
      shapes: shapes of random models, in turn.
      models: number of random models.
      serve: further settings of `c2c serve`, such as "rows=[1,4]".
      workers: workers of the engine, each on one core.
      requests: requests of each trace.
      repeats: runs of each trace.
      loads: predicted rates, as shares of the capacity.
      zipf: exponent of the models' popularity; 0: uniform.
      prompt: least and most tokens in the predicted traces.
      new: least and most tokens of an answer there.
      seed: of weights and requests.
      out: folder of the result; null for a new one in runs/bench.
      overwrite: whether to replace another result there.
    """

    catalog: str | None = None
    shapes: list[str] = field(default_factory=lambda: ["llama-18m", "qwen3-8m"])
    models: Count = 4
    serve: list[str] = field(default_factory=list)
    workers: Count = 1
    requests: Count = 300
    repeats: Count = 5
    loads: list[Load] = field(default_factory=lambda: [0.5, 0.8])
    zipf: FromZero = 0.5
    prompt: list[int] = field(default_factory=lambda: [32, 320])
    new: list[int] = field(default_factory=lambda: [16, 96])
    seed: int = 0
    out: str | None = None
    overwrite: bool = False


def _check(settings: PredictionSettings) -> None:
    if not settings.shapes or not set(settings.shapes) <= set(SERVED_SHAPES):
        raise SettingError("shapes", settings.shapes, f"some of {', '.join(SERVED_SHAPES)}")
    if not settings.loads:
        raise SettingError("loads", settings.loads, "at least one share of the capacity")
    if len(set(settings.loads)) < len(settings.loads):
        raise SettingError("loads", settings.loads, "shares without duplicates")
    for name in ("prompt", "new"):
        check_span(name, getattr(settings, name))
    for setting in settings.serve:
        if setting.partition("=")[0] in {"catalog", "workers", "out", "port", "host", "key"}:
            raise SettingError("serve", setting, "a setting that this command neither has nor sets")
    if settings.catalog is not None and not Path(settings.catalog).expanduser().is_dir():
        raise SettingError("catalog", settings.catalog, "a folder of checkpoints")


def _most_tokens(settings: PredictionSettings) -> int:
    return max(_FIT_PROMPT[1] + _FIT_NEW[1], settings.prompt[1] + settings.new[1])


def _models(settings: PredictionSettings, folder: Path) -> tuple[Path, tuple[str, ...], int]:
    from c2c.engine import find_models
    from c2c.errors import DataError

    if settings.catalog is None:
        shutil.rmtree(folder, ignore_errors=True)  # of a stopped run; the new bits are the same
        names = write_models(settings.shapes, settings.models, settings.seed, folder)
        return folder, tuple(names), min(config_of(s)["vocab_size"] for s in settings.shapes)
    catalog = Path(settings.catalog).expanduser()
    entries = find_models(catalog)
    for entry in entries:
        if entry.spec is None:
            raise DataError(str(entry.path), entry.failed)
        if entry.context < (most := _most_tokens(settings)):
            raise SettingError(
                "catalog", settings.catalog,
                f"models with a context of at least {most} tokens; {entry.name} has "
                f"{entry.context}", "Shorten prompt and new.",
            )  # fmt: skip
    vocab = min(entry.spec.vocab for entry in entries if entry.spec is not None)
    return catalog, tuple(entry.name for entry in entries), vocab


def _mixes(settings: PredictionSettings, names: tuple[str, ...], vocab: int) -> tuple[Mix, Mix]:
    def mix(zipf: float, prompt: Sequence[int], new: Sequence[int]) -> Mix:
        return Mix(
            models=names, zipf=zipf, prompt=(prompt[0], prompt[1]), new=(new[0], new[1]),
            vocab=vocab,
        )  # fmt: skip

    return (
        mix(_FIT_ZIPF, _FIT_PROMPT, _FIT_NEW),
        mix(settings.zipf, settings.prompt, settings.new),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """Records of live runs, `predicted` by load, and both mixes' `capacity`."""

    capacity: tuple[float, float]
    fit: tuple[Path, ...]
    predicted: Mapping[float, tuple[Path, ...]]


def _run_live(settings: PredictionSettings, folder: Path) -> _Live:
    catalog, names, vocab = _models(settings, folder / "models")
    mixes = _mixes(settings, names, vocab)
    serve = (
        f"workers={settings.workers}", f"context={_most_tokens(settings)}", *settings.serve,
    )  # fmt: skip
    host = Host(catalog=catalog, settings=serve, runs=folder)
    total = 2 + settings.repeats * (1 + len(settings.loads))
    with progress_bar("runs of the engine", total) as advance:
        done = 0

        def served(name: str, which: int, rate: float) -> Path:
            nonlocal done
            seed = settings.seed * 2 + which
            run = host.served(name, trace(mixes[which], settings.requests, rate, seed))
            advance(done := done + 1)
            return run

        fit_capacity, capacity = (
            capacity_of(served(name, which, float("inf")))
            for name, which in (("at-once-fit", _FIT), ("at-once", _PREDICTED))
        )
        fit: list[Path] = []
        predicted: dict[float, list[Path]] = {load: [] for load in settings.loads}
        for k in range(settings.repeats):
            fit.append(served(f"fit-{k}", _FIT, _FIT_LOAD * fit_capacity))
            for load in settings.loads:
                name = f"predicted-{load:g}-{k}"
                predicted[load].append(served(name, _PREDICTED, load * capacity))
    return _Live(
        capacity=(fit_capacity, capacity),
        fit=tuple(fit),
        predicted={load: tuple(runs) for load, runs in predicted.items()},
    )


def _predict(run: Path, fits: Mapping[str, StepFit]) -> tuple[list[Comparison], dict[str, Any]]:
    prepared, options = prepared_of(run)
    inputs = inputs_of(run, prepared)
    simulated = replay(with_costs(prepared, fits, options.budgets), inputs, fits)
    retold = retell(prepared, inputs, recorded_steps(run))
    exact = compare(inputs.served, retold.requests)
    return compare(inputs.served, simulated), {
        "run": run.name,
        "served": len(inputs.served),
        "plans": retold.plans,
        "plans_as_recorded": retold.equal,
        "retold_error": max(abs(one.error) for one in exact),
        "drift": asdict(drift_of(recorded_steps(run), fits)),
        "others": max(read_machine(run).others, default=0.0),
    }


def _work(settings: PredictionSettings, folder: RunDir, out: Console) -> None:
    # Runs of other code or settings have other folders.
    live = _run_live(settings, folder.kept_folder(f"live-{folder.key[:12]}"))
    fits = fitted(live.fit)
    judgements: list[Judged] = []
    compared: list[list[list[Comparison]]] = []
    about: list[dict[str, Any]] = []
    shapes: list[tuple[float, Shape]] = []
    total = sum(len(runs) for runs in live.predicted.values())
    with progress_bar("predictions", total) as advance:
        for load, runs in live.predicted.items():
            compared.append([])
            for run in runs:
                comparison, facts = _predict(run, fits)
                compared[-1].append(comparison)
                about.append(dict(facts, load=load))
                shapes += [(load, one) for one in shapes_of(recorded_steps(run), fits)]
                advance(len(about))
            judgements += judge(load, compared[-1])
    first_line = verdict(judgements)
    out.print(first_line)
    out.print(_table(settings, judgements))
    out.print(_by_shape(shapes))
    out.print(_words(live, about, fits))
    folder.write_table("prediction", _tidy(live, compared))
    folder.write_table(
        "shapes", pa.Table.from_pylist([{"load": load, **asdict(one)} for load, one in shapes])
    )
    folder.write_json(
        "prediction",
        {
            "verdict": first_line,
            "capacity_requests_per_s": dict(zip(("fit", "predicted"), live.capacity, strict=True)),
            "medians": [
                asdict(one) | {"error": one.error, "is_met": one.is_met, "is_noise": one.is_noise}
                for one in judgements
            ],
            "runs": about,
            "steps": {name: fit.as_dict() for name, fit in fits.items()},
        },
    )
    folder.write_figure("prediction", draw(settings.loads, compared, judgements, first_line))


def _tidy(live: _Live, compared: Sequence[Sequence[Sequence[Comparison]]]) -> pa.Table:
    rows = [
        {
            "load": load, "run": k, "figure": one.name, "percentile": one.share,
            "live_s": one.live_s, "simulated_s": one.simulated_s,
        }
        for load, runs in zip(live.predicted, compared, strict=True)
        for k, run in enumerate(runs)
        for one in run
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def _table(settings: PredictionSettings, judgements: Sequence[Judged]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, title_justify="left",
        title=f"{settings.requests} requests, medians of {settings.repeats} runs",
    )  # fmt: skip
    for name in ("load", "figure", "live, ms", "predicted, ms", "error, %", "target", "spread, %"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for one in judgements:
        table.add_row(
            f"{one.load:g}", f"{one.name.removesuffix('_s')} p{one.share}",
            f"{1e3 * one.live_s:.2f}", f"{1e3 * one.simulated_s:.2f}", f"{100 * one.error:+.1f}",
            "-" if one.target is None else f"{100 * one.target:g}", f"{100 * one.floor:.1f}",
        )  # fmt: skip
    return table


def _by_shape(shapes: Sequence[tuple[float, Shape]]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="steps by shape, all models", title_justify="left")
    for name in ("load", "kind", "rows or tokens", "steps", "share of time, %", "live, ms"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    table.add_column("fit, error %", justify="right")
    for load in dict.fromkeys(load for load, _ in shapes):
        mine = [one for rate, one in shapes if rate == load]
        whole_s = sum(one.steps * one.live_s for one in mine)
        for kind, size in sorted({(one.kind, one.size) for one in mine}):
            same = [one for one in mine if (one.kind, one.size) == (kind, size)]
            steps, live_s, fitted_s = (
                sum(one.steps * value(one) for one in same)
                for value in (lambda _: 1, lambda one: one.live_s, lambda one: one.fitted_s)
            )
            table.add_row(
                f"{load:g}", kind, f"{size}", f"{steps}", f"{100 * live_s / whole_s:.0f}",
                f"{1e3 * live_s / steps:.2f}",
                f"{100 * (fitted_s / live_s - 1):+.1f}" if fitted_s else "not fitted",
            )  # fmt: skip
    return table


def _words(live: _Live, about: Sequence[Mapping[str, Any]], fits: Mapping[str, StepFit]) -> str:
    plans, equal = (sum(run[name] for run in about) for name in ("plans", "plans_as_recorded"))
    return (
        f"capacity {live.capacity[0]:.2f} and {live.capacity[1]:.2f} requests/s (fitted and "
        f"predicted mix). With recorded step times: {equal} of {plans} plans equal, figures within "
        f"{100 * max(run['retold_error'] for run in about):.2f} %. Decode steps: up to "
        f"{100 * max(fit.residual for fit in fits.values()):.0f} % around the fit, "
        f"{100 * max(run['drift']['worst'] for run in about):.0f} % off it in the worst ten "
        f"seconds. Other processes: {100 * max(run['others'] for run in about):.0f} % of the cores"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the check that the command line asks for; return the exit status."""

    def run() -> int:
        settings = read_settings(PredictionSettings, arguments)
        _check(settings)
        out = Console(highlight=False, width=110, soft_wrap=True)
        where = Path(
            settings.out or f"runs/bench/prediction-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        ).expanduser()
        with RunDir.open(
            where, asdict(settings), packages=("c2c", "pallas_kernels", "experiments"),
            ignore=("out", "overwrite"), overwrite=settings.overwrite, seed=settings.seed,
        ) as folder:  # fmt: skip
            if folder.is_complete:
                out.print(f"{where} is complete")
                return 0
            _work(settings, folder, out)
        out.print(f"written to {where}")
        return 0

    return command(run, arguments)
