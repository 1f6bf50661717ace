"""More models than slices: C2CServe's forms and other systems on a GH200 (beyond the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from c2c.cost import load_constants
from c2c.hardware import load_mig, slices
from experiments.c2cserve.measures import measures, medians
from experiments.c2cserve.replay import TRACES, describe, replay
from experiments.c2cserve.settings import gh200_of_the_paper
from experiments.claims import Improvement, improvements_of
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["OPPONENTS", "OURS", "SYSTEMS", "catalog", "compute"]

# Name in figures -> settings. The first one is the baseline of all others.
SYSTEMS = {
    "plus": ("system=c2cserve_plus", "mig=7x12gb"),
    "plus, 4x24gb": ("system=c2cserve_plus", "mig=4x24gb"),
    "plus, nothing kept": ("system=c2cserve_plus", "system/keep=nothing_kept", "mig=7x12gb"),
    "c2cserve": ("system=c2cserve", "mig=7x12gb"),
    "letter": ("system=c2cserve_letter", "mig=7x12gb"),
    "ServerlessLLM, 4x24gb, 50 ms": ("system=serverlessllm_fast", "mig=4x24gb"),
    "ServerlessLLM, 4x24gb": ("system=serverlessllm", "mig=4x24gb"),
    "ServerlessLLM, whole GPU": ("system=serverlessllm", "mig=1x96gb"),
    "layer staging": ("system=layer_staging", "mig=7x12gb"),
}
OURS = ("plus", "plus, 4x24gb")
OPPONENTS = tuple(name for name in SYSTEMS if name[:4] in ("Serv", "laye"))
# The quick profile has the systems that other figures compile too, and the trace's beginning.
QUICK_SYSTEMS = (
    "plus", "plus, 4x24gb", "c2cserve",
    "ServerlessLLM, 4x24gb, 50 ms", "ServerlessLLM, 4x24gb", "ServerlessLLM, whole GPU",
)  # fmt: skip
QUICK_REQUESTS = 6_000
LOADS = (3.0, 8.0)
SIZES = (6, 7, 8, 10, 12, 16, 32)
CAPPED = (8.0, 16)  # the load and the number of models at which a slice's own link draw is capped
DRAWS_GBPS = (54.0, 110.0)
SEEDS = 2  # of the full profile
FLEET, FLEET_MODELS = "fleet89", 89  # weights exceed the host's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Load and models of a row. `draw_gbps`: cap of a slice's draw from the link; None for none."""

    compression: float
    models: int
    draw_gbps: float | None = None


