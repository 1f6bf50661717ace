"""Figures of the smallest change of one number that mends each missed claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa

from experiments.c2cserve import fig4, fig6, fig8, fig9, fig12, fig13, fig14, starts
from experiments.c2cserve.baselines import DENSE, MOE
from experiments.c2cserve.replay import TRACES, load_of_half
from experiments.claims import Result, claim
from experiments.claims.fidelity import brief
from experiments.figure import PROFILES, SIMULATOR, Computed, Context, figure
from experiments.sensitivity.knobs import Knob, chip_knobs, constant_knobs, setting_knob
from experiments.sensitivity.search import LIMIT, Search, Wanted
from experiments.tessera import heterogeneity

__all__ = ["SEARCHED", "Searched", "compute", "knobs_of", "said"]

GEMM: Final = ("mma_efficiency", "link_efficiency", "reduce_gbps_per_sm", "asym_issue_s",
               "hbm_efficiency", "launch_s")  # fmt: skip
STEPS: Final = (*GEMM, "prefill_efficiency", "elementwise_efficiency", "slice_hbm_gain",
                "step_overhead_s")  # fmt: skip
STARTS: Final = ("switch_dense_s", "switch_moe_s", "engine_init_s", "sllm_init_dense_s",
                 "sllm_init_moe_s")  # fmt: skip
CHIP: Final = ("link rate", "HBM rate", "SMs", "tensor-core peak")
SETTINGS: Final[Mapping[str, tuple[str, str]]] = {  # name -> file, key
    "MoE-Infinity: reading at a start": ("system/moe_infinity.yaml", "start.1.gbps"),
    "FineMoE: reading at a start": ("system/finemoe.yaml", "start.1.gbps"),
    "caches: host's work for an expert": ("system/moe_infinity.yaml", "expert_cache.host_s"),
    "caches: share of HBM": ("system/moe_infinity.yaml", "expert_cache.share"),
    **{
        f"{name}: {what}": (f"{file}.yaml", key)
        for name, chip, calibration in (("A100", "a100_80", "a100_sxm"), ("L40s", "l40s", "l40s"))
        for what, file, key in (
            ("tensor-core peak", f"hardware/{chip}", "gpu.bf16_tflops"),
            ("CUDA cores", f"hardware/{chip}", "gpu.fp32_tflops"),
            ("memory rate", f"hardware/{chip}", "gpu.hbm_gbps"),
            ("L2 rate", f"hardware/{chip}", "gpu.l2_gbps"),
            ("L2", f"hardware/{chip}", "gpu.l2_bytes"),
            ("clock", f"hardware/{chip}", "gpu.clock_ghz"),
            ("products' share of the peak", f"calibration/{calibration}",
             "constants.gemm_mma_efficiency.value"),
            ("products' share of memory's rate", f"calibration/{calibration}",
             "constants.gemm_hbm_efficiency.value"),
        )
    },
    "L40s: all kernels": ("calibration/pair/a100_l40s.yaml", "constants.right_share.value"),
}  # fmt: skip
OUTPUT: Final = 8  # output tokens of a lone request, whose times per token hardly differ
READING: Final = tuple(SETTINGS)[:2]
CACHES: Final = tuple(SETTINGS)[2:4]
UNLIKE: Final = tuple(SETTINGS)[4:]  # rates of Tessera's two different GPUs
_MIXTURE: Final = MOE[0]
LONE: Final = [
    *((m, s) for m in DENSE for s in fig9.SYSTEMS[m]),
    *((_MIXTURE, s) for s in ("c2cserve", "serverlessllm")),
]
CACHED: Final = [
    (model, system) for model in MOE for system in ("c2cserve", "moe_infinity", "finemoe")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A figure's computation, and the numbers on which its results may depend.

    `quick` marks computations of a tenth of a second, which the quick profile also searches.
    """

    results: Callable[[Context], Sequence[Result]]
    chip: tuple[str, ...] = CHIP
    constants: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    quick: bool = False


def _lone_requests(context: Context, pairs: Sequence[tuple[str, str]]) -> Sequence[Result]:
    """Return Fig. 9's results for pairs of model and system."""
    return fig9.answered(context, fig9.served(context, pairs, requests=1, output=OUTPUT))


@cache
def _load_of_fig12(context: Context) -> float:
    """Return the load that a search of Fig. 12 or 13 keeps, fitted with no number changed."""
    return load_of_half(context, fig12.SYSTEMS["ServerlessLLM"])


@cache
def _loads_of_fig14(context: Context) -> fig14.Loads:
    """Return the loads that a search of Fig. 14 keeps, likewise."""
    return fig14.fitted_loads(context)


