"""What each missed claim would take: the smallest change of one number that would give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from experiments.c2cserve import fig4, fig6, fig9, fig12, fig13, fig14, starts
from experiments.c2cserve.context import Computed, Context
from experiments.claims import Result, claim
from experiments.claims.fidelity import brief
from experiments.sensitivity import (
    LIMIT,
    Knob,
    Search,
    Wanted,
    chip_knobs,
    constant_knobs,
    setting_knob,
)

__all__ = ["QUICK", "SEARCHED", "compute", "knobs_of", "said"]

GEMM: Final = ("mma_efficiency", "link_efficiency", "reduce_gbps_per_sm", "asym_issue_s",
               "hbm_efficiency", "launch_s")  # fmt: skip
STEPS: Final = (*GEMM, "prefill_efficiency", "elementwise_efficiency", "slice_hbm_gain",
                "step_overhead_s")  # fmt: skip
RESIDENT: Final = ("gemm_hbm_efficiency", "gemm_launch_s", "expert_hbm_efficiency")
STARTS: Final = ("switch_dense_s", "switch_moe_s", "engine_init_s", "sllm_init_dense_s",
                 "sllm_init_moe_s")  # fmt: skip
SYSTEMS: Final[Mapping[str, tuple[str, str]]] = {  # name -> file, key
    "MoE-Infinity: share of HBM for experts": ("system/moe_infinity.yaml", "expert_share"),
    "MoE-Infinity: host's work an expert": ("system/moe_infinity.yaml", "expert_host_s"),
    "MoE-Infinity: reading at a start": ("system/moe_infinity.yaml", "start.1.gbps"),
    "FineMoE: reading at a start": ("system/finemoe.yaml", "start.1.gbps"),
}
CACHES: Final = tuple(SYSTEMS)[:2]
READS: Final = tuple(SYSTEMS)[2:]

# Figure -> what computes it, the constants and the systems' settings it can hang on.
SEARCHED: Final[
    Mapping[str, tuple[Callable[[Context], Computed], tuple[str, ...], tuple[str, ...]]]
] = {
    "fig4": (fig4.compute, GEMM, ()),
    "fig6": (fig6.compute, STEPS, ()),
    "fig9": (fig9.compute, (*STEPS, *RESIDENT), CACHES),
    "fig10": (starts.compute_cold, STARTS, READS),
    "fig11": (starts.compute_switch, STARTS, READS),
    "fig12": (fig12.compute, (*STEPS, *RESIDENT, *STARTS), ()),
    "fig13": (fig13.compute, (*STEPS, *RESIDENT), CACHES),
    "fig14": (fig14.compute, STEPS, ()),
}
QUICK: Final = ("fig4", "fig6")  # computed in a tenth of a second; the others in the full profile


def knobs_of(figure: str) -> tuple[Knob, ...]:
    """Return the numbers a figure can hang on."""
    _, constants, settings = SEARCHED[figure]
    return (
        *chip_knobs(),
        *(knob for knob in constant_knobs() if knob.name in constants),
        *(setting_knob(*SYSTEMS[name], name) for name in settings),
    )


def compute(context: Context, figure: str) -> Computed:
    """Return, for every claim that a figure misses, the smallest changes that would give it."""
    of, _, _ = SEARCHED[figure]
    # one seed, small: what changes with a number is larger than what changes with a seed
    small = replace(context, profile="quick", seeds=context.seeds[:1], progress=None)
    knobs = knobs_of(figure)
    most = 10 * len(knobs)

    def results() -> Sequence[Result]:
        return of(small).results

    def done(count: int) -> None:
        if context.progress is not None:
            context.progress(min(count, most - 1), most)

    found = Search(compute=results, knobs=knobs, done=done).missed()
    names = ", ".join(k.name for k in knobs)
    return Computed(
        tables={"takes": _table(found)},
        results=(),
        caption=(
            f"Claims of {figure} that ours does not agree with, first seed, small size. Each of "
            f"{len(knobs)} numbers was scaled alone by up to {LIMIT:g} both ways ({names}); shown "
            "are the smallest changes with which ours would agree with the printed value, the "
            f"rest as it is. Shares do not go above 1. Link variant '{context.link_variant}'."
        ),
        report=_report(found),
        takes={wanted.claim_id: said(wanted) for wanted in found},
    )


def said(wanted: Wanted) -> str:
    """Return in words what a claim would take."""
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
        ("claim", "published", "ours", "what it would take"),
        *((w.claim_id, brief(claim(w.claim_id).value), brief(w.ours), said(w)) for w in found),
    )
