"""Worth of each mechanism in sets with others, on GH200 and on different GPUs (beyond the papers).

The worth is a Shapley value in points of attainment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from experiments.answers.interval import interval_of
from experiments.c2cserve.measures import measures
from experiments.c2cserve.settings import GH200, catalog, composed
from experiments.c2cserve.workload_map import arrivals
from experiments.composed.sets import refusal, settings_of, shapley, subsets
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["FLEETS", "MECHANISMS", "UNLIKE", "Fleet", "Load", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Chips of a fleet, and the mechanisms that cannot work on them.

    Attributes:
      settings: overrides that choose the chips.
      chips: number of chips.
      without: mechanisms that these settings refuse.
    """

    settings: tuple[str, ...]
    chips: int
    without: frozenset[str] = frozenset()


# Mechanisms that work on slices of one chip; the others spread over the GPUs of a node. "prefixes"
# has an effect only if prompts share prefixes, which only those of conversations do.
MECHANISMS: Final = ("streamed", "kept", "turns", "restored", "apart", "prefixes")
NOTHING: Final = "none of them"
MODELS: Final = 16  # per chip
ONE: Final = "1 GH200"
UNLIKE: Final = {
    # One chip is cut and the other is whole: there are no roles for such fleets.
    "GH200 + L40S": Fleet(
        settings=("fleet.parts=[{hardware:gh200},{hardware:l40s}]",), chips=2,
        without=frozenset({"apart"}),
    ),
    "H100 + RTX PRO 6000": Fleet(settings=("fleet=h100_rtx",), chips=2),
}  # fmt: skip
FLEETS: Final = {
    f"{n} GH200": Fleet(settings=(*GH200, f"superchips={n}"), chips=n) for n in (1, 4, 36)
} | UNLIKE
RATES: Final = (0.5, 1.0, 2.0, 4.0)  # requests/s per chip
BURSTS: Final = ("steady", "bursty", "conversations")
REQUESTS: Final = 2000  # per chip, at most `MOST_REQUESTS`
MOST_REQUESTS: Final = 4_000
SEEDS: Final = 3  # seeds of the full profile on one chip; two on several
CLOSE_POINTS: Final = 1.0  # points of attainment: a smaller difference does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload of a fleet: the fleet's key in `FLEETS`, kind of arrivals, rate per chip."""

    fleet: str
    bursts: str
    rate_rps: float

    @property
    def chips(self) -> int:
        """Number of chips of the fleet."""
        return FLEETS[self.fleet].chips

    @property
    def text(self) -> str:
        """Description of the load in words."""
        return f"{self.fleet}, {self.bursts}, {self.rate_rps:g} requests/s a chip"


