"""Leave-one-out of the fits: results without each printed number that constants were fitted to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from c2c.cost import load_constants
from c2c.hardware import load_platform
from experiments.c2cserve import fig4, fig6, starts
from experiments.claims import Result, claim, compare
from experiments.claims.fidelity import brief
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.sensitivity.knobs import changed, constant_knobs

__all__ = ["FOLDS", "Fold", "compute"]

MEASURED: Final = Path(__file__).parents[1] / "measured" / "gh200_measured.csv"
READS: Final = "link_gpu_kernel_reads"  # kernels that read pinned or paged host memory
MOVED: Final = 0.01  # a claim is shown if its ratio changes by more than a hundredth


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A printed number left out of the fit, and the values of its constants without it.

    Attributes:
      left_out: name of the printed number.
      constants: function that returns the constants' values without it, from the current settings.
      why: source of these values.
      serving: whether the constants affect starts, which are simulated: full profile only.
    """

    left_out: str
    constants: Callable[[], Mapping[str, float]]
    why: str
    serving: bool = False


def _reads_alone() -> dict[str, float]:
    """Return the link's efficiency by public measurements of kernels that read host memory."""
    with MEASURED.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        rates = [float(r["value"]) for r in rows if r["quantity"].startswith(READS)]
    return {"link_efficiency": sum(rates) / len(rates) / load_platform("gh200").link.datasheet_gbps}


def _reductions_at_hbm() -> dict[str, float]:
    """Return the rate of reductions if each reduced byte is read and written in HBM."""
    gpu = load_platform("gh200").gpu
    rate = gpu.hbm_gbps * load_constants().hbm_efficiency / 2.0 / gpu.sm_count
    return {"reduce_gbps_per_sm": rate}


FOLDS: Final[Sequence[Fold]] = (
    Fold(
        left_out="Fig. 4(a), SymGEMM's 16.4 ms",
        constants=_reads_alone,
        why="the mean of public measurements of kernels that read Grace's memory",
    ),
    Fold(
        left_out="Fig. 4(a), AsymGEMM's 4.0 ms",
        constants=_reductions_at_hbm,
        why="HBM's measured rate, each byte pushed being read and written, over the SMs",
    ),
    Fold(
        left_out="Fig. 11, C2CServe's dense switch",
        constants=lambda: {"switch_dense_s": load_constants().switch_moe_s},
        why="that of mixtures, the only other switch of its own that it prints",
        serving=True,
    ),
    Fold(
        left_out="Fig. 11, ServerlessLLM's switches",
        constants=lambda: dict.fromkeys(
            ("sllm_init_dense_s", "sllm_init_moe_s"), load_constants().engine_init_s
        ),
        why="vLLM's loading phase without weights, as MEDUSA prints it",
        serving=True,
    ),
    Fold(
        left_out="MEDUSA, Fig. 8(a)",
        constants=lambda: {"engine_init_s": load_constants().sllm_init_dense_s},
        why="what ServerlessLLM's dense switch takes beside its weights (Fig. 11)",
        serving=True,
    ),
)


@figure("left_out", title="Each fitted figure left out in turn", draw="sensitivity.draw_left_out",
        needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Compute for each fold the claims that change, with and without the printed number."""
    folds = [f for f in FOLDS if not (context.quick and f.serving)]
    rows: list[dict[str, Any]] = []
    bases = {
        serving: {r.claim_id: r for r in _results(context, serving)}
        for serving in dict.fromkeys(f.serving for f in folds)
    }
    for fold in context.each(folds):
        base = bases[fold.serving]
        values = fold.constants()
        with _set(values):
            without = {r.claim_id: r for r in _results(context, fold.serving)}
        for name, ours in base.items():
            rows += _rows(fold, values, ours, without[name])
    rest = () if len(folds) == len(FOLDS) else ("The full profile leaves out starts as well.",)
    lost = sum(r["agrees"] and not r["agrees_without"] for r in rows)
    caption = (
        "Our values over the published ones, with a fitted number (hollow) and with it left out of "
        f"the fit (filled). {lost} of {len(rows)} agree only with the fit; link variant "
        f"'{context.link_variant}'."
    )
    assumptions = (
        "Each printed number that constants of the cost model were fitted to is left out in turn; "
        "the constants then have the value of the best other source.",
        *(f"{f.left_out}: the other source is {f.why}." for f in folds),
        *rest,
        "Shown are the numbers of figures that depend on these constants and change by more than "
        f"{100 * MOVED:g}%.",
    )
    return Computed(
        tables={"folds": pa.Table.from_pylist(rows)},
        results=(),
        caption=caption,
        assumptions=assumptions,
        report=_report(rows),
    )


def _results(context: Context, serving: bool) -> list[Result]:
    if serving:
        return [*starts.compute_switch(context).results, *starts.compute_cold(context).results]
    return [*fig4.compute(context).results, *fig6.compute(context).results]


@contextmanager
def _set(values: Mapping[str, float]) -> Iterator[None]:
    """Set constants of the cost model to these values within a `with` block."""
    knobs = {knob.name: knob for knob in constant_knobs()}
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(changed(knobs[name], value / knobs[name].value))
        yield


def _rows(
    fold: Fold, values: Mapping[str, float], ours: Result, without: Result
) -> list[dict[str, Any]]:
    """Return the row of a numeric claim that changes by more than `MOVED`; else no row."""
    published = claim(ours.claim_id)
    before, after = (compare(published, r) for r in (ours, without))
    if before.ratio is None or after.ratio is None:
        return []
    if abs(after.ratio / before.ratio - 1.0) <= MOVED:
        return []
    return [
        {
            "left_out": fold.left_out,
            "constants": ", ".join(f"{n} {v:.4g}" for n, v in values.items()),
            "claim": ours.claim_id,
            "published": brief(published.value),
            "ours": brief(ours.ours),
            "without": brief(without.ours),
            "ratio": before.ratio,
            "ratio_without": after.ratio,
            "agrees": before.agrees,
            "agrees_without": after.agrees,
        }
    ]


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("left out", "constants without it", "claim", "published", "ours", "without", "agrees",
            "without")  # fmt: skip
    keys = ("left_out", "constants", "claim", "published", "ours", "without")
    return (
        head,
        *(
            (*(str(r[k]) for k in keys), *("yes" if r[k] else "no" for k in
                                           ("agrees", "agrees_without")))
            for r in rows
        ),
    )  # fmt: skip
