"""Goodput and attainment against load, of every system of `conf/system` (beyond the papers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from c2c.config import build, simulate
from experiments.c2cserve.measures import measures, medians
from experiments.c2cserve.settings import GH200, composed
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["FAMILIES", "WITHIN_PERCENT", "Family", "capacity_rps", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Systems that can serve the same models, with their models, hardware and loads.

    Attributes:
      name: title of the panels.
      systems: names of files in `conf/system`.
      settings: catalog and hardware.
      rates_rps: loads in requests a second per chip (or pair of GPUs).
      requests: fewest requests of a point; a high load has the arrivals of `SPANS_S`.
      quick: systems of the quick profile, whose machine code its other figures need as well.
      quick_rates_rps: loads of the quick profile.
      quick_requests: fewest requests of a point of the quick profile.
    """

    name: str
    systems: tuple[str, ...]
    settings: tuple[str, ...]
    rates_rps: tuple[float, ...]
    requests: int
    quick: tuple[str, ...]
    quick_rates_rps: tuple[float, ...]
    quick_requests: int


# The order is that of the legend.
FAMILIES: Final = (
    Family(
        name="six dense models",
        systems=(
            "c2cserve", "c2cserve_letter", "c2cserve_roofline", "c2cserve_joint", "c2cserve_plus",
            "engine", "layer_staging", "serverlessllm", "serverlessllm_fast",
            "serverlessllm_hybrid", "serverlessllm_scheduler", "vllm_sleep", "aegaeon",
            "aegaeon_hybrid", "mig_resident", "dedicated",
        ),
        settings=("catalog=dense6", *GH200),
        rates_rps=(0.05, 0.25, 1.0, 4.0, 8.0, 16.0, 32.0),
        requests=3000,
        quick=("c2cserve", "c2cserve_plus", "serverlessllm", "serverlessllm_fast", "aegaeon",
               "mig_resident", "dedicated"),
        quick_rates_rps=(0.5, 4.0, 32.0),
        quick_requests=600,
    ),
    Family(
        name="Mixtral 8x7B",
        systems=("c2cserve", "serverlessllm", "moe_infinity", "moe_infinity_code",
                 "moe_infinity_hybrid", "finemoe", "finemoe_hybrid"),
        settings=(
            "catalog=moe", "catalog.models=[{spec:mixtral-8x7b,ttft_slo_s:1.0,tpot_slo_s:0.8}]",
            *GH200, "mig=1x96gb", "router.skew=0.6", "router.locality=0.5",
        ),
        rates_rps=(0.005, 0.02, 0.08, 0.32, 1.28),
        requests=300,
        quick=("c2cserve", "serverlessllm", "finemoe"),
        quick_rates_rps=(0.02, 1.28),
        quick_requests=40,
    ),
    Family(
        name="GPT-oss 20B on A100 + L40s",
        systems=("tessera", "pd", "af", "replicas"),
        settings=("catalog=gpt_oss", "node=a100_l40s"),
        rates_rps=(4.0, 16.0, 32.0, 64.0, 128.0),
        requests=3000,
        quick=("tessera", "pd"),
        quick_rates_rps=(16.0, 128.0),
        quick_requests=300,
    ),
    Family(
        name="Llama-2 13B on four A100",
        systems=("cocoserve",),
        settings=("catalog=llama2_13b", "node=a100_40_pcie_x4"),
        rates_rps=(0.5, 1.0, 2.0, 4.0, 8.0),
        requests=1000,
        quick=("cocoserve",),
        quick_rates_rps=(1.0, 8.0),
        quick_requests=60,
    ),
    Family(
        name="Llama 3 8B hot and cold on two A100",
        systems=("weaver",),
        settings=("catalog=hot_and_cold", "node=a100_40_nvlink"),
        rates_rps=(1.0, 4.0, 8.0, 16.0, 32.0),
        requests=1000,
        quick=("weaver",),
        quick_rates_rps=(4.0, 32.0),
        quick_requests=200,
    ),
)  # fmt: skip
CHIPS: Final[Mapping[str, int]] = {"dedicated": 6}  # a chip for each model
# Settings of a system beside its family's: a layout if it leaves that open, and no load of the
# checkpoint, which one model does once and which would dominate a short trace.
MORE: Final[Mapping[str, tuple[str, ...]]] = {
    "mig_resident": ("mig=4x24gb",),
    **dict.fromkeys(("moe_infinity", "moe_infinity_code", "finemoe"), ("system.start=[]",)),
}
SEEDS: Final = 2  # of the full profile
# Shortest span of arrivals in seconds: a growing queue shows after several answers' time.
SPANS_S: Final[Mapping[str, float]] = {"quick": 60.0, "full": 300.0}
WITHIN_PERCENT: Final = 90.0  # share of requests within both targets that counts as served


