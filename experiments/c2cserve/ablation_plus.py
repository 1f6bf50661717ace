"""Gain of each part of `c2cserve_plus`, by switching it off alone (beyond the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from experiments.c2cserve.fleets import QUICK_REQUESTS, catalog
from experiments.c2cserve.measures import measures
from experiments.c2cserve.replay import TRACES, describe, replay
from experiments.claims import improvements_of
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["VARIANTS", "compute"]

PLUS = ("system=c2cserve_plus",)
WHOLE = "plus"
ONE_EACH = "one engine a slice"  # as in the paper
# Variant -> settings. The first is the whole system.
VARIANTS: dict[str, tuple[str, ...]] = {
    WHOLE: (),
    ONE_EACH: ("system.engines.residents=1",),
    "two engines a slice": ("system.engines.residents=2",),
    "eight engines a slice": ("system.engines.residents=8", "system.engines.share=inf"),
    "no weights kept": ("system/keep=nothing_kept",),
    "no layers displaced": ("system.keep.displace=inf",),
    "turns: nobody stays": ("system.turn.stay=0",),
    "turns: round robin": ("system/turn=round_robin",),
    "turns: no gate": ("system.turn.gate=inf",),
    "turns: no triage": ("system.turn.protect=0", "system.turn.late_s=inf"),
    "one instance a model": ("system/scale=one_instance",),
    "chunk: profiled": ("system/chunk=profiled", "~system.chunk.tokens"),
    "chunk: by queue": ("system/chunk=by_queue", "~system.chunk.tokens"),
    "chunk: 512": ("system.chunk.tokens=512",),
    "chunk: 2048": ("system.chunk.tokens=2048",),
    "route: least outstanding": ("system/route=least_outstanding",),
    # this placement does not look for a model's instance, so routing has to
    "route and place: c2cserve's": (
        "system/route=least_outstanding",
        "system/place=bandwidth_aware",
    ),
    "alpha: static": ("system/alpha=static",),
    "alpha: roofline": ("system/alpha=roofline",),
    "alpha: feedback": ("system/alpha=feedback",),
    "a turn costs 0 ms": ("system.engines.turn_s=0",),
    "a turn costs 5 ms": ("system.engines.turn_s=0.005",),
    "an engine takes 0 GB": ("system.engines.bytes=0",),
    "an engine takes 1 GB": ("system.engines.bytes=1e9", "system.engines.share=0.25"),
}
# Variants that differ in numbers alone: another policy is another program to compile.
QUICK_VARIANTS = (
    WHOLE, ONE_EACH, "eight engines a slice", "no layers displaced", "turns: no triage",
    "chunk: 512", "a turn costs 5 ms", "an engine takes 1 GB",
)  # fmt: skip
LEAST_POINTS = 0.01  # of attainment: two or three requests, too few to matter
# Parts that matter if many engines are busy and their models do not fit HBM together.
OF_ENGINES = (
    WHOLE, ONE_EACH, "two engines a slice", "eight engines a slice", "no weights kept",
    "no layers displaced", "turns: nobody stays", "turns: round robin", "turns: no triage",
    "one instance a model", "a turn costs 5 ms", "an engine takes 1 GB",
)  # fmt: skip
# Models, compression, layout -> variants: a busy fleet, one with idle slices and link, and bursts
# whose models do not fit HBM together.
POINTS: dict[tuple[int, float, str], tuple[str, ...]] = {
    (16, 8.0, "7x12gb"): tuple(VARIANTS),
    (6, 3.0, "7x12gb"): tuple(VARIANTS),
    (16, 60.0, "4x24gb"): OF_ENGINES,
}
SHOWN = (
    ("both_percent", "both met %", 2), ("worst_percent", "worst model %", 1),
    ("ttft_p50_s", "TTFT p50 s", 3), ("ttft_p99_s", "p99", 3),
    ("tpot_p50_s", "TPOT p50 s", 3), ("tpot_p99_s", "p99", 3),
)  # fmt: skip


@figure("ablation_plus", title="Worth of each part of plus (beyond the paper)",
        draw="fleets.draw_ablation_plus", needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return latency and attainment of every variant, load and seed."""
    points = {next(iter(POINTS)): QUICK_VARIANTS} if context.quick else POINTS
    runs = [(p, name, seed) for p in points for name in points[p] for seed in context.seeds]
    rows: list[dict[str, Any]] = []
    link_gbps = 0.0
    for (models, compression, mig), name, seed in context.each(runs):
        settings = [*catalog(models), *PLUS, f"mig={mig}", *VARIANTS[name]]
        if context.quick:
            settings.append(f"workload.max_requests={QUICK_REQUESTS}")
        got = replay(context, compression, settings, seed)
        link_gbps = got.stats.link_capacity_gbps
        rows.append(
            {
                "point": f"{models} models, compression {compression:g}, {mig}",
                "variant": name,
                "seed": seed,
                **measures(got),
            }
        )
    part = f" (its first {QUICK_REQUESTS:,} requests)" if context.quick else ""
    left_out = () if context.quick else ("Under bursts only parts that matter there are changed.",)
    loads = dict.fromkeys(load for _, load, _ in points)
    caption = (
        "Each row changes one part of c2cserve_plus: share of requests within both targets, and "
        "p99 TTFT. Dots: mean over seeds, lines: range, blue: the unchanged system; "
        f"{context.link_text(link_gbps)}."
    )
    assumptions = (
        f"Load: {describe(context, *loads)}{part}.",
        "Half of the models on the one GH200 are Llama-3 3B, half are 8B.",
        *left_out,
        *_worth(rows),
    )
    return Computed(
        tables={"ablations": pa.Table.from_pylist(rows)},
        results=(),
        caption=caption, assumptions=assumptions,
        report=_report(rows),
        improvements=improvements_of(
            rows, [(WHOLE, ONE_EACH)],
            {"both_percent": ("both targets met", "%", "more"),
             "ttft_p99_s": ("p99 TTFT", "s", "less")},
            where=lambda r: str(r["point"]), by="variant",
        ),
    )  # fmt: skip


def _worth(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return sentences on the parts that change mean attainment by more than seeds, by load."""
    said = []
    for point in dict.fromkeys(r["point"] for r in rows):
        here = [r for r in rows if r["point"] == point]
        whole = [r["both_percent"] for r in here if r["variant"] == WHOLE]
        parts = {}
        for name in dict.fromkeys(r["variant"] for r in here if r["variant"] != WHOLE):
            values = [r["both_percent"] for r in here if r["variant"] == name]
            parts[name] = float(np.mean(values) - np.mean(whole))
        noise = max(whole) - min(whole) + LEAST_POINTS
        moved = [f"{n} {v:+.2f}" for n, v in parts.items() if abs(v) > noise]
        still = [n for n, v in parts.items() if abs(v) <= noise]
        said.append(
            f"{point}: these changes move attainment by more points than seeds do: "
            f"{', '.join(moved) or 'none'}."
        )
        said.append(
            f"{point}: these change at most {noise:.2f} points, as seeds do: "
            f"{', '.join(still) or 'none'}."
        )
    return tuple(said)


def _report(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    body = []
    for point, name in dict.fromkeys((r["point"], r["variant"]) for r in rows):
        here = [r for r in rows if (r["point"], r["variant"]) == (point, name)]
        cells = []
        for column, _, digits in SHOWN:
            values = [r[column] for r in here]
            cells.append(
                f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to "
                f"{max(values):.{digits}f})"
            )
        body.append((point, name, *cells))
    return (("load", "variant", *(title for _, title, _ in SHOWN)), *body)
