"""Many models on few GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from c2c.config import SimulationResult, build, simulate
from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, FromZero
from experiments.experiment import named
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import MEASURES, measures, medians
from experiments.papers.c2cserve.replay import TRACES, describe, replay_settings
from experiments.papers.c2cserve.settings import catalog, composed

__all__ = ["Sharing", "compute"]

_POINT: Final = ("chip", "models", "compression")
_LEAST_REQUESTS: Final = 2000  # below, queues of the slower systems do not show


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Experiment: systems, chips, numbers of models, loads."""

    systems: dict[str, tuple[str, ...]]
    shown: tuple[str, ...]
    placed: tuple[str, ...]
    chips: tuple[str, ...]
    gpus: Count
    models: tuple[Count, ...]
    compressions: tuple[AboveZero, ...]
    max_requests: Count
    close_points: FromZero
    seeds: Count

    def __post_init__(self) -> None:
        for name in (*self.shown, *self.placed):
            named(self.systems, name, "systems")
        if self.max_requests < _LEAST_REQUESTS:
            allowed = f"at least {_LEAST_REQUESTS:,}, so that queues show"
            raise SettingError("experiment.max_requests", self.max_requests, allowed)

    def points(self, seeds: Sequence[int]) -> Iterator[tuple[str, int, float, int, str]]:
        """Yield chip, models, load, seed and system of runs."""
        in_turn = sorted(self.shown, key=lambda name: name in self.placed)
        for chip in self.chips:
            for models in self.models:
                for compression in self.compressions:
                    for seed in seeds:
                        for name in in_turn:
                            yield chip, models, compression, seed, name


@figure("sharing", title="Many models on few GPUs", experiment=Sharing,
        draw=".sharing_drawing.draw_sharing", needs=SIMULATOR,
        traces=TRACES, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Sharing) -> Computed:
    """Return attainment and latencies by system and point, and the best."""
    seeds = context.seeds[: experiment.seeds]
    rows: list[dict[str, Any]] = []
    rates: dict[tuple[Any, ...], list[float]] = {}
    for point in context.each(list(experiment.points(seeds))):
        chip, models, compression, seed, name = point
        settings = [*experiment.systems[name], *catalog(models)]
        settings += [f"superchips={experiment.gpus}"]
        settings += [f"workload.max_requests={experiment.max_requests}"]
        if name in experiment.placed and (rates_rps := rates.get(point[:-1])):
            settings.append(f"system.layout.rates_rps={rates_rps}")
        outcome = _served(context, compression, settings, seed, chip)
        if outcome is not None:
            rates.setdefault(point[:-1], _rates_rps(*outcome))
        numbers = dict.fromkeys(MEASURES) if outcome is None else measures(outcome[1])
        rows.append(
            dict(zip(_POINT, point[:3], strict=True))
            | {"system": name, "seed": seed, "fits": outcome is not None, **numbers}
        )
    middle = medians(rows, (*_POINT, "system"))
    best = [{**row, **_best(experiment, here)} for row, here in _by_point(middle)]
    return Computed(
        tables={
            "systems": pa.Table.from_pylist(middle),
            "by_seed": pa.Table.from_pylist(rows),
            "best": pa.Table.from_pylist(best),
        },
        results=(),
        caption=(
            f"Requests within both targets by the number of models on {experiment.gpus} GPUs of a "
            f"kind, {' and '.join(experiment.chips)}; a line ends where models no longer fit."
        ),
        finding=_finding(experiment, best),
        assumptions=(
            f"Load: {describe(replace(context, seeds=seeds), *experiment.compressions)}, its first "
            f"{experiment.max_requests:,} requests; the picture has the highest load.",
            "Half of the models are Llama-3 3B (TPOT target 0.15 s), half are 8B (0.3 s); the TTFT "
            "target is 1 s.",
            *(f"{name}: {', '.join(experiment.systems[name])}." for name in experiment.shown),
            f"The placement of {', '.join(experiment.placed)} knows each model's rate in the "
            "replay itself, so it is at its best; the other systems know no future.",
            f"Systems within {experiment.close_points:g} points of the best share its win.",
        ),
        report=_report(middle),
    )


def _served(
    context: Context, compression: float, settings: Sequence[str], seed: int, chip: str
) -> tuple[tuple[str, ...], SimulationResult] | None:
    overrides = replay_settings(context, compression, settings, seed, chip=[f"hardware={chip}"])
    cfg = composed(*overrides)
    try:
        setup = build(cfg)
    except SettingError as error:
        if error.field != "catalog":
            raise
        return None
    return tuple(d.name for d in setup.prepared.setup.deployments), simulate(setup)


def _rates_rps(models: Sequence[str], result: SimulationResult) -> list[float]:
    count = Counter(result.requests["model"].to_pylist())
    arrivals_s = result.requests["arrival_s"].to_numpy()
    span_s = float(arrivals_s.max() - arrivals_s.min())
    return [float(f"{max(0.1, count[name]) / span_s:.4g}") for name in models]


def _by_point(
    rows: Sequence[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    for key in dict.fromkeys(tuple(r[c] for c in _POINT) for r in rows):
        here = [r for r in rows if tuple(r[c] for c in _POINT) == key]
        yield dict(zip(_POINT, key, strict=True)), here


def _best(experiment: Sharing, here: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    fitting = [r for r in here if r["fits"]]
    most = max(r["both_percent"] for r in fitting)
    close = [r["system"] for r in fitting if r["both_percent"] >= most - experiment.close_points]
    return {"both_percent": most, "systems": close}


def _finding(experiment: Sharing, best: Sequence[Mapping[str, Any]]) -> str:
    models, load = max(experiment.models), max(experiment.compressions)
    parts = [
        f"{' and '.join(b['systems'])} on {b['chip']} ({b['both_percent']:.3g}%)"
        for b in best
        if (b["models"], b["compression"]) == (models, load)
    ]
    return f"{models} models on {experiment.gpus} GPUs, within both targets: {', '.join(parts)}"


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "chip", "models", "compression", "system", "TTFT p50 s", "p99", "TPOT p50 ms",
        "both met %", "worst model %", "switches",
    )  # fmt: skip
    body = []
    for r in rows:
        first = (r["chip"], f"{r['models']}", f"{r['compression']:g}", r["system"])
        if not r["fits"]:
            body.append((*first, "does not fit", *[""] * 5))
            continue
        latencies = (f"{r['ttft_p50_s']:.3g}", f"{r['ttft_p99_s']:.3g}")
        body.append(
            (
                *first, *latencies, f"{1e3 * r['tpot_p50_s']:.0f}", f"{r['both_percent']:.1f}",
                f"{r['worst_percent']:.1f}", f"{r['switches']:,.0f}",
            )
        )  # fmt: skip
    return (head, *body)
