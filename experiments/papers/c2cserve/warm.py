"""Latency of a lone request on a started engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from c2c.cost import load_constants, step_table, step_time
from c2c.hardware import link_gbps, slices
from c2c.models import load_spec
from experiments.figure import Context
from experiments.papers.c2cserve.baselines import PROMPT
from experiments.papers.c2cserve.settings import gh200_of_the_paper

__all__ = ["Warm", "warm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Seconds to the first, and each further token."""

    ttft_s: float
    tpot_s: float


def warm(
    context: Context, model: str, weights: Literal["host", "hbm", "staged"], layout: str = "1x96gb"
) -> Warm:
    """Return both times for a lone prompt of `PROMPT` tokens."""
    platform = gh200_of_the_paper()
    table = step_table(
        load_spec(model), slices(platform, layout)[0], load_constants(),
        link_gbps(platform.link, context.link_variant), max_tokens=PROMPT, max_rows=1,
        weights=weights,
    )  # fmt: skip
    alphas = range(len(table.alphas))
    return Warm(
        ttft_s=min(
            step_time(table, prefill_tokens=PROMPT, head_rows=1, alpha_index=a).seconds
            for a in alphas
        ),
        tpot_s=min(
            step_time(
                table, decode_seqs=1, decode_kv_tokens=PROMPT, head_rows=1, alpha_index=a
            ).seconds
            for a in alphas
        ),
    )