@figure("worth", title="Worth of each mechanism, alone and together",
        draw="composed.draw_worth", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Compute attainment of every set of mechanisms under every load, and Shapley values."""
    quick = context.quick
    loads = [
        Load(fleet=fleet, bursts=bursts, rate_rps=rate)
        for fleet in ((ONE, *UNLIKE) if quick else FLEETS)
        for bursts in (BURSTS[:1] if quick and fleet in UNLIKE else BURSTS)
        for rate in (RATES if not quick and fleet == ONE else RATES[1::2])
    ]
    seeds = context.seeds[: 1 if quick else SEEDS]
    sets = [each for each in subsets(MECHANISMS) if refusal(each, GH200) is None]
    runs = [
        (load, each, seed)
        for load in loads
        for each in sets
        for seed in seeds[: _seeds(load)]
        if each <= set(_mechanisms(load))
    ]
    rows: list[dict[str, Any]] = []
    for load, each, seed in context.each(runs):
        names = [name for name in MECHANISMS if name in each]
        found = _run(context, load, names, seed)
        rows.append(asdict(load) | {"set": " + ".join(names) or NOTHING, "seed": seed, **found})
    shares = [
        row for load in loads for row in _shares(load, _at(rows, load), seeds[: _seeds(load)])
    ]
    caption = (
        "Bars: Shapley value of each mechanism, in points of requests within both targets; lines: "
        "95 % interval over seeds. Below zero, a mechanism costs attainment; link variant "
        f"'{context.link_variant}'."
    )
    assumptions = (
        f"The Shapley values average over {len(sets)} sets of mechanisms that can work together, "
        f"of {', '.join(MECHANISMS)}.",
        "A mechanism that cannot work in a set adds nothing to it.",
        f"A chip has {MODELS} models: half Llama-3 3B (TPOT target 0.15 s), half 8B (0.3 s); the "
        "TTFT target is 1 s.",
        "Chips are cut as mig=auto does; GH200 alone is cut by the paper's table.",
        "Steady: Poisson arrivals.",
        "Bursty: the generator of GenTD26's statistics.",
        "Conversations: sessions of four turns on average, with ten seconds from an answer to the "
        "next turn.",
        f"Seeds: {list(seeds)}; more chips than one get two.",
        "A set without streamed weights has whole chips; a set with them has most slices.",
        "Prices are the chips' list prices over tokens of requests within both targets, where "
        "every chip has a price.",
        "GH200 + L40S runs no prompts apart, as its chips are in slices and whole.",
        "Kernels of one model over two GPUs are not among these mechanisms; see tessera.fig7.",
    )
    return Computed(
        tables={"sets": pa.Table.from_pylist(rows), "shares": pa.Table.from_pylist(shares)},
        results=(),
        caption=caption,
        assumptions=assumptions,
        report=_report(loads, rows, shares),
    )


def _mechanisms(load: Load) -> tuple[str, ...]:
    here = set(MECHANISMS) - FLEETS[load.fleet].without
    if load.bursts != "conversations":
        here -= {"prefixes"}
    return tuple(m for m in MECHANISMS if m in here)


def _seeds(load: Load) -> int:
    return SEEDS if load.fleet == ONE else SEEDS - 1


def _run(context: Context, load: Load, names: Sequence[str], seed: int) -> dict[str, Any]:
    count = min(REQUESTS * load.chips, MOST_REQUESTS)
    chosen, values = arrivals(load.bursts, load.rate_rps * load.chips, count)
    if load.bursts == "conversations":
        chosen[0] = "workload=conversations"
    settings = composed(
        [*FLEETS[load.fleet].settings, *catalog(MODELS * load.chips), *chosen,
         f"link={context.link_variant}"],
        values | {"seed": seed},
    )  # fmt: skip
    # These mechanisms choose nothing but the system, which is composed once for all loads.
    settings.system = composed([*GH200, *settings_of(names)]).system
    setup = build(settings)
    got = simulate(setup)
    found, parts = measures(got), setup.serving.parts
    usd = _total([(part.count, part.platform.gpu.usd_per_hour) for part in parts])
    power_w = _total([(part.count, part.platform.gpu.power_w) for part in parts])
    # Only tokens of answers within both targets count.
    tokens_per_s = got.summary["output_tokens_per_s"] * found["both_percent"] / 100
    million_h = 1e6 / tokens_per_s / 3600 if tokens_per_s > 0 else None
    return found | {
        "goodput_rps": found["both_percent"] / 100 * load.rate_rps,
        "usd_per_million_tokens": usd and million_h and usd * million_h,
        "kwh_per_million_tokens_at_most": power_w and million_h and power_w / 1e3 * million_h,
    }


def _total(of: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the sum over all chips; None if a chip has no value."""
    known = [count * value for count, value in of if value is not None]
    return sum(known) if len(known) == len(of) else None


def _at(rows: Sequence[dict[str, Any]], load: Load) -> list[dict[str, Any]]:
    return [r for r in rows if all(r[k] == v for k, v in asdict(load).items())]


def _members(row: dict[str, Any]) -> frozenset[str]:
    return frozenset(row["set"].split(" + ")) - {NOTHING}


def _shares(load: Load, rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> list[Any]:
    """Return one row per mechanism: mean and half interval of its Shapley value over seeds."""
    by_seed = [
        shapley({_members(r): r["both_percent"] for r in rows if r["seed"] == seed})
        for seed in seeds
    ]
    return [
        asdict(load) | {"mechanism": name, "points": got.mean, "half": got.half}
        for name in _mechanisms(load)
        for got in (interval_of([values[name] for values in by_seed]),)
    ]


def _report(
    loads: Sequence[Load], rows: Sequence[dict[str, Any]], shares: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    """Return one row per load: the smallest set close to the best, and Shapley values."""
    body = []
    for load in loads:
        here: dict[str, list[float]] = {}
        for row in _at(rows, load):
            here.setdefault(row["set"], []).append(row["both_percent"])
        mean = {name: fmean(values) for name, values in here.items()}
        best = max(mean.values())
        close = [name for name, value in mean.items() if value >= best - CLOSE_POINTS]
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
