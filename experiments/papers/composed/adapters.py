"""Fine-tunes that one GH200 serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from c2c.config import build, simulate
from c2c.models import Adapter, adapter_bytes, load_spec, weight_bytes
from c2c.ranges import AboveZero, Count, FromZero
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures, medians
from experiments.papers.c2cserve.settings import GH200, composed

__all__ = ["FineTunes", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTunes:
    """Experiment: base and adapters, load, numbers of models, systems."""

    spec: str
    rank: Count
    tpot_slo_s: AboveZero
    rate_rps: AboveZero
    zipf_exponent: FromZero
    seconds: AboveZero
    least_requests: Count
    attainment_percent: AboveZero
    bases: tuple[Count, ...]
    fine_tunes: tuple[Count, ...]
    models: tuple[Count, ...]
    adapters: dict[str, tuple[str, ...]]
    whole: dict[str, tuple[str, ...]]

    def catalog(self, bases: int, models: int, *, is_whole: bool) -> str:
        """Return the setting of a catalog of fine-tunes, with bases."""
        base = f"spec: {self.spec}, tpot_slo_s: {self.tpot_slo_s}"
        if is_whole:
            return f"catalog.models=[{{{base}, name: model, copies: {models}}}]"
        entries = [f"{{{base}, name: base{k}}}" for k in range(bases)]
        for k in range(bases):
            copies = models // bases - 1 + (k < models % bases)
            if copies > 0:
                entries.append(
                    f"{{name: tune{k}, base: base{k}, rank: {self.rank}, copies: {copies}}}"
                )
        return f"catalog.models=[{','.join(entries)}]"


@figure("adapters", title="Fine-tunes on one GH200", experiment=FineTunes,
        draw=".adapters_drawing.draw_adapters", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: FineTunes) -> Computed:
    """Compute attainment by the number of fine-tunes."""
    runs = [
        (bases, models, name, is_whole, seed)
        for bases in experiment.bases
        for systems, numbers, is_whole in (
            (experiment.adapters, experiment.fine_tunes, False),
            (experiment.whole if bases == experiment.bases[0] else {}, experiment.models, True),
        )
        for name in systems
        for models in numbers
        for seed in context.seeds
    ]
    rows = []
    for bases, models, name, is_whole, seed in context.each(runs):
        system = (experiment.whole if is_whole else experiment.adapters)[name]
        rate = experiment.rate_rps * models
        requests = max(experiment.least_requests, round(rate * experiment.seconds))
        settings = [
            *GH200, *system, f"link={context.link_variant}", "workload=poisson",
            experiment.catalog(bases, models, is_whole=is_whole), f"workload.rate_rps={rate}",
            f"workload.zipf_exponent={experiment.zipf_exponent}", f"workload.requests={requests}",
        ]  # fmt: skip
        got = simulate(build(composed(settings, {"seed": seed})))
        rows.append(
            {"bases": bases, "models": models, "system": name, "is_whole": is_whole, "seed": seed,
             "rate_rps": rate, **measures(got)}
        )  # fmt: skip
    middle = medians(rows, ("bases", "models", "system"))
    return Computed(
        tables={"runs": pa.Table.from_pylist(middle), "by_seed": pa.Table.from_pylist(rows)},
        results=(),
        finding=_finding(middle, experiment),
        caption=(
            f"Requests within both targets by the number of fine-tunes of {experiment.spec}, each "
            f"with {3600 * experiment.rate_rps:g} requests an hour; link variant "
            f"'{context.link_variant}'."
        ),
        assumptions=_setup(context, experiment),
        report=_report(middle),
    )


def _most(rows: Sequence[Mapping[str, Any]], experiment: FineTunes, name: str, bases: int) -> int:
    most = 0
    here = [r for r in rows if r["system"] == name and r["bases"] == bases]
    for row in sorted(here, key=lambda r: r["models"]):
        if row["both_percent"] < experiment.attainment_percent:
            break
        most = row["models"]
    return most


def _finding(rows: Sequence[Mapping[str, Any]], experiment: FineTunes) -> str:
    first = experiment.bases[0]

    def best(systems: Mapping[str, Any], bases: int) -> str:
        most = max(_most(rows, experiment, name, bases) for name in systems)
        return f"{most:,}{' or more' if most == experiment.fine_tunes[-1] else ''}"

    adapted = [f"{best(experiment.adapters, n)} over {n} base{'s'[: n > 1]}"
               for n in experiment.bases]  # fmt: skip
    return (
        f"Fine-tunes of one GH200 with {experiment.attainment_percent:g} % within targets: as "
        f"adapters {' and '.join(adapted)}, as whole models {best(experiment.whole, first)}"
    )


def _setup(context: Context, experiment: FineTunes) -> tuple[str, ...]:
    spec = load_spec(experiment.spec)
    one = adapter_bytes(spec, Adapter(rank=experiment.rank))
    return (
        f"An adapter of rank {experiment.rank} on all linear modules has {one / 1e6:.0f} MB, a "
        f"whole model {weight_bytes(spec) / 1e9:.1f} GB.",
        f"Load: Poisson arrivals for {experiment.seconds:g} s, at least "
        f"{experiment.least_requests:,} requests; popularity by rank to the power of "
        f"-{experiment.zipf_exponent:g}; lengths of the generator.",
        f"Targets: TTFT 1 s, TPOT {experiment.tpot_slo_s:g} s. Values are medians of "
        f"{len(context.seeds)} seed{'s'[: len(context.seeds) > 1]}.",
        "Without slots each step reads the adapters of its rows over the link, once each.",
        *(
            f"{name}: {', '.join(overrides)}."
            for name, overrides in (experiment.adapters | experiment.whole).items()
        ),
    )


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("bases", "fine-tunes", "system", "requests/s", "both met %", "TTFT p50 s", "p99",
            "TPOT p50 ms", "link used %", "switches")  # fmt: skip
    body = [
        (
            "" if r["is_whole"] else str(r["bases"]), f"{r['models']:,}", r["system"],
            f"{r['rate_rps']:g}", f"{r['both_percent']:.2f}", f"{r['ttft_p50_s']:.3g}",
            f"{r['ttft_p99_s']:.3g}", f"{1e3 * r['tpot_p50_s']:.0f}", f"{r['link_percent']:.0f}",
            f"{r['switches']:,.0f}",
        )
        for r in rows
    ]  # fmt: skip
    return (head, *body)