@figure("fleets", title="More models than slices (beyond the paper)", draw="fleets.draw_fleets",
        needs=SIMULATOR, traces=TRACES, beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return latency, attainment and switches of every system at every point."""
    seeds = context.seeds[: 1 if context.quick else SEEDS]
    names = QUICK_SYSTEMS if context.quick else tuple(SYSTEMS)
    runs = [(p, name, seed) for p in _points(context.quick) for name in names for seed in seeds]
    rows: list[dict[str, Any]] = []
    link_gbps = 0.0
    for point, name, seed in context.each(runs):
        got = replay(
            context,
            point.compression,
            (*_settings(context, point), *SYSTEMS[name]),
            seed,
        )
        link_gbps = got.stats.link_capacity_gbps
        rows.append(
            {
                **asdict(point),
                "system": name,
                "seed": seed,
                **measures(got),
            }
        )
    middle = medians(rows, ("compression", "models", "draw_gbps", "system"))
    leads = _leads(middle)
    part = f" (its first {QUICK_REQUESTS:,} requests)" if context.quick else ""
    shown = replace(context, seeds=seeds)
    caption = (
        "Requests that miss a target, and p99 TTFT, over the number of models on one GH200; "
        f"{context.link_text(link_gbps)}. {_verdict(leads)}"
    )
    assumptions = (
        f"Load: {describe(shown, LOADS[-1])}{part}; values are medians over seeds.",
        f"Compression {LOADS[0]:g} stretches the same trace.",
        "Half of the models are Llama-3 3B (TPOT target 0.15 s), half are 8B (0.3 s); the TTFT "
        "target is 1 s.",
        "The layout is 7x12gb where the legend names none.",
        "ServerlessLLM copies weights into HBM and pays its published start of 1.66 s; with "
        "'50 ms' it pays C2CServe's.",
        *_behind(leads),
        *(() if context.quick else _full_texts()),
    )
    return Computed(
        tables={
            "systems": pa.Table.from_pylist(middle),
            "by_seed": pa.Table.from_pylist(rows),
            "leads": pa.Table.from_pylist(leads),
        },
        results=(),
        caption=caption,
        assumptions=assumptions,
        report=_report(middle),
        improvements=_improvements(rows),
    )


def _improvements(rows: list[dict[str, Any]]) -> tuple[Improvement, ...]:
    """Return the gains of plus over the paper's system and the quickest opponent, by size."""
    return improvements_of(
        [r for r in rows if r["draw_gbps"] is None],
        [("plus", base) for base in ("c2cserve", "ServerlessLLM, 4x24gb, 50 ms")],
        {"both_percent": ("both targets met", "%", "more"),
         "ttft_p99_s": ("p99 TTFT", "s", "less"), "tpot_p50_s": ("median TPOT", "s", "less")},
        where=lambda r: f"{r['models']} models, compression {r['compression']:g}",
    )  # fmt: skip


def catalog(models: int) -> tuple[str, ...]:
    """Return the overrides of a catalog of `models` models, half Llama-3 3B, half 8B."""
    large = models // 2
    return (
        "catalog=dense6",
        f"catalog.models=[{{spec:llama-3-3b,copies:{models - large},tpot_slo_s:0.15}},"
        f"{{spec:llama-3-8b,copies:{large},tpot_slo_s:0.3}}]",
    )


def inflight_bytes_per_sm(draw_gbps: float, layout: str) -> float:
    """Return the bytes in flight per SM at which a slice draws `draw_gbps` from GH200's link."""
    gh200 = gh200_of_the_paper()
    sms = slices(gh200, load_mig(layout))[0].sm_count
    cap_gbps = draw_gbps / load_constants().link_efficiency
    return cap_gbps * 1e9 * gh200.link.link_latency_s / sms


def _points(quick: bool) -> Iterator[Point]:
    for compression in LOADS[1:] if quick else LOADS:
        for models in (6, 16, 32) if quick else SIZES:
            yield Point(compression=compression, models=models)
        if not quick:
            yield Point(compression=compression, models=FLEET_MODELS)
    if not quick:
        for draw in DRAWS_GBPS:
            yield Point(compression=CAPPED[0], models=CAPPED[1], draw_gbps=draw)


def _settings(context: Context, point: Point) -> tuple[str, ...]:
    if point.models == FLEET_MODELS:
        return (f"catalog={FLEET}",)
    chosen = list(catalog(point.models))
    if point.draw_gbps is not None:
        in_flight = inflight_bytes_per_sm(point.draw_gbps, "7x12gb")
        chosen.append(f"hardware.link.inflight_bytes_per_sm={in_flight}")
    if context.quick:
        chosen.append(f"workload.max_requests={QUICK_REQUESTS}")
    return tuple(chosen)


def _leads(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best opponent and the lead in points, for each point and form of plus."""
    keys = ("compression", "models", "draw_gbps")
    points = list(dict.fromkeys(tuple(r[k] for k in keys) for r in rows))
    found = []
    for point in points:
        here = {r["system"]: r for r in rows if tuple(r[k] for k in keys) == point}
        best = max((here[n] for n in OPPONENTS if n in here), key=lambda r: r["both_percent"])
        found += [
            {
                **dict(zip(keys, point, strict=True)),
                "system": name,
                "both_percent": here[name]["both_percent"],
                "best_opponent": best["system"],
                "opponent_percent": best["both_percent"],
                "lead_points": here[name]["both_percent"] - best["both_percent"],
                "behind_in": _behind_in(here[name], best),
            }
            for name in OURS
        ]
    return found


def _behind_in(row: dict[str, Any], best: dict[str, Any]) -> str:
    """Return the target (TTFT or TPOT) in which a system is furthest behind another."""
    return max(
        ("TTFT", "TPOT"), key=lambda t: best[f"{t.lower()}_percent"] - row[f"{t.lower()}_percent"]
    )


def _verdict(leads: list[dict[str, Any]]) -> str:
    behind = len([r for r in leads if r["lead_points"] < 0])
    if not behind:
        return "Both forms of plus meet both targets at least as often as every opponent."
    return f"A form of plus is behind the best opponent in {behind} of {len(leads)} comparisons."


def _behind(leads: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a sentence for each point at which a form of plus is behind the best opponent."""
    return tuple(
        f"{r['system']} at {_named(r)} is behind: {r['both_percent']:.2f}% of requests within "
        f"both targets against {r['opponent_percent']:.2f}% of {r['best_opponent']} "
        f"(behind in {r['behind_in']})."
        for r in leads
        if r["lead_points"] < 0
    )


def _named(row: dict[str, Any]) -> str:
    draw = "" if row["draw_gbps"] is None else f", {row['draw_gbps']:g} GB/s a slice"
    return f"{row['models']} models, compression {row['compression']:g}{draw}"


def _full_texts() -> tuple[str, ...]:
    """Return sentences on panels that only the full profile has."""
    more = 1.0 / load_constants().link_efficiency
    return (
        "Right: rate that one slice's kernels may draw from the link, set by the bytes that an SM "
        "keeps in flight.",
        f"Right: copies into HBM may draw {more:.2f} times as much.",
        f"{FLEET_MODELS} models: catalog {FLEET} with its own targets.",
        f"The weights of {FLEET} are twice the host's memory, so that rare models come from disk.",
    )


def _report(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "models", "compression", "system", "TTFT p50 s", "p95", "p99", "TPOT p50 ms",
        "TTFT met %", "TPOT met %", "both met %", "worst model %", "switches",
    )  # fmt: skip
    body = [
        (
            f"{r['models']}",
            f"{r['compression']:g}"
            + ("" if r["draw_gbps"] is None else f", {r['draw_gbps']:g} GB/s a slice"),
            r["system"],
            *(f"{r[f'ttft_{p}_s']:.3g}" for p in ("p50", "p95", "p99")),
            f"{1e3 * r['tpot_p50_s']:.0f}",
            *(f"{r[f'{t}_percent']:.2f}" for t in ("ttft", "tpot", "both")),
            f"{r['worst_percent']:.1f}",
            f"{r['switches']:,.0f}",
        )
        for r in rows
    ]
    return (head, *body)