SEARCHED: Final[Mapping[str, Searched]] = {
    "fig4": Searched(results=lambda c: fig4.compute(c).results, constants=GEMM, quick=True),
    "fig6": Searched(results=lambda c: fig6.compute(c).results, constants=STEPS, quick=True),
    "fig8": Searched(results=lambda c: fig8.compute(c).results, constants=GEMM, quick=True),
    "fig9": Searched(
        results=lambda c: _lone_requests(c, LONE),
        constants=("link_efficiency", "gemm_hbm_efficiency", "step_overhead_s"),
    ),
    "fig9moe": Searched(
        results=lambda c: _lone_requests(c, CACHED), chip=("link rate",),
        constants=("link_efficiency",), settings=CACHES,
    ),
    "fig10": Searched(
        results=lambda c: starts.compute_cold(c).results, chip=("link rate", "disk rate"),
        constants=STARTS, settings=READING,
    ),
    "fig11": Searched(
        results=lambda c: starts.compute_switch(c).results, chip=("link rate",),
        constants=STARTS[:2],
    ),
    "fig12": Searched(
        results=lambda c: fig12.results_at(c, _load_of_fig12(c)), chip=("link rate", "HBM rate"),
        constants=("switch_dense_s", "sllm_init_dense_s"),
    ),
    "fig13": Searched(
        results=lambda c: fig13.results_at(c, _load_of_fig12(c)), chip=("link rate",),
        settings=CACHES,
    ),
    "tessera.fig2": Searched(
        results=lambda c: heterogeneity.compute(c).results, chip=(), settings=UNLIKE
    ),
    "fig14": Searched(
        results=lambda c: fig14.results_at(c, _loads_of_fig14(c)), chip=("link rate", "SMs"),
        constants=("link_efficiency",),
    ),
}  # fmt: skip


def knobs_of(of: str) -> tuple[Knob, ...]:
    """Return the numbers that the search of a figure scales."""
    searched = SEARCHED[of]
    return (
        *(knob for knob in chip_knobs() if knob.name in searched.chip),
        *(knob for knob in constant_knobs() if knob.name in searched.constants),
        *(setting_knob(*SETTINGS[name], name) for name in searched.settings),
    )


def compute(context: Context, of: str) -> Computed:
    """Compute, for every claim that a figure misses, the smallest changes that mend it."""
    # one seed and the quick profile: numbers change results more than seeds do
    small = replace(context, profile="quick", seeds=context.seeds[:1], progress=None)
    knobs = knobs_of(of)
    most = 10 * len(knobs)

    def results() -> Sequence[Result]:
        return SEARCHED[of].results(small)

    def done(count: int) -> None:
        if context.progress is not None:
            context.progress(min(count, most - 1), most)

    found = Search(compute=results, knobs=knobs, done=done).missed()
    names = ", ".join(k.name for k in knobs)
    return Computed(
        tables={"takes": _table(found)},
        results=(),
        caption=(
            f"Smallest change of one number with which a missed claim of {of} would agree with the "
            f"printed value, all other numbers unchanged; link variant '{context.link_variant}'."
        ),
        assumptions=(
            "Results are of the first seed and the quick profile.",
            f"Each of {len(knobs)} numbers was scaled alone, up to {LIMIT:g} times and down to a "
            f"{LIMIT:g}th: {names}.",
            "Shares do not go above 1.",
        ),
        report=_report(found),
        takes={w.claim_id: (said(w), _nearest(w)) for w in found},
    )


def _nearest(wanted: Wanted) -> float | None:
    """Return the smallest factor of one number that suffices, inverted if below 1; else None."""
    return math.exp(wanted.changes[0].distance) if wanted.changes else None


def said(wanted: Wanted) -> str:
    """Return the smallest changes that mend a claim, in words."""
    if not wanted.changes:
        return (
            f"None of {wanted.tried} numbers gives it alone within x{LIMIT:g} "
            f"({wanted.matter} change it)."
        )
    nearest = [f"{c.knob} x {c.factor:.3g} ({c.before:.4g} to {c.after:.4g})"
               for c in wanted.changes[:3]]  # fmt: skip
    return f"{' or '.join(nearest)}."


def _table(found: Sequence[Wanted]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for wanted in found:
        shown: dict[str, Any] = {
            "claim": wanted.claim_id,
            "published": brief(claim(wanted.claim_id).value),
            "ours": brief(wanted.ours),
            "tried": wanted.tried,
            "matter": wanted.matter,
        }
        rows += [
            shown | {"knob": c.knob, "factor": c.factor, "before": c.before, "after": c.after}
            for c in wanted.changes
        ]
        if not wanted.changes:
            rows.append(shown | {"knob": None, "factor": None, "before": None, "after": None})
    texts = [(n, pa.string()) for n in ("claim", "published", "ours")]
    counts = [(n, pa.int64()) for n in ("tried", "matter")]
    numbers = [(n, pa.float64()) for n in ("factor", "before", "after")]
    schema = pa.schema([*texts, *counts, ("knob", pa.string()), *numbers])
    return pa.Table.from_pylist(rows, schema=schema)


def _report(found: Sequence[Wanted]) -> tuple[tuple[str, ...], ...]:
    return (
        ("claim", "published", "ours", "smallest change that mends it"),
        *((w.claim_id, brief(claim(w.claim_id).value), brief(w.ours), said(w)) for w in found),
    )


for _name, _searched in SEARCHED.items():
    figure(
        f"takes.{_name}",
        title=f"What the misses of {_name} would take",
        draw="sensitivity.draw_takes",
        needs=SIMULATOR,
        traces=TRACES,
        profiles=PROFILES if _searched.quick else ("full",),
    )(partial(compute, of=_name))
