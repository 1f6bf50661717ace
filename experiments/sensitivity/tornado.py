"""Change of each headline result when one constant is halved or doubled, all others unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost import DEFAULT_ALPHAS, gemm_time, load_constants
from c2c.errors import DataError, SettingError
from c2c.hardware import link_gbps, slices
from experiments.c2cserve import fig6
from experiments.c2cserve.baselines import PROMPT
from experiments.c2cserve.fig4 import SHAPE
from experiments.c2cserve.settings import gh200_of_the_paper
from experiments.c2cserve.starts import cold_s, switch_s
from experiments.c2cserve.warm import Warm, warm
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.sensitivity.knobs import Knob, changed, chip_knobs, constant_knobs

__all__ = ["compute", "headlines", "starts"]

FACTORS: Final = (0.5, 2.0)
SMALL, LARGE, MIXTURE = "llama-3-3b", "llama-3-8b", "qwen3-30b-a3b"
# Constants that change some headline by more than a hundredth; the full profile has all.
QUICK: Final = (
    "link_efficiency", "mma_efficiency", "reduce_gbps_per_sm", "hbm_efficiency",
    "prefill_efficiency", "gemm_hbm_efficiency", "launch_s", "step_overhead_s",
)  # fmt: skip


def headlines(context: Context) -> dict[str, tuple[float, str]]:
    """Return the headline results and their units, from the current settings."""
    streamed, resident = (warm(context, LARGE, w) for w in ("host", "hbm"))
    mixture = warm(context, MIXTURE, "host")
    sliced: Warm = warm(context, SMALL, "host", layout="7x12gb")
    gap = next(
        r.ours for r in fig6.compute(context).results if r.claim_id.endswith("fig6b.gap_full_chunk")
    )
    sym, asym = _seven_slices(context)
    return {
        "TTFT, 8B streamed, whole chip": (1e3 * streamed.ttft_s, "ms"),
        "TPOT, 8B streamed, whole chip": (1e3 * streamed.tpot_s, "ms"),
        "TPOT, streamed over resident": (streamed.tpot_s / resident.tpot_s, "x"),
        "TTFT, Qwen3-30B streamed": (1e3 * mixture.ttft_s, "ms"),
        "TPOT, 3B on a seventh": (1e3 * sliced.tpot_s, "ms"),
        "Asym over SymGEMM, a seventh": (asym / sym, "x"),
        "two that share the link, of their sum": (100.0 - float(gap), "%"),
    }


def starts(context: Context) -> dict[str, tuple[float, str]]:
    """Return the headline results of starts, which are simulated: full profile only."""
    systems = ("c2cserve", "serverlessllm")
    cold = {s: cold_s(context, LARGE, s) for s in systems}
    moved = {s: switch_s(context, SMALL, LARGE, s) for s in systems}
    return {
        f"{name}, ServerlessLLM over ours": (of["serverlessllm"] / of["c2cserve"], "x")
        for name, of in (("cold start", cold), ("switch", moved))
    }


def _all(context: Context) -> dict[str, tuple[float, str]]:
    return headlines(context) | ({} if context.quick else starts(context))


def _seven_slices(context: Context) -> tuple[float, float]:
    platform = gh200_of_the_paper()
    seconds = gemm_time(
        *SHAPE, np.array([1.0, 0.0]), slice_=slices(platform, "7x12gb")[0],
        constants=load_constants(), link_gbps=link_gbps(platform.link, context.link_variant),
    ).time_s  # fmt: skip
    return float(seconds[0]), float(seconds[1])


@figure("tornado", title="Sensitivity of the headlines", draw="sensitivity.draw_tornado",
        needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Compute every headline result with each number halved and doubled."""
    knobs = [*chip_knobs(), *(k for k in constant_knobs() if not context.quick or k.name in QUICK)]
    base = _all(context)
    rows: list[dict[str, Any]] = []
    for knob in context.each(knobs):
        for factor, found in _scaled(context, knob):
            for name, (value, unit) in base.items():
                rows.append(
                    {
                        "headline": name,
                        "unit": unit,
                        "base": value,
                        "knob": knob.name,
                        "factor": factor,
                        "value": found[name][0],
                        "ratio": found[name][0] / value,
                    }
                )
    return Computed(
        tables={"headlines": pa.Table.from_pylist(rows)},
        results=(),
        caption=(
            f"Headline results with each of {len(knobs)} numbers of the chip and of the cost model "
            "halved or doubled alone; the six that move a headline most. Link variant "
            f"'{context.link_variant}'."
        ),
        assumptions=(
            "Shares are doubled up to 1.",
            f"The prompt has {PROMPT} tokens; the model has the link for itself.",
            f"Each step uses the best of {len(DEFAULT_ALPHAS)} alphas.",
            "The other constants are not fitted again.",
        ),
        report=_report(base, rows),
    )


def _scaled(context: Context, knob: Knob) -> Iterator[tuple[float, dict[str, tuple[float, str]]]]:
    for factor in FACTORS:
        allowed = min(factor, knob.most)
        if allowed == 1.0:
            continue
        try:
            with changed(knob, allowed):
                yield allowed, _all(context)
        except (SettingError, DataError):
            continue  # a chip with this number is not valid


def _report(
    base: dict[str, tuple[float, str]], rows: list[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    of = {(r["knob"], r["factor"] > 1, r["headline"]): r["ratio"] for r in rows}
    knobs = list(dict.fromkeys(r["knob"] for r in rows))
    body = []
    for knob in knobs:
        pairs = [(of.get((knob, False, name)), of.get((knob, True, name))) for name in base]
        body.append(
            (knob, *(" / ".join("" if r is None else f"{r:.3g}" for r in pair) for pair in pairs))
        )
    head = ("number: ratio when halved / doubled", *base)
    values = ("as it is", *(f"{value:.3g} {unit}" for value, unit in base.values()))
    return (head, values, *body)