@figure("every_system", title="Goodput and attainment against load (beyond the papers)",
        draw="every_system.draw_every_system", needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return goodput and attainment of every system at every load."""
    seeds = context.seeds[: 1 if context.quick else SEEDS]
    runs = [
        (family, system, rate, seed)
        for family in FAMILIES
        for system in (family.quick if context.quick else family.systems)
        for rate in (family.quick_rates_rps if context.quick else family.rates_rps)
        for seed in seeds
    ]
    rows: list[dict[str, Any]] = []
    for family, system, rate, seed in context.each(runs):
        at = {"family": family.name, "system": system, "rate_rps": rate}
        rows.append(at | {"seed": seed} | _run(context, family, system, rate, seed))
    middle = medians(rows, ("family", "system", "rate_rps"))
    requests = ", ".join(f"{_requests(context, f):,} ({f.name})" for f in FAMILIES)
    return Computed(
        tables={"loads": pa.Table.from_pylist(middle), "by_seed": pa.Table.from_pylist(rows)},
        results=(),
        caption=(
            "Goodput (load times share of requests within both targets) and that share, over "
            "the load of one Superchip or pair of GPUs; link variant "
            f"'{context.link_variant}', medians over seeds."
        ),
        assumptions=(
            f"Arrivals are Poisson for at least {SPANS_S[context.profile]:g} s; lengths are "
            "synthetic and follow ShareGPT.",
            f"A point has at least this many requests: {requests}.",
            f"Seeds: {list(seeds)}.",
            "The system dedicated has six Superchips, one a model.",
            "Each system has the layout that it chooses itself; mig_resident has 4x24gb.",
            "Dense models: TTFT target 1 s, TPOT target 0.15 s (3B) and 0.3 s (8B), popularity "
            "1/rank.",
            "Mixtral: TTFT target 1 s, TPOT target 0.8 s, one model on the whole GPU, checkpoint "
            "in host memory.",
            "GPT-oss: TTFT target 1 s, TPOT target 0.05 s.",
            "Llama-2: TTFT target 10 s, TPOT target 0.2 s.",
            "Systems with a cache of experts take one request at a time.",
        ),
        report=_report(middle),
    )


def _run(
    context: Context, family: Family, system: str, rate_rps: float, seed: int
) -> dict[str, Any]:
    chips = CHIPS.get(system, 1)
    settings = composed(
        [
            f"system={system}", *family.settings, f"superchips={chips}", "workload=poisson",
            f"workload.requests={_requests(context, family, rate_rps * chips)}",
            f"link={context.link_variant}",
            *MORE.get(system, ()),
        ],
        {"workload.rate_rps": rate_rps * chips, "seed": seed},
    )  # fmt: skip
    found = measures(simulate(build(settings), compiled=True))
    # not divided by the run's span, which lasts until the last answer
    return {
        "chips": chips,
        "goodput_rps": rate_rps * found["both_percent"] / 100.0,
        **found,
    }


def _requests(context: Context, family: Family, rate_rps: float = 0.0) -> int:
    """Return the number of requests of a point; without a rate, the fewest of any point."""
    least = family.quick_requests if context.quick else family.requests
    return max(least, round(rate_rps * SPANS_S[context.profile]))


def capacity_rps(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest load in requests/s up to which a system serves all loads; 0 if none.

    Args:
      rows: one system's rows, one a load.
    """
    best = 0.0
    for row in sorted(rows, key=lambda r: r["rate_rps"]):
        if row["both_percent"] < WITHIN_PERCENT:
            break
        best = row["rate_rps"]
    return best


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("models", "system", f"load with {WITHIN_PERCENT:g} % within both, requests/s",
            "largest goodput, requests/s", "at load", "TTFT p99 s", "TPOT p99 ms")  # fmt: skip
    body = []
    for family, system in dict.fromkeys((r["family"], r["system"]) for r in rows):
        mine = [r for r in rows if (r["family"], r["system"]) == (family, system)]
        best = max(mine, key=lambda r: r["goodput_rps"])
        body.append(
            (
                family, system, f"{capacity_rps(mine):g}", f"{best['goodput_rps']:.3g}",
                f"{best['rate_rps']:g}", f"{best['ttft_p99_s']:.3g}",
                f"{1e3 * best['tpot_p99_s']:.3g}",
            )
        )  # fmt: skip
    return (head, *body)
