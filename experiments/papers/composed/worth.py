"""Shapley value of each mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean
from typing import Annotated, Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from c2c.ranges import AboveZero, Count, FromZero, OneOf
from experiments.answers.interval import interval_of
from experiments.experiment import named
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures
from experiments.papers.c2cserve.settings import GH200, catalog, composed
from experiments.papers.c2cserve.workload_map import arrivals
from experiments.papers.composed.sets import refusal, settings_of, shapley, subsets

__all__ = ["Fleet", "Load", "Worth", "compute"]

NOTHING: Final = "none of them"
_CONVERSATIONS: Final = "conversations"
_OF_CONVERSATIONS: Final = "prefixes"  # has an effect only if prompts share prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Chips of a fleet, and impossible mechanisms.

    Attributes:
      settings: overrides of chips.
      chips: number of chips.
      without: refused mechanisms.
    """

    settings: tuple[str, ...]
    chips: Count
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Workloads of a fleet: name, arrivals, rates per chip."""

    fleet: str
    bursts: tuple[Annotated[str, OneOf("steady", "bursty", _CONVERSATIONS)], ...]
    rates_rps: tuple[AboveZero, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Experiment: mechanisms, fleets with loads, sizes; worth in points of attainment.

    Attributes:
      mechanisms: of `system=composed`.
      requests: per chip, at most `most_requests` of a fleet.
      seeds: seeds of one chip; several have one less.
      close_points: negligible points.
    """

    mechanisms: tuple[str, ...]
    models: Count
    requests: Count
    most_requests: Count
    seeds: Count
    close_points: FromZero
    fleets: dict[str, Fleet]
    loads: tuple[Loads, ...]

    def __post_init__(self) -> None:
        for loads in self.loads:
            named(self.fleets, loads.fleet, "loads.fleet")

    def each_load(self) -> list[Load]:
        """Return the loads one by one."""
        return [
            Load(fleet=load.fleet, bursts=bursts, rate_rps=rate)
            for load in self.loads
            for bursts in load.bursts
            for rate in load.rates_rps
        ]

    def chips(self, load: Load) -> int:
        """Count chips of a load's fleet."""
        return self.fleets[load.fleet].chips

    def mechanisms_of(self, load: Load) -> tuple[str, ...]:
        """Return the mechanisms with effect under a load."""
        out = {*self.fleets[load.fleet].without}
        if load.bursts != _CONVERSATIONS:
            out |= {_OF_CONVERSATIONS}
        return tuple(m for m in self.mechanisms if m not in out)

    def seeds_of(self, load: Load, seeds: Sequence[int]) -> Sequence[int]:
        """Return the seeds of a load's runs."""
        return seeds[: max(1, self.seeds - (self.chips(load) > 1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A fleet's workload: fleet, kind of arrivals, rate per chip."""

    fleet: str
    bursts: str
    rate_rps: float

    @property
    def text(self) -> str:
        """Description of the load in words."""
        return f"{self.fleet}, {self.bursts}, {self.rate_rps:g} requests/s a chip"


@figure("worth", title="Worth of each mechanism, alone and together",
        experiment=Worth, draw=".drawing.draw_worth", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Worth) -> Computed:
    """Compute attainment of mechanisms' sets by load, and Shapley values."""
    loads = experiment.each_load()
    sets = [subset for subset in subsets(experiment.mechanisms) if refusal(subset, GH200) is None]
    runs = [
        (load, subset, seed)
        for load in loads
        for subset in sets
        for seed in experiment.seeds_of(load, context.seeds)
        if subset <= set(experiment.mechanisms_of(load))
    ]
    rows: list[dict[str, Any]] = []
    for load, subset, seed in context.each(runs):
        names = [name for name in experiment.mechanisms if name in subset]
        figures = _run(context, experiment, load, names, seed)
        rows.append(asdict(load) | {"set": " + ".join(names) or NOTHING, "seed": seed, **figures})
    shares = [
        row
        for load in loads
        for row in _shares(
            experiment, load, _at(rows, load), experiment.seeds_of(load, context.seeds)
        )
    ]
    interval = "" if all(r["half"] is None for r in shares) else "; lines: 95 % interval over seeds"
    caption = (
        "Bars: Shapley value of each mechanism, in points of requests within both targets"
        f"{interval}. Below zero, a mechanism costs attainment; link variant "
        f"'{context.link_variant}'."
    )
    assumptions = (
        f"The Shapley values average over {len(sets)} sets of mechanisms that can work together, "
        f"of {', '.join(experiment.mechanisms)}.",
        "A mechanism that cannot work in a set adds nothing to it.",
        "Engines of sets without restored starts capture their graphs when they start.",
        f"A chip has {experiment.models} models: half Llama-3 3B (TPOT target 0.15 s), half 8B "
        "(0.3 s); the TTFT target is 1 s.",
        "Chips are cut as mig=auto does; GH200 alone is cut by the paper's table.",
        "Steady: Poisson arrivals.",
        "Bursty: the generator of GenTD26's statistics.",
        "Conversations: sessions of four turns on average, with ten seconds from an answer to the "
        "next turn.",
        f"Seeds: {list(context.seeds[: experiment.seeds])}; more chips than one get one less.",
        "A set without streamed weights has whole chips; a set with them has most slices.",
        "Prices are the chips' list prices over tokens of requests within both targets, where "
        "every chip has a price.",
        "GH200 + L40S runs no prompts apart, as its chips are in slices and whole.",
        "Kernels of one model over two GPUs are not among these mechanisms; see tessera.fig7.",
    )
    return Computed(
        tables={"sets": pa.Table.from_pylist(rows), "shares": pa.Table.from_pylist(shares)},
        results=(),
        finding=_finding(shares),
        caption=caption,
        assumptions=assumptions,
        report=_report(experiment, rows, shares),
    )


def _finding(shares: Sequence[dict[str, Any]]) -> str:
    mean = {
        name: fmean(r["points"] for r in shares if r["mechanism"] == name)
        for name in dict.fromkeys(r["mechanism"] for r in shares)
    }
    ordered = sorted(mean, key=lambda name: -mean[name])
    worth = ", ".join(f"{name} {mean[name]:+.0f}" for name in ordered)
    return f"Mean worth of a mechanism in points of attainment: {worth}"


def _run(
    context: Context, experiment: Worth, load: Load, names: Sequence[str], seed: int
) -> dict[str, Any]:
    chips, fleet = experiment.chips(load), experiment.fleets[load.fleet]
    count = min(experiment.requests * chips, experiment.most_requests)
    chosen, values = arrivals(load.bursts, load.rate_rps * chips, count)
    if load.bursts == _CONVERSATIONS:
        chosen[0] = "workload=conversations"
    settings = composed(
        [*fleet.settings, *catalog(experiment.models * chips), *chosen,
         f"link={context.link_variant}"],
        values | {"seed": seed},
    )  # fmt: skip
    settings.system = _system_of(tuple(names))
    setup = build(settings)
    got = simulate(setup)
    figures, parts = measures(got), setup.serving.parts
    usd = _total([(part.count, part.platform.gpu.usd_per_hour) for part in parts])
    power_w = _total([(part.count, part.platform.gpu.power_w) for part in parts])
    # Only tokens of answers within both targets count.
    tokens_per_s = got.summary["output_tokens_per_s"] * figures["both_percent"] / 100
    million_h = 1e6 / tokens_per_s / 3600 if tokens_per_s > 0 else None
    return figures | {
        "goodput_rps": figures["both_percent"] / 100 * load.rate_rps,
        "usd_per_million_tokens": usd and million_h and usd * million_h,
        "kwh_per_million_tokens_at_most": power_w and million_h and power_w / 1e3 * million_h,
    }


@cache
def _system_of(names: tuple[str, ...]) -> Any:
    captured = () if "restored" in names else ("system.start=medusa/vllm",)
    return composed([*GH200, *settings_of(names), *captured]).system


def _total(terms: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the sum over chips; None: a value is missing."""
    numbers = [count * value for count, value in terms if value is not None]
    return sum(numbers) if len(numbers) == len(terms) else None


def _at(rows: Sequence[dict[str, Any]], load: Load) -> list[dict[str, Any]]:
    return [r for r in rows if all(r[k] == v for k, v in asdict(load).items())]


def _members(row: dict[str, Any]) -> frozenset[str]:
    return frozenset(row["set"].split(" + ")) - {NOTHING}


def _shares(
    experiment: Worth, load: Load, rows: Sequence[dict[str, Any]], seeds: Sequence[int]
) -> list[Any]:
    by_seed = [
        shapley({_members(r): r["both_percent"] for r in rows if r["seed"] == seed})
        for seed in seeds
    ]
    return [
        asdict(load) | {"mechanism": name, "points": got.mean, "half": got.half}
        for name in experiment.mechanisms_of(load)
        for got in (interval_of([values[name] for values in by_seed]),)
    ]


def _report(
    experiment: Worth, rows: Sequence[dict[str, Any]], shares: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    body = []
    for load in experiment.each_load():
        here: dict[str, list[float]] = {}
        for row in _at(rows, load):
            here.setdefault(row["set"], []).append(row["both_percent"])
        mean = {name: fmean(values) for name, values in here.items()}
        best = max(mean.values())
        close = [name for name, value in mean.items() if value >= best - experiment.close_points]
        take = min(close, key=lambda name: (name.count("+") + (name != NOTHING), -mean[name]))
        usd = [r["usd_per_million_tokens"] for r in _at(rows, load) if r["set"] == take]
        worth = sorted(_at(shares, load), key=lambda r: -r["points"])
        body.append(
            (
                load.text,
                "nothing helps" if take == NOTHING else take,
                f"{mean[take]:.1f}", f"{best:.1f}", f"{mean[NOTHING]:.1f}",
                "" if None in usd else f"{fmean(usd):.2f}",
                ", ".join(f"{r['mechanism']} {r['points']:+.1f}" for r in worth),
            )
        )  # fmt: skip
    title = (
        "load", "take", "within both targets %", "best set %", "none %", "USD/M tokens",
        "Shapley values, points",
    )  # fmt: skip
    return (title, *body)
